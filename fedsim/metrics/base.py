"""What a score is: a number for each private example, from aligned guesses and truths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedsim.types import Batch


@dataclass(frozen=True)
class Examples:
    """Examples as the metrics see them; once aligned, row ``i`` of a guess is that of the truth.

    Attributes:
        batch: the tensors.
        words: per example the text without special tokens; empty for images.
        words_special: per example the text with special tokens (LAMP's convention).
        tokens: per example the token ids without special tokens; empty for images.
        listed: of an aligned guess, the texts without special tokens as the attack listed them,
            those among them that no example was left for; None where nothing was aligned.
    """

    batch: Batch
    words: tuple[str, ...] = ()
    words_special: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    listed: tuple[str, ...] | None = None

    @property
    def all_words(self) -> tuple[str, ...]:
        """The texts in the attack's own order, spare ones too; fewer or more than the examples."""
        return self.words if self.listed is None else self.listed


@dataclass(frozen=True)
class Metric(ABC):
    """One number per example.

    Attributes:
        name: as in the rows.
        title: in tables and figures; empty for the name with spaces.
        unit: ``1`` for a ratio in [0, 1], ``dB``, ``squared pixel``, ``points``.
        attacker_wants: which direction is the more leaked one.
        modality: what the metric applies to.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    unit: ClassVar[str]
    attacker_wants: ClassVar[Literal["higher", "lower"]]
    modality: ClassVar[Literal["image", "text", "any"]]

    @abstractmethod
    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """Float64 ``(batch,)``; row ``i`` compares guess ``i`` with truth ``i``."""

    def available(self) -> str:
        """Empty, or the reason why the metric cannot be computed on this machine."""
        return ""
