"""Share of the private tokens that were guessed, by position and as a set, and of classes."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsim.errors import ConfigError
from fedsim.metrics.base import Examples, Metric
from fedsim.metrics.text import TextMetric, compare

Tokens: TypeAlias = tuple[int, ...]
_PADDING = -1
"""In place of the id of a token, where a text has ended."""


@dataclass(frozen=True)
class TokenAccuracy(TextMetric):
    """Share of the private text's positions at which the guess has the same token."""

    name: ClassVar[str] = "token_accuracy"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]; tokens past the end of the private text are not penalised."""
        return compare(guess.tokens, truth.tokens, lambda g, t: same_places(g, t) / len(t))


@dataclass(frozen=True)
class PaddedTokenAccuracy(TextMetric):
    """Share of all places, special tokens and padding included, at which the guess is right.

    The accuracy of Wu et al. 2022 ("Learning To Invert"), whose texts are padded to one length.
    Padding is easily told, so a short text scores high; ``token_accuracy`` counts words alone.
    """

    name: ClassVar[str] = "padded_token_accuracy"
    title: ClassVar[str] = "token accuracy with padding"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]; 0 where nothing was guessed."""
        ours, theirs = (_padded(side, truth.places) for side in (guess, truth))
        return compare(ours, theirs, lambda g, t: same_places(g, t) / len(t))


@dataclass(frozen=True)
class TokenPrecision(TextMetric):
    """Share of the distinct guessed tokens that occur in the private text."""

    name: ClassVar[str] = "token_precision"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return compare(guess.tokens, truth.tokens, lambda g, t: _both(g, t) / len(set(g)))


@dataclass(frozen=True)
class TokenRecall(TextMetric):
    """Share of the private text's distinct tokens that occur in the guess."""

    name: ClassVar[str] = "token_recall"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return compare(guess.tokens, truth.tokens, lambda g, t: _both(g, t) / len(set(t)))


@dataclass(frozen=True)
class BatchTokenPrecision(TextMetric):
    """Share of the distinct tokens guessed for a batch that occur in its private texts.

    The value is the same for every example. It ignores which sentence a token belongs to, which a
    sum of gradients does not reveal.
    """

    name: ClassVar[str] = "batch_token_precision"
    of_batch: ClassVar[bool] = True

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return compare(*_united(guess, truth), lambda g, t: _both(g, t) / len(set(g)))


@dataclass(frozen=True)
class BatchTokenRecall(TextMetric):
    """Share of the distinct tokens of a private batch that were guessed for the batch.

    The value is the same for every example, as for ``batch_token_precision``.
    """

    name: ClassVar[str] = "batch_token_recall"
    of_batch: ClassVar[bool] = True

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return compare(*_united(guess, truth), lambda g, t: _both(g, t) / len(set(t)))


@dataclass(frozen=True)
class ExactMatch(TextMetric):
    """1 if the guess has exactly the private text's tokens in the same order, else 0."""

    name: ClassVar[str] = "exact_match"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """0 or 1."""
        return compare(guess.tokens, truth.tokens, lambda g, t: float(g == t))


def same_places(guess: Tokens, truth: Tokens) -> int:
    """Number of positions at which both texts have the same token."""
    return sum(ours == theirs for ours, theirs in zip(guess, truth, strict=False))


def _padded(side: Examples, places: int) -> list[Tokens]:
    """The ids at all places, special tokens included; none for a text without tokens."""
    ids, mask = side.batch.inputs, side.batch.mask
    ids = ids if mask is None else ids.where(mask == 1, _PADDING)
    ids = pad(ids, (0, places - ids.shape[1]), value=_PADDING)
    return [tuple(row) if text else () for row, text in zip(ids.tolist(), side.tokens, strict=True)]


def _both(guess: Tokens, truth: Tokens) -> int:
    return len(set(guess) & set(truth))


def _united(guess: Examples, truth: Examples) -> tuple[list[Tokens], list[Tokens]]:
    """Distinct tokens of the whole batch on either side, repeated for each private text."""
    ours, theirs = (
        tuple(sorted({token for text in side.tokens for token in text})) for side in (guess, truth)
    )
    return [ours] * len(truth.tokens), [theirs] * len(truth.tokens)


@dataclass(frozen=True)
class LabelAccuracy(Metric):
    """1 if the guessed class is the private one, else 0; -1 stands for no guess."""

    name: ClassVar[str] = "label_accuracy"
    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"
    modality: ClassVar[Literal["image", "text", "any"]] = "any"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """0 or 1.

        Raises:
            ConfigError: the labels are not classes, as in a language model.
        """
        guessed, private = guess.batch.labels, truth.batch.labels
        for owner, labels in (("guess", guessed), ("truth", private)):
            if labels.ndim != 1:
                raise ConfigError(
                    f"label_accuracy: the {owner} has labels of shape {tuple(labels.shape)}, not "
                    "one class per example. Leave this metric out for a language model."
                )
        return ((guessed == private) & (guessed >= 0)).to(torch.float64)
