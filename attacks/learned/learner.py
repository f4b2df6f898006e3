"""What the attacks that learn from simulated updates of auxiliary rows have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeAlias, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.learned.auxiliary_rows import (
    Axes,
    Source,
    made_rows,
    split_rows,
    with_classes,
    with_mirrored,
)
from attacks.learned.features import Coordinates, Features, Hashed, OfUpdate, WithStatistics
from attacks.learned.inverter import Inverter, Pixels, scaled, standard
from attacks.learned.inverter_training import SimulatedUpdates
from attacks.learned.simulated_client import SimulatedClient, declared_client
from attacks.learned.simulated_statistics import SimulatedStatistics
from attacks.observed.declared import declared
from attacks.observed.known_labels import known_labels
from attacks.observed.replay import Replay, observed_gradient, replay
from fedsim.defenses.base import Distortion
from fedsim.errors import CannotAttack, ConfigError
from fedsim.knowledge import Fact
from fedsim.seeds import derive, generator, seeded
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, load_state
from fedsim.types import Batch, Tensors, joined

Model: TypeAlias = "Inverter | RidgeRegression"


@dataclass(frozen=True)
class Lessons:
    """What is learned from.

    Attributes:
        simulated: updates of given rows.
        truths: target outputs of all rows, ``(row, ...)``.
        training: numbers of the rows to train on.
        heldout: those of the rows that choose what was learned best.
    """

    simulated: SimulatedUpdates
    truths: Tensor
    training: Tensor
    heldout: Tensor


@dataclass(frozen=True)
class Learner(Attack, ABC):
    """Learns to turn updates into examples from simulated updates of auxiliary rows.

    One training serves every update of the same weights, defense and batch size, and an inversion
    is one pass. Labels are those of ``attacks.observed.labels``, or -1 if they cannot be inferred.

    Attributes:
        size: largest number of auxiliary rows used; 0 for all.
        auxiliary: train on the auxiliary ``rows``, on these and pseudo images (``dct``) or pseudo
            texts (``rows+unigram``), or on pseudo texts alone (``unigram``), as Wu et al. 2022 do
            off distribution.
        pseudo: number of pseudo rows; 0 for as many as rows.
        dct_axes: see ``attacks.learned.auxiliary_rows``.
        statistics: learn from the running statistics that came with the update, too, see
            ``attacks.learned.statistics``; without effect where none came.
        adaptive: simulate the declared defense; otherwise no defense is assumed.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples", "auxiliary"})
    grouping: ClassVar[Grouping] = "same_weights"
    uses: ClassVar[frozenset[Distortion] | None] = frozenset(get_args(Distortion))

    size: Annotated[int, Field(ge=0)] = 0
    auxiliary: Source = "rows"
    pseudo: Annotated[int, Field(ge=0)] = 0
    dct_axes: Axes = "height-width"
    statistics: bool = False
    adaptive: bool = True

    @abstractmethod
    def drawn(self, rows: Batch, client: SimulatedClient, task: Task, seed: int) -> Tensors:
        """The tensors that make the features of the client's updates, and the outputs.

        Raises:
            CannotAttack: such updates have no such features.
        """

    @abstractmethod
    def features(self, model: Replay, task: Task, drawn: Tensors) -> OfUpdate:
        """How updates become features, by what was ``drawn``."""

    @abstractmethod
    def network(self, task: Task, features: Features, drawn: Tensors) -> Model:
        """What turns features into examples, still to be learned."""

    @abstractmethod
    def learn(self, network: Model, lessons: Lessons, job: Job, seed: int) -> Tensors:
        """The tensors of the network once it has learned, and its ``heldout`` loss."""

    def caveats(self, learned: Tensors) -> list[str]:
        """What the reader of a result should know of the training."""
        del learned
        return []

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors:
        """What was learned, and the tensors that make its features and its outputs.

        Raises:
            CannotAttack: there are too few auxiliary rows, or what the client does is not known.
        """
        count = _count(observation)
        observed_gradient(observation)  # says what is not known of the client's steps
        model = replay(observation, task, job.device)
        owned = with_classes(job.auxiliary(), task, seed)
        heldout, training = split_rows(owned, self.size, count, seed)
        training = made_rows(training, task, self.auxiliary, self.pseudo, self.dct_axes, seed)
        if task.modality == "image":
            training = with_mirrored(training)
        plain = Hashed.of(Coordinates.of(model), None)
        client = declared_client(observation, model, plain, count, defended=self.adaptive)
        with _simulable():
            drawn = {"size": torch.tensor(count), **self.drawn(training, client, task, seed)}
        drawn = {name: value.to(job.device) for name, value in drawn.items()}
        statistics = self._statistics(observation, task, job)
        features = _together(self.features(model, task, drawn), statistics)
        drawn["inputs"] = torch.tensor(features.width)
        client = replace(client, features=features, statistics=statistics)
        with seeded(derive(seed, "network")):
            network = self.network(task, features, drawn).to(job.device)
        rows = joined([heldout, training]).to(job.device)
        numbers = torch.arange(len(rows), device=job.device)
        rng = generator(seed, "simulated", device=rows.labels.device)
        with _simulable():
            simulated = SimulatedUpdates(client, rows, rng)
        lessons = Lessons(
            simulated,
            network.output.truths(rows),
            training=numbers[len(heldout) :],
            heldout=numbers[: len(heldout)],
        )
        learned = self.learn(network, lessons, job, seed)
        return {name: value.cpu() for name, value in (learned | drawn).items()}

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One pass for each observation; the objective is the held-out loss.

        Raises:
            CannotAttack: an update is not of the kind that was learned from.
        """
        assert job.prepared is not None
        learned = {name: value.to(job.device) for name, value in job.prepared.items()}
        notes = self.caveats(learned)
        clients = observations[0].knowledge.cohort
        if self.adaptive and 1 < clients < learned["size"] and declared(observations[0]).names:
            notes += [f"the {clients} clients of a cohort were taken to have equally many examples"]
        model = replay(observations[0], task, job.device)
        of_statistics = [self._statistics(observation, task, job) for observation in observations]
        of_update = self.features(model, task, learned)
        features = _together(of_update, of_statistics[0])
        for observation, statistics in zip(observations, of_statistics, strict=True):
            _check_fits(observation, model, _together(of_update, statistics), learned)
        network = self.network(task, features, learned).to(job.device)
        load_state(network, {name: learned[name] for name in network.state_dict()})
        guesses = []
        for observation, statistics, rng in zip(observations, of_statistics, rngs, strict=True):
            update = observed_gradient(observation)
            seen = {name: update[name].float()[None].to(job.device) for name in model.parameters}
            linear = features.linear(seen)
            if statistics is not None:
                linear = torch.cat([statistics.observed(observation)[None], linear], 1)
            with torch.no_grad():
                outputs = network(features.finish(linear))[0]
            guess = network.output.read(outputs, observation.knowledge.lengths)
            guesses.append(
                Reconstruction(
                    replace(
                        guess,
                        labels=labels_or_unknown(
                            observation, task, rng, job, adaptive=self.adaptive
                        ),
                    ),
                    objective=float(learned["heldout"]),
                    steps=int(learned.get("epoch", 0)),
                    expired=bool(learned.get("expired", False)),
                    note="; ".join(notes),
                )
            )
        return guesses

    def _statistics(
        self, observation: Observation, task: Task, job: Job
    ) -> SimulatedStatistics | None:
        if not self.statistics:
            return None
        try:
            return SimulatedStatistics.of(observation, task, job.device)
        except CannotAttack:
            return None


def _together(update: OfUpdate, statistics: SimulatedStatistics | None) -> Features:
    return update if statistics is None else WithStatistics(update, sum(statistics.groups))


@contextmanager
def _simulable() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:  # of a defense that only the client can set up
        raise CannotAttack(
            f"the declared defense cannot be simulated ({str(error).removesuffix('.')})",
            "Set adaptive = false.",
        ) from None


def _count(observation: Observation) -> int:
    count = observation.knowledge.num_examples
    assert count is not None
    return count


def _check_fits(
    observation: Observation, model: Replay, features: Features, learned: Tensors
) -> None:
    sent = [name for name, _ in model.network.named_parameters() if name in observation.received]
    count, size, inputs = _count(observation), int(learned["size"]), int(learned["inputs"])
    if (count, features.width) != (size, inputs) or sent != list(model.parameters):
        raise CannotAttack(
            f"an update of {len(sent)} tensors and {count} examples is not what the inverter was "
            f"trained for ({size} examples, {inputs} features)",
            "Let all clients send the same layers and batches of one size.",
        )


def labels_or_unknown(
    observation: Observation, task: Task, rng: torch.Generator, job: Job, *, adaptive: bool
) -> Tensor:
    """The classes of a classifier's examples; -1 where they cannot be told."""
    unknown = torch.full((_count(observation),), -1)
    if not task.spec.num_classes:
        return unknown
    try:
        return known_labels(observation, task, rng, job, adaptive=adaptive)
    except CannotAttack:
        return unknown


_FEW = 8
"""Updates of a class below which it is standardised with all others."""
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Penalties, by the variance of a feature; noise takes the large ones."""


class RidgeRegression(nn.Module):
    """A linear map from features, each class with its own mean and deviation, to pixels.

    The last ``classes`` features tell the class, as one-hot vectors.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, classes: int, output: Pixels) -> None:
        super().__init__()
        self.output = output
        self.register_buffer("mean", torch.zeros(classes, features - classes))
        self.register_buffer("deviation", torch.ones(classes, features - classes))
        self.linear = nn.Linear(features, math.prod(output.shape)).requires_grad_(False)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``.

        A class of few updates gets those of all.
        """
        values, kinds, _ = self._split(features)
        for kind in range(len(self.mean)):
            examples = values[kinds == kind]
            examples = examples if len(examples) >= _FEW else values
            self.mean[kind], self.deviation[kind] = standard(examples)

    def fit(self, training: tuple[Tensor, Tensor], heldout: tuple[Tensor, Tensor]) -> Tensor:
        """Set the map to least squares, its ridge chosen on held-out updates.

        Args:
            training: features ``(update, feature)`` and examples ``(update, value)``.
            heldout: the same.

        Returns:
            The mean squared error on the held-out updates.
        """
        features, truths = self._scaled(training[0]), training[1]
        others = self._scaled(heldout[0])
        mean = truths.mean(0)
        wide = features.shape[1] > len(features)  # the smaller of the two systems is solved
        gram = (features @ features.T if wide else features.T @ features).double()
        across = others @ features.T if wide else others
        right = (truths - mean if wide else features.T @ (truths - mean)).double()
        lowest = torch.full((), math.inf, device=features.device)
        best = torch.zeros_like(right, dtype=torch.float32)
        for ridge in _RIDGES:
            penalty = ridge * len(features) * torch.eye(len(gram), device=gram.device)
            factor, failed = torch.linalg.cholesky_ex(gram + penalty)
            if failed:
                continue
            solved = torch.cholesky_solve(right, factor).float()
            error = (across @ solved + mean - heldout[1]).square().mean()
            if error < lowest:
                lowest, best = error, solved
        self.linear.weight.copy_((features.T @ best if wide else best).T)
        self.linear.bias.copy_(mean)
        return lowest

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, 1, pixel)``."""
        guesses: Tensor = self.linear(self._scaled(features))[:, None]
        return guesses

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features that are measured, the class of each update, and its one-hot vector."""
        values, known = features.tensor_split([self.mean.shape[1]], 1)
        return values, known.argmax(1), known

    def _scaled(self, features: Tensor) -> Tensor:
        values, kinds, known = self._split(features)
        return torch.cat([scaled(values, self.mean[kinds], self.deviation[kinds]), known], 1)
