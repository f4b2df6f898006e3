"""Ridge regression from one step of gradient matching to the pixels of a single image."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Job
from attacks.learned.features import Coordinates, Features, OfUpdate, Slopes, WithStatistics
from attacks.learned.inverter import Pixels
from attacks.learned.inverter_training import MEASURED
from attacks.learned.learner import Learner, Lessons, Model, RidgeRegression
from attacks.learned.simulated_client import SimulatedClient
from attacks.observed.labels import find_head
from attacks.observed.replay import Replay
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_AT_ONCE = 256
"""Updates simulated in one pass."""


@dataclass(frozen=True)
class Ridge(Learner):
    """Invert the update of a single image by one linear map, learned in seconds.

    The update enters as the first step of gradient matching and what the last layer tells of its
    input and its label, see ``attacks.learned.features.Slopes``. Pixels are regressed on that over
    simulated updates of auxiliary images, the declared defense included, as in Wu et al. 2022
    (``lti``), but by least squares: no training schedule, nothing to search for each victim. The
    penalty is the one of least error on held-out auxiliary rows. On LeNet at its first weights and
    9,000 images of CIFAR-10 the mean squared error is .005 without a defense and .019 under signs,
    pruning of .99 and noise of .1.

    Running statistics that came with the update are features, too, unless ``statistics`` is off.
    """

    title: ClassVar[str] = "Ridge"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    statistics: bool = True

    def drawn(self, rows: Batch, client: SimulatedClient, task: Task, seed: int) -> Tensors:
        """The mean image, at which slopes are taken.

        Raises:
            CannotAttack: the update is of several images, or its last layer is not sent.
        """
        del seed
        head = find_head(client.model.network)
        sent = {head.weight, head.bias} <= client.model.parameters.keys()
        if client.size > 1 or not sent:
            raise CannotAttack(
                "it needs the update of a single image with the last layer's weight and bias, and "
                f"here {client.size} {task.modality}s share one, of which {head.layer!r} "
                f"{'is' if sent else 'is not'} sent",
                "Take lti.",
            )
        return {"reference": rows.inputs.mean(0)}

    def features(self, model: Replay, task: Task, drawn: Tensors) -> OfUpdate:
        """The slopes."""
        del task
        head = find_head(model.network)
        return Slopes(model, Coordinates.of(model), head, drawn["reference"])

    def network(self, task: Task, features: Features, drawn: Tensors) -> Model:
        """The linear map."""
        del drawn
        slopes = features.update if isinstance(features, WithStatistics) else features
        assert isinstance(slopes, Slopes)
        return RidgeRegression(features.width, slopes.classes, Pixels(task.spec.input_shape))

    @torch.no_grad()
    def learn(self, network: Model, lessons: Lessons, job: Job, seed: int) -> Tensors:
        """Least squares over as many rows as fit into the memory."""
        assert isinstance(network, RidgeRegression)
        most = max(_AT_ONCE, MEASURED // (4 * network.linear.in_features))
        order = torch.randperm(len(lessons.training), generator=generator(seed, "order"))
        rng = generator(seed, "updates", device=lessons.truths.device)

        def known(rows: Tensor) -> tuple[Tensor, Tensor]:
            parts = [lessons.simulated(numbers, rng) for numbers in rows[:, None].split(_AT_ONCE)]
            return torch.cat(parts), lessons.truths[rows]

        training = known(lessons.training[order[:most].to(lessons.training.device)])
        network.standardise(training[0])
        error = network.fit(training, known(lessons.heldout))
        job.report(0, float(error), "")
        return {**network.state_dict(), "heldout": error}
