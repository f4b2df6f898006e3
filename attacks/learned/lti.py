"""Learning To Invert (Wu et al. 2022): a network learns to turn updates into their examples."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from attacks.base import Job
from attacks.learned.features import (
    Coordinates,
    Features,
    Hashed,
    OfUpdate,
    draw_bins,
    tensor_weights,
)
from attacks.learned.inverter import Inverter, Output, Pixels, TokenOutput, words_of
from attacks.learned.inverter_training import Training
from attacks.learned.learner import Learner, Lessons, Model
from attacks.learned.simulated_client import SimulatedClient
from attacks.observed.replay import Replay
from fedsim.seeds import generator
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_MEASURED = 16
"""Updates by which the scale of each tensor is measured."""


@dataclass(frozen=True)
class LTI(Learner):
    """Invert updates with a network trained on simulated updates of auxiliary rows.

    Wu et al. 2022, "Learning To Invert: Simple Adaptive Attacks for Gradient Inversion in Federated
    Learning": the coordinates of the update, hashed, enter a network of three layers, and the
    simulation includes the declared defense. The loss of a batch is that of the best assignment of
    guesses to examples.

    We differ in three points. (1) The paper chooses the epoch on the test set; here held-out
    auxiliary rows choose it. (2) Features are standardised, after tensors are brought to one scale
    before they are hashed; the learning rate follows a cosine. (3) Images are also mirrored. The
    paper's schedule is, for images, width 3000, 200 epochs, a learning rate of 1e-4 falling to a
    tenth and 50,000 images; for texts width 600, 1000 channels and 100 epochs. For a single image
    ``ridge`` needs seconds and is often better.

    Attributes:
        bins: number of features as a share of the coordinates; 1 for one each. The paper uses .5
            for ResNet20, .1 and .01 for language models.
        width: width of the hidden layers; texts have one, followed by ``channels`` at each token.
        channels: values at each token, which a layer shared by all tokens maps to the word.
        epochs: passes over the auxiliary rows.
        patience: epochs without a lower held-out loss that end the training.
        updates: number of simulated updates in one step.
        learning_rate: highest learning rate of Adam.
    """

    title: ClassVar[str] = "LTI"

    bins: Annotated[float, Field(gt=0, le=1)] = 1.0
    width: Annotated[int, Field(ge=1)] = 1500
    channels: Annotated[int, Field(ge=1)] = 256
    epochs: Annotated[int, Field(ge=1)] = 12
    patience: Annotated[int, Field(ge=1)] = 3
    updates: Annotated[int, Field(ge=1)] = 256
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3

    def drawn(self, rows: Batch, client: SimulatedClient, task: Task, seed: int) -> Tensors:
        """Bins and weights of the coordinates, where they are hashed, and the words to guess."""
        drawn: Tensors = {}
        if self.bins < 1:
            coordinates = client.coordinates
            drawn["index"] = draw_bins(coordinates.count, self.bins, generator(seed, "bins"))
            some = rows[: min(_MEASURED, len(rows) // client.size) * client.size]
            rng = generator(seed, "weights", device=client.device)
            measured = client.linear(some.to(client.device), rng)
            drawn["weights"] = tensor_weights(measured, coordinates, client.variance)
        if task.modality == "text":
            drawn["words"] = words_of(rows)
        return drawn

    def features(self, model: Replay, task: Task, drawn: Tensors) -> OfUpdate:
        """The coordinates, hashed."""
        del task
        return Hashed.of(Coordinates.of(model), drawn.get("index"), drawn.get("weights"))

    def network(self, task: Task, features: Features, drawn: Tensors) -> Model:
        """The inverter of images or texts."""
        shape = task.spec.input_shape
        output: Output = Pixels(shape)
        if "words" in drawn:
            output = TokenOutput(shape[0], drawn["words"], self.channels)
        return Inverter(features.width, self.width, int(drawn["size"]), output)

    def learn(self, network: Model, lessons: Lessons, job: Job, seed: int) -> Tensors:
        """Train, with checkpoints; see ``attacks.learned.inverter_training``."""
        assert isinstance(network, Inverter)
        plan = Training(self.epochs, self.patience, self.updates, self.learning_rate, seed)
        rows = lessons.training, lessons.heldout
        return plan.run(network, lessons.simulated, lessons.truths, rows, job)

    def caveats(self, learned: Tensors) -> list[str]:
        """Whether the training was cut off."""
        if not learned["expired"]:
            return []
        epoch = int(learned["epoch"])
        return [f"the clock ended the training, best in epoch {epoch} of {self.epochs}"]
