"""A network that turns the features of an update into the examples behind it."""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch

_IGNORED = -1
"""The class of a place that does not count in the loss."""
_END = 0
"""The class of the place after the last token; higher classes are words."""


@dataclass(frozen=True)
class Pixels:
    """Images in [0, 1].

    Attributes:
        shape: ``(channel, height, width)``.
    """

    shape: tuple[int, ...]

    def layers(self, width: int, size: int) -> nn.Sequential:
        """From ``(update, width)`` to guesses ``(update, example, pixel)``."""
        values = math.prod(self.shape)
        parts = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, size * values), nn.Sigmoid()
        return nn.Sequential(*parts, nn.Unflatten(1, (size, values)))

    def truths(self, batch: Batch) -> Tensor:
        """Pixels ``(row, pixel)``."""
        return batch.inputs.flatten(1)

    def costs(self, guesses: Tensor, truths: Tensor) -> Tensor:
        """Mean squared error of each pair, ``(update, guess, truth)``."""
        return (guesses[:, :, None] - truths[:, None]).square().mean(-1)

    def read(self, guesses: Tensor, lengths: tuple[int, ...] | None) -> Batch:
        """The images of ``guesses (example, pixel)``, without labels."""
        del lengths
        images = guesses.clamp(0, 1).unflatten(1, self.shape)
        return Batch(images, torch.full((len(images),), -1))


@dataclass(frozen=True)
class TokenOutput:
    """Texts of at most ``positions`` tokens; a place after the last one ends them.

    Attributes:
        words: ids that can be guessed, int64 ``(word,)``: those of the auxiliary rows, since other
            words have no examples to learn from.
        channels: values at each position, which a layer shared by all positions maps to a word.
    """

    positions: int
    words: Tensor
    channels: int

    def layers(self, width: int, size: int) -> nn.Sequential:
        """From ``(update, width)`` to logits ``(update, example, position, class)``."""
        return nn.Sequential(
            nn.Linear(width, size * self.positions * self.channels),
            nn.ReLU(),
            nn.Unflatten(1, (size, self.positions, self.channels)),
            nn.Linear(self.channels, 1 + len(self.words)),
        )

    def truths(self, batch: Batch) -> Tensor:
        """Classes ``(row, position)``; padding after the end is ignored, and so are other words."""
        batch = unmasked(batch)
        assert batch.mask is not None
        place = torch.searchsorted(self.words, batch.inputs).clamp(max=len(self.words) - 1)
        known = (self.words[place] == batch.inputs) & (batch.mask == 1)
        classes = (1 + place).where(known, _IGNORED)
        room = self.positions - classes.shape[1]
        classes = nn.functional.pad(classes, (0, room), value=_IGNORED)
        lengths = batch.mask.sum(1)
        places = torch.arange(self.positions, device=classes.device)
        return classes.where(places != lengths[:, None], _END)

    def costs(self, guesses: Tensor, truths: Tensor) -> Tensor:
        """Mean cross-entropy over the tokens of each pair, ``(update, guess, truth)``."""
        updates, size, positions, _ = guesses.shape
        device = guesses.device
        update = torch.arange(updates, device=device)[:, None, None, None]
        guess = torch.arange(size, device=device)[:, None, None]
        position = torch.arange(positions, device=device)
        classes, counted = truths.clamp(min=0)[:, None], (truths != _IGNORED)[:, None]
        losses = -guesses.log_softmax(-1)[update, guess, position, classes]
        return losses.where(counted, 0).sum(-1) / counted.sum(-1).clamp(min=1)

    def read(self, guesses: Tensor, lengths: tuple[int, ...] | None) -> Batch:
        """The texts of ``guesses (example, position, class)``, without labels.

        A text ends at the first place where the end class is the likeliest. Granted ``lengths`` are
        assigned to the texts in the order of these lengths.
        """
        classes = guesses.argmax(-1)
        ends = torch.cat([classes, classes.new_full((len(classes), 1), _END)], 1) == _END
        length = ends.int().argmax(1)
        if lengths is not None:
            length[length.argsort(stable=True)] = torch.tensor(sorted(lengths)).to(length)
        words = guesses[..., 1:].argmax(-1)
        mask = torch.arange(self.positions, device=length.device) < length[:, None]
        inputs = self.words[words].where(mask, 0)
        return Batch(inputs, torch.full((len(guesses),), -1), mask.to(torch.int64))


def words_of(batch: Batch) -> Tensor:
    """The token ids in a batch, sorted."""
    batch = unmasked(batch)
    assert batch.mask is not None
    words: Tensor = batch.inputs[batch.mask == 1].unique()
    return words


Output: TypeAlias = Pixels | TokenOutput
ENUMERATED = 4
"""Largest batch whose orders are all tried, on the device."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which a feature is cut off."""


class Inverter(nn.Module):
    """``Linear-ReLU-Linear-ReLU-Linear`` on standardised features (Wu et al. 2022).

    They do not standardise.

    Attributes:
        size: examples of an update.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, width: int, size: int, output: Output) -> None:
        super().__init__()
        self.size, self.output = size, output
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))
        self.first = nn.Linear(features, width)
        self.rest = output.layers(width, size)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``."""
        mean, deviation = standard(features)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, example, ...)``."""
        hidden = self.first(scaled(features, self.mean, self.deviation)).relu()
        guesses: Tensor = self.rest(hidden)
        return guesses


def standard(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of ``features (update, feature)``; 1 for one that hardly varies."""
    deviation = features.std(0)
    return features.mean(0), torch.where(deviation > 1e-6 * deviation.max(), deviation, 1)


def scaled(features: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Deviations from the mean, cut off where they are far."""
    return ((features - mean) / deviation).clamp(-_FARTHEST, _FARTHEST)


def assigned(costs: Tensor) -> Tensor:
    """The cost of the best one-to-one assignment of each update, as a mean over its examples."""
    size = costs.shape[1]
    guess = torch.arange(size, device=costs.device)
    if size <= ENUMERATED:
        orders = torch.tensor(list(permutations(range(size))), device=costs.device)
        return costs[:, guess, orders].mean(-1).amin(1)
    from scipy.optimize import linear_sum_assignment

    columns = [linear_sum_assignment(matrix)[1] for matrix in costs.detach().cpu().numpy()]
    order = torch.stack([torch.from_numpy(column) for column in columns]).to(costs.device)
    return costs.gather(2, order[:, :, None])[:, :, 0].mean(1)
