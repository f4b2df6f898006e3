"""Interface of a metric: one number for each private example, from aligned guesses and truths."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedsim.columns import Column
from fedsim.types import Batch


@dataclass(frozen=True)
class Examples:
    """Examples as metrics see them; row i of an aligned guess corresponds to row i of the truth.

    Attributes:
        batch: the tensors.
        words: text of each example without special tokens; empty for images.
        words_special: text of each example with special tokens (LAMP's convention).
        tokens: token ids of each example without special tokens; empty for images.
        places: length in tokens to which the task's texts are cut; 0 for images.
        listed: for an aligned guess, all guessed texts without special tokens in the order in which
            the attack listed them, including those not assigned to an example; None if nothing was
            aligned.
        columns: of private rows of a table; else empty.

    Example:
        A text as text metrics see it:

        >>> import torch
        >>> from fedsim.metrics import METRICS
        >>> from fedsim.metrics.base import Examples
        >>> from fedsim.types import Batch
        >>> def text(words):
        ...     ids = torch.ones(1, 3, dtype=torch.int64)
        ...     return Examples(Batch(ids, torch.tensor([0]), mask=ids), words=(words,))
        >>> METRICS["rouge1"]().score(text("call me now"), text("call me later")).round(decimals=2)
        tensor([0.6700], dtype=torch.float64)
    """

    batch: Batch
    words: tuple[str, ...] = ()
    words_special: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    places: int = 0
    listed: tuple[str, ...] | None = None
    columns: tuple[Column, ...] = ()

    @property
    def all_words(self) -> tuple[str, ...]:
        """Texts in the attack's own order, unassigned ones included; their number may differ."""
        return self.words if self.listed is None else self.listed


@dataclass(frozen=True)
class Metric(ABC):
    """A score for each example of a batch.

    Attributes:
        name: name of the metric in result rows and in the experiment file.
        title: its name in tables and figures; empty for the name with spaces.
        unit: ``1`` for a ratio in [0, 1], ``dB``, ``squared pixel``, ``points``.
        attacker_wants: the direction in which more leaks.
        modality: the inputs that the metric applies to.
        smallest: side in pixels of the smallest image that it applies to.
        of_batch: whether all examples of a batch have one value, that of the batch.

    Example:
        >>> import torch
        >>> from fedsim.metrics import METRICS
        >>> from fedsim.metrics.base import Examples
        >>> from fedsim.types import Batch
        >>> grey = Examples(Batch(torch.full((1, 3, 8, 8), 0.5), torch.tensor([0])))
        >>> black = Examples(Batch(torch.zeros(1, 3, 8, 8), torch.tensor([0])))
        >>> METRICS["mse"]().score(grey, black).tolist()
        [0.25]
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    unit: ClassVar[str]
    attacker_wants: ClassVar[Literal["higher", "lower"]]
    modality: ClassVar[Literal["image", "text", "table", "any"]]
    smallest: ClassVar[int] = 1
    of_batch: ClassVar[bool] = False

    @abstractmethod
    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """Float64 ``(batch,)``; row i compares guess i with truth i."""

    def available(self) -> str:
        """Reason why the metric cannot be computed on this machine; empty if it can."""
        return ""
