"""Whether the client's steps make the update of a guess, or noise explains what it leaves of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom, chi2
from torch import Tensor, nn

from attacks.observed.declared import declared, granted_noise
from attacks.observed.readings import read
from attacks.proofs import verdict
from attacks.proofs.replayed_steps import Unrolled, prove
from attacks.proofs.verdict import P_VALUE
from attacks.proofs.whiteness import chance, edge, shares
from attacks.tokens.layout import batch_of
from fedsim.knowledge import MULTIPLES
from fedsim.models.embeddings import embedding_names
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

Lines = Sequence[Sequence[int]]
_CONSISTENCY_RIVALS = 8
"""Sentences that differ from a guess in one word, which noise must not explain."""
_STRAY_ENTRIES = 1e-3
"""Share of a true gradient's entries that may be out of their bounds."""
_FEWEST_ENTRIES = 256
"""Entries of a weight that were sent, below which nothing is told from them."""
_CLEAR_SIGN = 0.01
"""Size of an entry whose sign rounding cannot change, in units of a tensor's rms."""
_GRADIENT_ROUNDING = 1e-4
"""Error of an entry of a float32 gradient, in the same units."""
_SHARP_WIDTH = 0.1
"""Largest relative width of the bounds of an entry by which a scale is fitted."""
_LIVING_TENSOR = 1e-3
"""Rms of a tensor that is more than rounding, as a share of the median one's."""
_PIXEL = 0.1
"""By how much rivals of a picture differ from it in one pixel, in [0, 1]. Guesses of 49 dB and more
are consistent with it, those of 46 dB and less not; half of it moves both up by 6 dB, twice of it
down."""
_GRANTED_NOISE = 0.06
"""Largest difference of measured from granted noise, as a share."""


def support(
    observation: Observation,
    task: TextTask,
    network: nn.Module,
    lines: Lines,
    labels: Sequence[int],
) -> Certificate:
    """What the client's steps on the sentences, or their gradient, prove of them.

    ``consistent`` if the update is what a client with these sentences and no near other sends. The
    rivals differ from the guess in one word, each the nearest in embedding.

    Args:
        observation: of any optimizer and defense.
        task: defines the loss.
        network: as broadcast, in float32 and eval mode.
        lines: the sentences of the whole batch.
        labels: their classes, -1 where not known; always -1 for a language model.
    """
    unrolled = Unrolled.of(observation, task, network)
    if unrolled is not None and (proof := unrolled.proof(lines)).holds:
        return verdict.certificate(proof)
    test = Consistency.of(observation, task, network)
    if test is None or not lines or min(map(len, lines)) < 2:
        return "guess"
    count = observation.knowledge.num_examples
    if count is not None and count != len(lines):
        return "guess"
    given = _known(labels, task)
    best = max(given, key=lambda labelling: test.p_value(lines, labelling), default=None)
    if best is None:
        return "guess"
    rivals = (test.p_value(rival, best, rival=True) for rival in _rivals(lines, task, network))
    return verdict.support(test.p_value(lines, best), rivals)


def picture_support(observation: Observation, task: Task, guess: Batch) -> Certificate:
    """``consistent`` if noise that the server knows explains a picture and no near other.

    The rivals are of other classes, or differ by a tenth in one pixel.

    Args:
        observation: of one example.
        task: defines the loss.
        guess: one picture ``(1, channel, height, width)`` and its target.
    """
    noise = granted_noise(observation)
    if not noise:
        return "guess"
    sent = [k for k, _ in task.blank().named_parameters() if k in observation.received]
    update = observation.update(sent)
    size = float(sum(value.square().sum() for value in update.values())) ** 0.5
    entries = sum(value.numel() for value in update.values())

    def p_value(batch: Batch) -> float:
        double = replace(batch, inputs=batch.inputs.double())
        left = prove(observation, task, double).error * size
        return float(chi2.sf((left / noise) ** 2, entries))

    return verdict.support(p_value(guess), map(p_value, _picture_rivals(guess, task)))


def _picture_rivals(guess: Batch, task: Task) -> Iterator[Batch]:
    if task.spec.target == "class" and not guess.labels.is_floating_point():
        for step in range(1, task.spec.num_classes):
            yield replace(guess, labels=(guess.labels + step) % task.spec.num_classes)
    flat = guess.inputs.flatten()
    for place in torch.linspace(0, len(flat) - 1, _CONSISTENCY_RIVALS).long():
        other = flat.clone()
        other[place] += _PIXEL if other[place] < 0.5 else -_PIXEL
        yield replace(guess, inputs=other.view_as(guess.inputs))


@dataclass(frozen=True)
class Consistency:
    """Compares gradients of guesses with an update.

    Entries that were rounded, pruned or reduced to signs bound those of the gradient, and next to
    none may be out of bounds. Entries under noise leave a residual that must be white where a wrong
    word would show. The word table, the largest tensor by far, is left out.

    Attributes:
        task: defines the loss.
        network: as broadcast; its parameters that were not sent need no gradient.
        bounds: what is known of each tensor.
        noise: granted standard deviation, which rounding may exceed; None if not known.
        step: known scale of a gradient in the update; None if not known.
        separate: whether each example has a scale of its own, since its gradient was clipped.
    """

    task: TextTask
    network: nn.Module
    bounds: dict[str, EntryBounds]
    noise: float | None
    step: float | None
    separate: bool

    @classmethod
    def of(cls, observation: Observation, task: TextTask, network: nn.Module) -> Consistency | None:
        """None where no guess reproduces the update: several steps, dropout, a cohort."""
        known = observation.knowledge
        weights = observation.kind != "gradient"
        if known.cohort > 1 or known.train_mode or (weights and known.local_steps != 1):
            return None
        word = embedding_names(network).word
        names = []
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in observation.received)
            if name in observation.received and name != word:
                names.append(name)
        bounds = entry_bounds(observation, names)
        if not bounds:
            return None
        chain = None if known.defense is None else declared(observation)
        rescaled = weights and known.optimizer not in MULTIPLES
        return cls(
            task,
            network,
            bounds,
            None if rescaled else granted_noise(observation),
            known.learning_rate if weights else 1.0,
            chain is not None and chain.per_example,
        )

    def p_value(self, lines: Lines, labels: Sequence[int], *, rival: bool = False) -> float:
        """Of the hypothesis that the batch holds these sentences.

        Args:
            lines: the sentences of the whole batch.
            labels: their classes; -1 for a language model.
            rival: leave out the tests that are slow and add little against a wrong word.
        """
        parts = [[i] for i in range(len(lines))] if self.separate else [range(len(lines))]
        gradients = [self._gradient([lines[i] for i in k], [labels[i] for i in k]) for k in parts]
        guess = gradients[0] if len(gradients) == 1 else self._combined(gradients)
        if guess is None:
            return 0.0
        noisy = self.noise != 0 and all(bounds.complete for bounds in self.bounds.values())
        exact = 0.0 if rival and noisy else self._bounded(guess)
        if exact >= P_VALUE or not noisy:
            return exact
        return self._white(guess, sum(map(len, lines)), rival)

    def _gradient(self, lines: Lines, labels: Sequence[int]) -> Tensors:
        device = next(self.network.parameters()).device
        batch = batch_of(lines, self.task, labels).to(device)
        gradient = self.task.gradient(self.network, batch)
        return {name: gradient[name].float().cpu() for name in self.bounds}

    def _combined(self, gradients: list[Tensors]) -> Tensors | None:
        """The gradients of the examples at their best scales; None if one is not positive."""
        flat = torch.stack(
            [torch.cat([part[n].flatten() for n in self.bounds]) for part in gradients]
        )
        seen = torch.cat([part.value.flatten() for part in self.bounds.values()])
        # On the CPU, as CUDA's only solver assumes full rank, which equal sentences have not.
        table, right = (flat @ flat.T).double().cpu(), (flat @ seen).double()[:, None].cpu()
        scales = torch.linalg.lstsq(table, right).solution[:, 0]
        if bool((scales <= 0).any()):
            return None
        pairs = [(float(s), part) for s, part in zip(scales, gradients, strict=True)]
        return {
            name: torch.stack([s * part[name] for s, part in pairs]).sum(0) for name in self.bounds
        }

    def _bounded(self, guess: Tensors) -> float:
        """The p-value of the number of entries out of bounds, at the better of two scales."""
        living = self._living(guess)
        if not living:  # a line of one token predicts nothing
            return 0.0
        fitted = scale_of({name: self.bounds[name] for name in living}, guess)
        most = 0.0
        for scale in {self.step, fitted} - {None}:
            if scale is None or (scale <= 0 and not all(b.signs for b in self.bounds.values())):
                continue
            pairs = [self.bounds[name].compare(guess[name], scale) for name in living]
            wrong, total = (sum(part) for part in zip(*pairs, strict=True))
            if total:
                most = max(most, float(binom.sf(wrong - 1, total, _STRAY_ENTRIES)))
        return most

    def _white(self, guess: Tensors, tokens: int, rival: bool) -> float:
        """The p-value of the residual as white noise, at the best scale."""
        names = self._living(guess)
        seen = {name: self.bounds[name].value for name in names}
        both = sum(float((guess[n] * seen[n]).sum(dtype=torch.float64)) for n in names)
        square = sum(float(guess[n].square().sum(dtype=torch.float64)) for n in names)
        if both <= 0:
            return 0.0
        parts, edges = [], []
        for name in names:
            fitted = both / square * guess[name]
            residual = seen[name] - fitted
            part = shares(residual, fitted, tokens)
            if part is None:
                continue
            if self.noise and abs(part.noise / self.noise - 1) > _GRANTED_NOISE:
                return 0.0
            parts.append(part)
            if not rival:
                edges.append(edge(residual, part.noise))
        return chance(parts, edges)

    def _living(self, guess: Tensors) -> list[str]:
        """Names of the tensors whose gradient exceeds rounding."""
        sizes = {name: float(value.square().mean().sqrt()) for name, value in guess.items()}
        middle = float(torch.tensor(list(sizes.values())).median())
        return [name for name, size in sizes.items() if size > _LIVING_TENSOR * middle]


def _known(labels: Sequence[int], task: TextTask) -> Iterator[list[int]]:
    """The labels; for a single example of unknown class, each class in turn."""
    classes = task.spec.num_classes
    if not classes or min(labels) >= 0:
        yield list(labels)
    elif len(labels) == 1:
        yield from ([label] for label in range(classes))


def _rivals(lines: Lines, task: TextTask, network: nn.Module) -> Iterator[list[list[int]]]:
    """Batches with one word replaced by the nearest other, at places spread over all lines."""
    table: Tensor = network.get_input_embeddings().weight.detach()  # type: ignore[operator]
    special = set(task.spec.special_ids)
    places = [
        (row, place)
        for row, line in enumerate(lines)
        for place, token in enumerate(line)
        if token not in special and (place + 1 < len(line) or task.spec.num_classes)
    ]
    for index in torch.linspace(0, len(places) - 1, min(_CONSISTENCY_RIVALS, len(places))):
        row, place = places[round(float(index))]
        distance = (table - table[lines[row][place]]).norm(dim=1)
        distance[[lines[row][place], *special]] = torch.inf
        other = [list(line) for line in lines]
        other[row][place] = int(distance.argmin())
        yield other


@dataclass(frozen=True)
class EntryBounds:
    """Entry-wise bounds of one tensor of the update, in float32.

    Attributes:
        value: as received.
        lower: lower bounds; minus infinity where nothing is known.
        upper: upper bounds.
        signs: whether only the signs were sent, so that the scale is lost.
        complete: whether every entry was sent.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    signs: bool
    complete: bool

    def compare(self, guess: Tensor, scale: float) -> tuple[int, int]:
        """Entries of ``scale * guess`` out of bounds, and entries that could have been.

        Rounding at the client is allowed for. Signs tell only where the guess is far from zero.
        """
        size = float(guess.square().mean().sqrt())
        if self.signs:
            clear = guess.abs() > _CLEAR_SIGN * size
            wrong = (guess < self.lower) | (guess > self.upper)
            return int((wrong & clear).sum()), int((clear & (self.value != 0)).sum())
        guess, margin = scale * guess, _GRADIENT_ROUNDING * scale * size
        wrong = (guess < self.lower - margin) | (guess > self.upper + margin)
        telling = self.lower.isfinite() | self.upper.isfinite()
        return int((wrong & telling).sum()), int(telling.sum())

    @property
    def sharp(self) -> Tensor:
        """Entries that rounding has changed by little, by which a scale is fitted."""
        return (self.upper - self.lower < _SHARP_WIDTH * self.value.abs()) & (self.value != 0)


def entry_bounds(observation: Observation, names: Sequence[str]) -> dict[str, EntryBounds]:
    """The bounds of each weight of which enough entries were sent."""
    bounds: dict[str, EntryBounds] = {}
    optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
    for name, value in observation.update(names).items():
        sent = int((value != 0).sum())
        if value.dim() == 2 and value.isfinite().all() and sent >= _FEWEST_ENTRIES:
            bounds[name] = bounds_of(value, observation.received[name], optimizer)
    return bounds


def bounds_of(value: Tensor, received: Tensor, optimizer: str | None) -> EntryBounds:
    """The bounds of one weight: ``value`` of the update, as it came over the wire."""
    seen = read(value, optimizer)
    half = 0.0 if seen.signs else seen.half_step(received)
    # What was pruned is not bounded here: so many zeros would hide what is wrong elsewhere.
    low = torch.where(seen.sent, seen.lower - half, -torch.inf)
    high = torch.where(seen.sent, seen.upper + half, torch.inf)
    return EntryBounds(value.float(), low.float(), high.float(), seen.signs, seen.complete)


def scale_of(bounds: Mapping[str, EntryBounds], guess: Mapping[str, Tensor]) -> float:
    """The multiple of the guess that is nearest to the entries which arrived nearly unrounded."""
    both = square = 0.0
    for name, bound in bounds.items():
        if not bound.signs:
            sharp = bound.sharp
            mine = guess[name][sharp].double()
            both += float(mine @ bound.value[sharp].double())
            square += float(mine @ mine)
    return both / square if square else 0.0
