"""A batch of a language model chosen from a tree of prefixes, by a regression of the update."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.factored import Products
from attacks.observed.readings import read
from attacks.observed.spectrum import completed, spectrum
from attacks.proofs.gradient_match import GradientMatcher
from attacks.tokens.prefix_search import END_GAIN
from fedsim.store.capture import Observation
from fedsim.types import Batch

_FIT_ERROR = 0.05  # error of a gradient for other reasons than noise, as a share of its rms
_WEIGHT_ERROR = 0.2  # error of a prefix's weight in the batch for such reasons, as a share
_SIGN_ERROR = 0.3  # the same where signs alone were sent
_WEIGHT_NOISE = 4.0  # factor on the variance that noise alone gives that weight
_LEAST_SHARE = 0.03  # weight of a prefix, as a share of a true one's, below which it is forgotten
_LEAST_LACK = 1.3  # what a chosen prefix's weight lacks, in its errors, from which it is doubted

Prefix = tuple[int, ...]

_LINES = 32  # in one forward and backward pass


@dataclass(frozen=True)
class Supported:
    """The beginning of a sentence that the update supports.

    Attributes:
        ids: its tokens.
        whole: whether the end of the sentence is one of them.
        open: where to search on: itself unless it is a whole sentence, and what precedes its least
            certain token unless all are certain.
    """

    ids: Prefix
    whole: bool
    open: tuple[Prefix, ...]


@dataclass(frozen=True)
class _Layer:
    """What was received of a layer's weight ``(a, b)``, its noise, and each prefix's factors."""

    name: str
    seen: Tensor
    noise: float
    left: list[Tensor]
    right: list[Tensor]

    def products(self) -> tuple[Tensor, Tensor]:
        """Inner products of the prefixes' gradients, and with what was received."""
        inputs, slopes = torch.cat(self.left), torch.cat(self.right)
        gram = (inputs @ inputs.T) * (slopes @ slopes.T)
        return gram, ((inputs @ self.seen) * slopes).sum(1)


class PrefixFit:
    """Tells prefixes of private sentences from others by the weights that explain the update.

    The loss of a causal model is a mean over tokens. In the layers behind the last attention, the
    gradient of each term has rank one and depends on the prefix and the next token alone:
    ``G = 1/T sum_p x_p d_p^T`` over all prefixes ``p`` of all sentences of the batch. Hence the
    weights of prefixes, the true among others, follow from non-negative least squares, whose
    products ``(x_p^T x_q) (d_p^T d_q)`` need no gradient of a weight. That of a prefix is ``1/T``,
    times the sentences that it begins, or zero.

    Attributes:
        match: the network and the update.
        end: id of the token that ends a sentence; None if none does.
        longest: most tokens of a sentence.
    """

    def __init__(
        self,
        match: GradientMatcher,
        observation: Observation,
        most: int,
        end: int | None,
        longest: int,
    ) -> None:
        """``most`` is the largest number of tokens of the batch."""
        self.match, self.end, self.longest = match, end, longest
        self._prefixes: list[Prefix] = []
        self._taken: set[Prefix] = set()
        self._layers = []
        optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
        for name in _local(match):
            seen = completed(read(match.update[name], optimizer), most).float()
            noise = spectrum(seen, most).noise
            self._layers.append(_Layer(name, seen, noise, [], []))

    @property
    def tells(self) -> bool:
        """Whether a layer behind the last attention was sent."""
        return bool(self._layers)

    def add(self, lines: Sequence[Sequence[int]]) -> None:
        """Take all prefixes of these lines that were not taken before."""
        new = {tuple(line) for line in lines if len(line) > 1} - self._taken
        self._taken |= new
        known = {line[:size] for line in new for size in range(2, len(line))}
        for length in sorted({len(line) for line in new - known}):
            lines_of_length = sorted(line for line in new - known if len(line) == length)
            for first in range(0, len(lines_of_length), _LINES):
                self._add(lines_of_length[first : first + _LINES])

    def _add(self, lines: Sequence[Prefix]) -> None:
        rows, places, count = [], [], len(lines[0]) - 1
        present = set(self._prefixes)
        for row, line in enumerate(lines):
            for place in range(count):
                prefix = line[: place + 2]
                if prefix not in present:
                    present.add(prefix)
                    self._prefixes.append(prefix)
                    rows.append(row)
                    places.append(place)
        if not rows:
            return
        factors = _factors(self.match, torch.tensor(lines))
        for layer in self._layers:
            inputs, slopes = factors[layer.name]
            layer.left.append(inputs[rows, places])
            layer.right.append(slopes[rows, places] * count)

    def _shares(self) -> tuple[Tensor, Tensor]:
        """How often each prefix occurs, and the variance of that, ``(prefix,)``."""
        grams, goals = [], []
        for layer in self._layers:
            gram, goal = layer.products()
            gain = 1.0
            if self.match.measure == "each":
                gain = float(layer.seen.norm() / gram.trace().sqrt())
            trust = 1 / (layer.noise**2 + _FIT_ERROR**2 * float(layer.seen.square().mean()))
            grams.append(trust * gain**2 * gram)
            goals.append(trust * gain * goal)
        gram, goal = torch.stack(grams).sum(0), torch.stack(goals).sum(0)
        weights = non_negative(gram, goal)
        strength = weights.square() * gram.diagonal()
        order = weights.argsort()
        half = int(torch.searchsorted(strength[order].cumsum(0), strength.sum() / 2))
        scale = float(weights[order[min(half, len(order) - 1)]])
        share = weights / max(scale, 1e-30)
        noise = _WEIGHT_NOISE / (scale**2 * gram.diagonal()).clamp(min=1e-30)
        error = _SIGN_ERROR if self.match.measure == "each" else _WEIGHT_ERROR
        return share, error**2 + noise

    def chosen(self, count: int) -> list[Supported]:
        """At most ``count`` beginnings of sentences, those first that are supported best.

        Forgets prefixes that explain nothing.
        """
        if not self._prefixes:
            return []
        share, spread = self._shares()
        remaining, chosen, supported = share.clone(), share > _LEAST_SHARE, []
        places = {prefix: place for place, prefix in enumerate(self._prefixes)}
        for _ in range(count):
            ratio = (2 * remaining.clamp(max=1) - 1) / (2 * spread)
            best = self._best(ratio.tolist())
            if best is None:
                break
            rows = [places[best[:size]] for size in range(2, len(best) + 1)]
            lack = (1 - share[rows]) / spread[rows].sqrt()
            weakest = int(lack.argmax())
            doubt = float(lack[weakest]) > _LEAST_LACK
            whole = best[-1] == self.end or len(best) >= self.longest
            begins = (best,) * (not whole) + (best[: weakest + 1],) * doubt
            supported.append(Supported(best, whole, begins))
            remaining[rows] -= 1
            chosen[rows] = True
        self._keep(chosen)
        return supported

    def _best(self, ratio: list[float]) -> Prefix | None:
        """The prefix of the largest total ratio, if that is positive."""
        best, most = None, 0.0
        total: dict[Prefix, float] = {}
        for prefix, gain in sorted(
            zip(self._prefixes, ratio, strict=True), key=lambda p: len(p[0])
        ):
            # The end of a sentence is foreseen, so that its gradient tells little.
            bonus = END_GAIN * (prefix[-1] == self.end)
            total[prefix] = total.get(prefix[:-1], 0.0) + gain + bonus
            if total[prefix] > most:
                best, most = prefix, total[prefix]
        return best

    def _keep(self, mask: Tensor) -> None:
        """Forget the other prefixes, but for those that begin one of these."""
        begun = {
            prefix[:size]
            for prefix, chosen in zip(self._prefixes, mask.tolist(), strict=True)
            if chosen
            for size in range(2, len(prefix) + 1)
        }
        places = [place for place, prefix in enumerate(self._prefixes) if prefix in begun]
        self._prefixes = [self._prefixes[place] for place in places]
        for layer in self._layers:
            layer.left[:] = [torch.cat(layer.left)[places]]
            layer.right[:] = [torch.cat(layer.right)[places]]


def non_negative(gram: Tensor, goal: Tensor, rounds: int = 600) -> Tensor:
    """Non-negative least squares from the normal equations, by accelerated projected descent."""
    if not gram.any():  # as behind adapters that have not left zero yet
        return torch.zeros_like(goal)
    size = gram.diagonal().sqrt().clamp(min=1e-20)
    gram, goal = gram / size[:, None] / size, goal / size
    top = torch.ones_like(goal)
    for _ in range(30):
        top = gram @ top
        top /= top.norm()
    step = 0.95 / float(top @ (gram @ top))
    weights = torch.zeros_like(goal)
    ahead, speed = weights, 1.0
    for _ in range(rounds):
        new = (ahead - step * (gram @ ahead - goal)).clamp(min=0)
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        if float((new - weights) @ (ahead - new)) > 0:  # too fast (O'Donoghue and Candes 2015)
            faster, ahead = 1.0, new
        else:
            ahead = new + (speed - 1) / faster * (new - weights)
        weights, speed = new, faster
    return weights / size


def _factors(
    match: GradientMatcher, lines: Tensor, labels: Tensor | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """The factors ``(line, token, a)`` and ``(line, token, b)`` of each weight's gradient."""
    lines = lines.to(match.table.device)
    batch = Batch(lines, lines if labels is None else labels, torch.ones_like(lines))
    groups = match.factored(match.table[lines][:, None], batch, create_graph=False)
    return {
        name: (inputs, slopes)
        for group in groups
        if isinstance(group, Products)
        for name, inputs, slopes in zip(group.names, group.left, group.right, strict=True)
        if inputs.shape[1] == lines.shape[1]
    }


def _local(match: GradientMatcher) -> list[str]:
    """Weights behind the last attention, where a token's gradient does not depend on later ones."""
    line = torch.arange(2, 8)
    other = line.flip(0)
    other[:-1] = line[:-1]
    factors, other_factors = (
        _factors(match, line[None], targets[None]) for targets in (line, other)
    )
    return [
        name
        for name, (inputs, slopes) in factors.items()
        if name in match.update
        and name in match.factored.names
        and torch.equal(inputs[0, :-2], other_factors[name][0][0, :-2])
        and torch.equal(slopes[0, :-2], other_factors[name][1][0, :-2])
    ]
