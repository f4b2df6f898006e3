"""Learning To Invert (Wu et al. 2022): a network learns to turn updates into their examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.learned.auxiliary_rows import (
    Source,
    joined,
    made_rows,
    split_rows,
    with_classes,
    with_mirrored,
)
from attacks.learned.features import Coordinates, Features, Hashed, Slopes, draw_bins
from attacks.learned.inverter import Inverter, Output
from attacks.learned.inverter_outputs import Pixels, TokenOutput, words_of
from attacks.learned.inverter_training import Training
from attacks.learned.pseudo import Axes
from attacks.learned.simulated_updates import SimulatedUpdates, declared_client
from attacks.observed.declared import declared
from attacks.observed.labels import Head, find_head, known_labels
from attacks.observed.replay import Replay, observed_gradient, replay
from fedsim.capture import Observation
from fedsim.errors import CannotAttack, ConfigError
from fedsim.knowledge import Fact
from fedsim.seeds import derive, generator, seeded
from fedsim.tasks.base import Task, load_state
from fedsim.types import Tensors


@dataclass(frozen=True)
class LTI(Attack):
    """Invert updates with a network trained on simulated updates of auxiliary rows.

    Wu et al. 2022, "Learning To Invert: Simple Adaptive Attacks for Gradient Inversion in Federated
    Learning": the simulation includes the declared defense. One training serves every update of the
    same weights, defense and batch size, and an inversion is one forward pass. The loss of a batch
    is that of the best assignment of guesses to examples. Labels are those of
    ``attacks.observed.labels``, or -1 if they cannot be inferred.

    We differ in three points. (1) The paper chooses the epoch on the test set; here held-out
    auxiliary rows choose it. (2) Features are standardised, the learning rate follows a cosine, and
    images are also mirrored. (3) With ``features = "slope"`` the update of a single image enters as
    one step of gradient matching, and the network adds to a linear regression of the pixels. On
    LeNet at its first weights and 9,000 images of CIFAR-10 the regression alone has a mean squared
    error of .005 (no defense) and .019 (sign, pruning .99, noise .1), which 6 epochs of the network
    do not improve. The paper's schedule is, for images, width 3000, 200 epochs, a learning rate of
    1e-4 falling to a tenth and 50,000 images; for texts width 600, 1000 channels and 100 epochs.

    Attributes:
        features: ``slope``, see ``attacks.learned.features.Slopes``; ``coordinates``, hashed, as
            in the paper; ``auto`` takes slopes of a single image whose last layer is sent.
        bins: number of features as a share of the coordinates; 1 for one each. The paper uses .5
            for ResNet20, .1 and .01 for language models.
        width: width of the hidden layers; texts have one, followed by ``channels`` at each token.
        channels: values at each token, which a layer shared by all tokens maps to the word.
        epochs: passes over the auxiliary rows.
        patience: epochs without a lower held-out loss that end the training.
        updates: number of simulated updates in one step.
        learning_rate: highest learning rate of Adam.
        mirror: train on mirrored images too.
        size: largest number of auxiliary rows used; 0 for all.
        auxiliary: train on the auxiliary ``rows``, on these and pseudo images (``dct``), or on
            pseudo texts alone (``unigram``), as the paper does off distribution.
        pseudo: number of pseudo rows; 0 for as many as rows.
        dct_axes: see ``attacks.learned.pseudo``.
        adaptive: simulate the declared defense; otherwise no defense is assumed.
    """

    title: ClassVar[str] = "LTI"
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples", "auxiliary"})
    grouping: ClassVar[Grouping] = "same_weights"

    features: Literal["auto", "slope", "coordinates"] = "auto"
    bins: Annotated[float, Field(gt=0, le=1)] = 1.0
    width: Annotated[int, Field(ge=1)] = 1500
    channels: Annotated[int, Field(ge=1)] = 256
    epochs: Annotated[int, Field(ge=1)] = 12
    patience: Annotated[int, Field(ge=1)] = 3
    updates: Annotated[int, Field(ge=1)] = 256
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    mirror: bool = True
    size: Annotated[int, Field(ge=0)] = 0
    auxiliary: Source = "rows"
    pseudo: Annotated[int, Field(ge=0)] = 0
    dct_axes: Axes = "height-width"
    adaptive: bool = True

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors:
        """The tensors of the trained inverter, and those that make its features and its words.

        Raises:
            CannotAttack: there are too few auxiliary rows, or what the client does is not known.
        """
        count = _count(observation)
        observed_gradient(observation)  # says what is not known of the client's steps
        model = replay(observation, task, job.device)
        owned = with_classes(job.auxiliary(), task, seed)
        heldout, training = split_rows(owned, self.size, count, seed)
        training = made_rows(training, task, self.auxiliary, self.pseudo, self.dct_axes, seed)
        if self.mirror and task.modality == "image":
            training = with_mirrored(training)
        made: Tensors = {"size": torch.tensor(count)}
        head = self._head(task, model, count)
        if head is not None:
            made["reference"] = training.inputs.mean(0)
        elif self.bins < 1:
            made["index"] = draw_bins(
                Coordinates.of(model).count, self.bins, generator(seed, "bins")
            )
        if task.modality == "text":
            made["words"] = words_of(training)
        made = {name: value.to(job.device) for name, value in made.items()}
        features = self._features(model, task, made)
        client = declared_client(observation, model, features, count, defended=self.adaptive)
        with seeded(derive(seed, "network")):
            network = self._network(task, features, made).to(job.device)
        rows = joined([heldout, training]).to(job.device)
        numbers = torch.arange(len(rows), device=job.device)
        split = numbers[len(heldout) :], numbers[: len(heldout)]
        try:
            rng = generator(seed, "simulated", device=job.device)
            simulated = SimulatedUpdates(client, rows, rng)
        except ConfigError as error:  # of a defense that only the client can set up
            raise CannotAttack(
                f"the declared defense cannot be simulated ({str(error).removesuffix('.')})",
                "Set adaptive = false.",
            ) from None
        plan = Training(self.epochs, self.patience, self.updates, self.learning_rate, seed)
        learned = plan.run(network, simulated, network.output.truths(rows), split, job)
        return {name: value.cpu() for name, value in (learned | made).items()}

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One pass of the inverter for each observation; the objective is the held-out loss.

        Raises:
            CannotAttack: an update is not of the kind that the inverter was trained for.
        """
        assert job.prepared is not None
        learned = {name: value.to(job.device) for name, value in job.prepared.items()}
        epoch, notes = int(learned["epoch"]), []
        if learned["expired"]:
            notes += [f"the time budget ended the training, best in epoch {epoch} of {self.epochs}"]
        clients = observations[0].knowledge.cohort
        if self.adaptive and 1 < clients < learned["size"] and declared(observations[0]).names:
            notes += [f"the {clients} clients of a cohort were taken to have equally many examples"]
        model = replay(observations[0], task, job.device)
        features = self._features(model, task, learned)
        network = self._network(task, features, learned).to(job.device)
        for observation in observations:
            _check_fits(observation, model, features, learned)
        load_state(network, {name: learned[name] for name in network.state_dict()})
        guesses = []
        for observation, rng in zip(observations, rngs, strict=True):
            update = Coordinates.of(model).flatten(observed_gradient(observation))
            linear = features.linear(update.float().to(job.device)[None])
            with torch.no_grad():
                outputs = network(features.finish(linear))[0]
            guess = network.output.read(outputs, observation.knowledge.lengths)
            guesses.append(
                Reconstruction(
                    replace(guess, labels=_labels(observation, task, rng, job, self.adaptive)),
                    objective=float(learned["heldout"]),
                    steps=epoch,
                    note="; ".join(notes),
                )
            )
        return guesses

    def _head(self, task: Task, model: Replay, count: int) -> Head | None:
        """The last layer, where slopes are taken, else None."""
        if self.features == "coordinates":
            return None
        head = find_head(model.network)
        sent = {head.weight, head.bias} <= model.parameters.keys()
        if task.modality == "image" and count == 1 and sent:
            return head
        if self.features == "slope":
            raise CannotAttack(
                "features: slopes are of a single image whose last weight and bias are sent, and "
                f"here are {count} {task.modality}s, of which {head.layer!r} "
                f"{'is' if sent else 'is not'} sent",
                "Take 'coordinates'.",
            )
        return None

    def _features(self, model: Replay, task: Task, made: Tensors) -> Features:
        """How updates become features, by what ``prepare`` made."""
        head = self._head(task, model, int(made["size"]))
        if head is not None:
            return Slopes(model, Coordinates.of(model), head, made["reference"])
        return Hashed.of(Coordinates.of(model).count, made.get("index"))

    def _network(self, task: Task, features: Features, made: Tensors) -> Inverter:
        shape, classes = task.spec.input_shape, features.classes
        if "words" in made:
            output: Output = TokenOutput(shape[0], made["words"], self.channels)
        else:
            output = Pixels(shape, residual=classes > 0)
        return Inverter(features.width, self.width, int(made["size"]), output, classes)


def _count(observation: Observation) -> int:
    count = observation.knowledge.num_examples
    assert count is not None
    return count


def _check_fits(
    observation: Observation, model: Replay, features: Features, learned: Tensors
) -> None:
    sent = [name for name, _ in model.network.named_parameters() if name in observation.received]
    count, size = _count(observation), int(learned["size"])
    inputs = learned["first.weight"].shape[1]
    if (count, features.width) != (size, inputs) or sent != list(model.parameters):
        raise CannotAttack(
            f"an update of {len(sent)} tensors and {count} examples is not what the inverter was "
            f"trained for ({size} examples, {inputs} features)",
            "Let all clients send the same layers and batches of one size.",
        )


def _labels(
    observation: Observation, task: Task, rng: torch.Generator, job: Job, adaptive: bool
) -> Tensor:
    """The classes of a classifier's examples; -1 where they cannot be told."""
    unknown = torch.full((_count(observation),), -1)
    if not task.spec.num_classes:
        return unknown
    try:
        return known_labels(observation, task, rng, job, adaptive=adaptive)
    except CannotAttack:
        return unknown
