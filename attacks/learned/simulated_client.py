"""A client as the threat model describes it, that trains on the attacker's own rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import embedding, pad

from attacks.learned.features import Coordinates, Features
from attacks.learned.simulated_statistics import SimulatedStatistics
from attacks.observed.declared import declared, update_of
from attacks.observed.factored import Factored, Products, Vectors
from attacks.observed.local_steps import LocalSteps
from attacks.observed.replay import Replay, step_length
from fedsim.defenses.base import Defense, Step
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

_AT_ONCE = 32 << 20
"""Most bytes of gradients held at a time."""
_LANES = 4
"""Fewest updates in one pass where one pass over many is faster than as many passes."""
_PROBES = 8
"""Most updates on which ``averages`` is measured."""
_PROBE_BYTES = 128 << 20
"""Most bytes of their linear features, of which five copies are held: two updates of ResNet18, as
at half of it, and five at twice as much. All eight of a network of 4 million weights or fewer."""


@dataclass(frozen=True)
class SimulatedClient:
    """A client's local steps and its defenses, as declared, without its Gaussian noise.

    All steps are taken at the broadcast weights. A cohort's clients are simulated one by one.

    Attributes:
        gradients: of the broadcast model.
        chain: all defenses but the Gaussian noise at the end.
        variance: variance of that noise in each coordinate of the mean gradient.
        spread: distribution of an update's examples over clients and steps.
        length: factor from the mean gradient to the update, on which late defenses act.
        statistics: what the client's running statistics say, if they are features, too.
    """

    gradients: Gradients
    features: Features
    chain: Chain
    variance: float
    spread: LocalSteps
    length: float
    statistics: SimulatedStatistics | None = None

    @property
    def model(self) -> Replay:
        """The broadcast model."""
        return self.gradients.model

    @property
    def size(self) -> int:
        """Number of examples in one update."""
        return self.spread.examples

    @property
    def coordinates(self) -> Coordinates:
        """Those of the parameters that the client sends."""
        return Coordinates.of(self.model)

    @property
    def device(self) -> torch.device:
        """That of the model."""
        return next(iter(self.model.parameters.values())).device

    def linear(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Linear features ``(update, feature)`` of each ``size`` examples in a row."""
        least = 1 if self.gradients.factored is None else _LANES
        step = self.size * max(least, _AT_ONCE // (4 * self.size * self.coordinates.count))
        starts = range(0, len(batch), step)
        linear = torch.cat([self._linear(batch[i : i + step], rng) for i in starts])
        if self.statistics is None:
            return linear
        return torch.cat([self.statistics(batch.inputs, rng.initial_seed()), linear], 1)

    def _linear(self, batch: Batch, rng: torch.Generator) -> Tensor:
        numbers = torch.arange(len(batch)).view(-1, self.spread.rows)
        first, *others = (
            self._steps(batch[numbers[:, places].flatten()], places.stop - places.start, count, rng)
            for places, count in self.spread.batches
        )
        if self.spread.steps == self.spread.clients == 1 and not self.chain.changes_update:
            return self.features.linear(first)
        means = dict(first)
        for name, value in means.items():  # in place: a copy takes as long as a gradient
            for other in others:
                value += other[name]
            if self.spread.steps > 1:
                value /= self.spread.steps
        if self.chain.changes_update:
            updates = range(len(next(iter(means.values()))))
            sent = (update_of(self.chain, _row(means, i), self.length, rng) for i in updates)
            if self.spread.clients == 1:  # one by one, without a copy of all
                alone = ({name: value[None] for name, value in update.items()} for update in sent)
                return torch.cat([self.features.linear(update) for update in alone])
            means = _stacked(list(sent))
        if self.spread.clients > 1:
            means = {n: v.unflatten(0, (-1, self.spread.clients)).mean(1) for n, v in means.items()}
        return self.features.linear(means)

    def _steps(
        self, batch: Batch, size: int, count: int, rng: torch.Generator
    ) -> Mapping[str, Tensor]:
        """The sum over ``count`` steps of the gradient of each ``size`` examples in a row."""
        chosen = [
            self.chain.on_batch(batch[start : start + size], self.model.network, rng)
            for start in range(0, len(batch), size)
        ]
        masks = [part.mask for part in chosen if part.mask is not None]
        batch = Batch(
            torch.cat([part.inputs for part in chosen]),
            torch.cat([part.labels for part in chosen]),
            torch.cat(masks) if masks else None,
        )
        if not self.chain.per_example:
            gradients = self.gradients(batch, size)
            if self.chain.changes_step:
                draws = [self._stepped(gradients, batch, size, rng) for _ in range(count)]
                return {
                    name: torch.stack([step[name] for step in draws]).sum(0) for name in gradients
                }
            return (
                gradients if count == 1 else {name: v.mul_(count) for name, v in gradients.items()}
            )
        single = dict(self.gradients(batch, 1))
        means = [self._means_of_defended(single, size, rng) for _ in range(count)]
        steps = [self._stepped(mean, batch, size, rng) for mean in means]
        return {name: torch.stack([step[name] for step in steps]).sum(0) for name in steps[0]}

    def _means_of_defended(self, single: Tensors, size: int, rng: torch.Generator) -> Tensors:
        """As clients do it in a step, ``(client, *shape)`` of ``(example, *shape)``."""
        examples = len(next(iter(single.values())))
        means = []
        for start in range(0, examples, size):
            rows = (_row(single, i) for i in range(start, start + size))
            means.append(self.chain.mean(rows, rng))
        return _stacked(means)

    def _stepped(
        self, means: Mapping[str, Tensor], batch: Batch, size: int, rng: torch.Generator
    ) -> Tensors:
        """The mean gradients after the defenses that look at the model and its examples."""
        gradients = dict(means)
        if not self.chain.changes_step:
            return gradients
        model = self.model
        steps = [
            Step(model.network, batch[start : start + size], model.task.loss)
            for start in range(0, len(batch), size)
        ]
        changed = [
            self.chain.on_step(_row(gradients, i), step, rng) for i, step in enumerate(steps)
        ]
        return _stacked(changed)

    def averages(self, batch: Batch) -> bool:
        """Whether updates are the means of what single examples give, the same each time.

        Measured on the first rows, so that any defense, normalisation and loss is judged by what
        it does.
        """
        if self.statistics is not None and self.size > 1:
            return False
        width = len(self.features.sizes(batch.inputs.device))
        probes = max(2, min(_PROBES, _PROBE_BYTES // (4 * width * self.size)))
        probe = batch[: min(probes, len(batch) // self.size) * self.size]
        first, second = (self.linear(probe, _generator(probe, seed)) for seed in (0, 1))
        alone = replace(self, spread=LocalSteps()).linear(probe, _generator(probe, 2))
        means = self.mean(alone.unflatten(0, (-1, self.size)))
        return torch.equal(first, second) and bool((means - first).norm() <= 1e-4 * first.norm())

    def mean(self, single: Tensor) -> Tensor:
        """``(update, feature)`` of the linear features ``(update, example, feature)``."""
        return torch.einsum("e,uef->uf", self.spread.shares.to(single), single)


def _row(tensors: Tensors, number: int) -> Tensors:
    return {name: value[number] for name, value in tensors.items()}


def _stacked(updates: Sequence[Tensors]) -> Tensors:
    """``(update, *shape)`` of single updates ``(*shape)``."""
    return {name: torch.stack([update[name] for update in updates]) for name in updates[0]}


def declared_client(
    observation: Observation,
    model: Replay,
    features: Features,
    size: int,
    *,
    defended: bool,
) -> SimulatedClient:
    """The client that the threat model describes, with its defenses or without.

    Raises:
        CannotAttack: the server does not know them, or what they worked on.
    """
    length, cohort = step_length(observation), observation.knowledge.cohort
    chain = declared(observation) if defended else Chain()
    names, defenses, late, single = list(chain.names), list(chain.defenses), 0.0, 0.0
    while defenses and (std := _noise_alone(defenses[-1])) is not None:
        if defenses[-1].changes_update:
            late += std**2 / length**2 / cohort
        else:
            single += std**2
        names, defenses = names[:-1], defenses[:-1]
    chain = Chain(tuple(names), tuple(defenses))
    spread = LocalSteps.of(observation)
    if spread is None:
        if single or chain.per_example or chain.changes_step or chain.changes_update:
            raise CannotAttack(
                f"how {size} examples were spread over {cohort} clients and their local steps is "
                "not known, and their defense depends on it",
                "Let batches be of one size, or set adaptive = false.",
                observation.knowledge.missing(frozenset({"batch_size"})),
            )
        spread = LocalSteps(rows=size, batch=size)
    return SimulatedClient(
        Gradients.of(model), features, chain, late + single * spread.noise, spread, length
    )


def _noise_alone(defense: Defense) -> float | None:
    """Standard deviation of Gaussian noise on each gradient or the update; None if not that."""
    noise = defense.gaussian
    if noise is None or noise.clip < math.inf or defense.changes_sum:
        return None
    return noise.std


def _generator(batch: Batch, seed: int) -> torch.Generator:
    return torch.Generator(batch.inputs.device).manual_seed(seed)


_EXAMPLES = 64
"""Most updates that one ``vmap`` processes at a time."""
_BYTES = 64 << 20
"""Most bytes of gradients that one ``vmap`` produces at a time."""


@dataclass(frozen=True)
class Gradients:
    """Gives the gradients of groups of examples.

    Attributes:
        model: whose gradients, with respect to which parameters.
        factored: a copy of a text classifier, all of whose gradients follow from one pass over
            many texts; None if there is no such copy.
    """

    model: Replay
    factored: Factored | None = None

    @classmethod
    def of(cls, model: Replay) -> Gradients:
        """Those of a model."""
        if model.task.modality != "text" or not model.task.spec.num_classes:
            return cls(model)  # the mean over tokens of a language model is no mean over lanes
        factored = Factored(replace(model, network=copy.deepcopy(model.network)))
        whole = {name for group in factored.layout for name in group} == model.parameters.keys()
        return cls(model, factored if whole else None)

    def __call__(self, batch: Batch, size: int) -> Mapping[str, Tensor]:
        """The gradient of each ``size`` consecutive examples, ``(group, *shape)``."""
        if self.factored is None:
            return group_gradients(self.model, batch, size)
        words = cast(Any, self.factored.network).get_input_embeddings().weight
        guess = embedding(batch.inputs, words).unflatten(0, (-1, size))
        with torch.enable_grad():
            groups = self.factored(guess, batch, create_graph=False)
        parts = {name: (group, i) for group in groups for i, name in enumerate(group.names)}
        shapes = {name: value.shape for name, value in self.model.parameters.items()}
        return _Formed(shapes, parts)


@dataclass(frozen=True)
class _Formed(Mapping[str, Tensor]):
    """Gradients that are formed when they are asked for: together they need much memory."""

    shapes: dict[str, torch.Size]
    parts: dict[str, tuple[Products | Vectors, int]]

    def __getitem__(self, name: str) -> Tensor:
        group, layer = self.parts[name]
        if isinstance(group, Products):
            return group.left[layer].mT @ group.right[layer]
        values, shape = group.values[layer], self.shapes[name]
        filled = pad(values, (0, shape.numel() - values.shape[1]))
        return filled.view(-1, *shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def group_gradients(model: Replay, batch: Batch, size: int) -> Tensors:
    """The gradient of each ``size`` consecutive examples, ``(group, *shape)``, by ``vmap``.

    Groups are processed one by one if gradients are large, which is as fast and takes less memory,
    or if the network branches on its input's values, as for the padding masks of BERT.
    """
    chunk = _BYTES // (4 * size * sum(value.numel() for value in model.parameters.values()))
    if chunk < 2:
        return looped_gradients(model, batch, size)
    mask = batch.inputs if batch.mask is None else batch.mask

    def gradient(inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensors:
        return model.pure_gradient(Batch(inputs, labels, None if batch.mask is None else mask))

    groups = (part.unflatten(0, (-1, size)) for part in (batch.inputs, batch.labels, mask))
    try:
        gradients: Tensors = vmap(gradient, chunk_size=min(chunk, _EXAMPLES))(*groups)
    except RuntimeError:
        return looped_gradients(model, batch, size)
    return {name: value.detach() for name, value in gradients.items()}


@torch.enable_grad()
def looped_gradients(model: Replay, batch: Batch, size: int = 1) -> Tensors:
    """``group_gradients`` one by one: the reference for its results and its speed."""
    starts = range(0, len(batch), size)
    gradients = {
        k: value.new_empty(len(starts), *value.shape) for k, value in model.parameters.items()
    }
    for number, start in enumerate(starts):
        loss = model.task.loss(model.network, _trimmed(batch[start : start + size]))
        single = torch.autograd.grad(
            loss, list(model.parameters.values()), allow_unused=True, materialize_grads=True
        )
        for stored, gradient in zip(gradients.values(), single, strict=True):
            stored[number] = gradient
    return gradients


def _trimmed(batch: Batch) -> Batch:
    """The batch without the places that are padding in all its texts."""
    if batch.mask is None:
        return batch
    longest = int(batch.mask.sum(1).max())
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, :longest]
    return Batch(batch.inputs[:, :longest], labels, batch.mask[:, :longest])
