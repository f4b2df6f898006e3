"""How close a guess is to the private examples, for who holds them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.audit.guess import Guess
from fedsim.build import registry
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.match import align, match, nothing
from fedsim.records import MAIN
from fedsim.tasks.base import Task
from fedsim.types import Batch, Rows

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = {"image": ("psnr", "ssim", "mse"), "text": ("rouge1", "rougeL", "exact_match")}


@dataclass(frozen=True)
class Scores:
    """Each metric on each private example, which the guesses were assigned to.

    Attributes:
        attack: name of the attack.
        values: metric -> one value for each private example; see ``fedsim list metrics``.
        certified: whether the guess at each example is certified.
    """

    attack: str
    values: dict[str, tuple[float, ...]]
    certified: tuple[bool, ...]
    _aligned: Examples = field(repr=False, compare=False)
    _truth: Examples = field(repr=False, compare=False)

    def mean(self, metric: str) -> float:
        """Mean of a metric over the examples that it applies to; NaN if there are none.

        Raises:
            ConfigError: it was not computed.
        """
        if metric not in self.values:
            raise ConfigError(f"{metric!r}: not scored. Known: {', '.join(self.values)}.")
        values = [value for value in self.values[metric] if not math.isnan(value)]
        return sum(values) / len(values) if values else math.nan

    def frame(self) -> pd.DataFrame:
        """One row for each private example, one column for each metric."""
        import pandas as pd

        return pd.DataFrame({"certified": self.certified, **self.values})

    def __str__(self) -> str:
        modality = "text" if self._truth.words else "image"
        shown = [name for name in _SHOWN[modality] if name in self.values]
        means = ", ".join(f"{name} {self.mean(name):.3g}" for name in shown)
        return f"{self.attack}: {means} on {len(self.certified)} examples"

    def _repr_html_(self) -> str:
        """Private pictures over their reconstructions, or texts with what was recovered."""
        from experiments.audit.rich import diff, grid, table

        head = f"<p>{html.escape(str(self))}</p>"
        if self._truth.words:
            pairs = zip(self._truth.words, self._aligned.words, strict=True)
            return head + table(
                [(diff(truth, guess), html.escape(guess)) for truth, guess in pairs]
            )
        psnr = [f"{value:.1f} dB" for value in self.values.get(MAIN["image"], ())]
        return head + grid(self._truth.batch.inputs, ()) + grid(self._aligned.batch.inputs, psnr)


def score(guess: Guess, truth: Any) -> Scores:  # noqa: ANN401
    """Compare a guess with the private examples, each with the guess that is closest overall.

    Args:
        guess: of ``fedsim.attack``.
        truth: texts; images ``(example, channel, height, width)``, in [0, 1] or uint8; or a pair of
            these and their classes.

    Raises:
        ConfigError: the truth is of another kind or shape.
    """
    if not isinstance(guess, Guess):
        raise ConfigError(
            f"score: got {type(guess).__name__}. Pass a guess: fedsim.attack(victim, ...)."
        )
    private = truth if isinstance(truth, Examples) else _examples(guess.task, truth)
    return scores_of(guess.attack, guess.examples, guess.confidence, private, guess.task)


def scores_of(
    attack: str, guessed: Examples, confidence: Sequence[str], private: Examples, task: Task
) -> Scores:
    """Scores of guessed examples; see ``score``."""
    modality = task.modality
    if len(guessed.batch):
        assignment = match(guessed, private, modality)
        aligned = align(guessed, assignment, modality)
    else:
        assignment, aligned = (None,) * len(private.batch), nothing(private, modality)
    values = {}
    for name, cls in registry(METRICS, "fedsim.metrics").items():
        metric = cls()
        if metric.modality not in ("any", modality) or metric.available():
            continue
        if name == "label_accuracy" and (
            not task.spec.num_classes or private.batch.labels.min() < 0
        ):
            continue
        try:
            values[name] = tuple(metric.score(aligned, private).tolist())
        except ConfigError:  # such as pictures that are too small for SSIM
            continue
    sure = [place is not None and bool(confidence) for place in assignment]
    certified = [
        known and confidence[place or 0] == "certified"
        for known, place in zip(sure, assignment, strict=True)
    ]
    return Scores(attack, values, tuple(certified), aligned, private)


def _examples(task: Task, truth: Any) -> Examples:  # noqa: ANN401
    inputs, labels = truth if isinstance(truth, tuple) and len(truth) == 2 else (truth, None)
    if task.modality == "image":
        images = _images(inputs, task.spec.input_shape)
        return task.examples(Batch(images, _labels(labels, len(images))))
    texts = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError("truth: this model takes text. Pass truth=[...], a list of strings.")
    rows = Rows(texts, _labels(labels, len(texts)), tuple(range(len(texts))))
    return task.examples(task.encode(rows))


def _labels(labels: Any, count: int) -> Tensor:  # noqa: ANN401
    found = torch.full((count,), -1) if labels is None else torch.as_tensor(labels)
    if found.shape != (count,):
        raise ConfigError(
            f"truth: {count} examples, and {found.numel()} labels. Pass one for each."
        )
    return found


def _images(images: Any, shape: tuple[int, ...]) -> Tensor:  # noqa: ANN401
    try:
        found = torch.as_tensor(images)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError("truth: this model takes images. Pass a tensor of them.") from None
    found = found.float() / 255 if found.dtype == torch.uint8 else found.float()
    found = found[None] if found.dim() == 3 else found
    if found.dim() != 4 or tuple(found.shape[1:]) != shape:
        raise ConfigError(
            f"truth: the images have the shape {tuple(found.shape)}, and the model takes "
            f"(example, {', '.join(map(str, shape))}). Pass the clients' images."
        )
    if found.min() < 0 or found.max() > 1:
        raise ConfigError(
            f"truth: pixels from {found.min():.2f} to {found.max():.2f}. Pass them in [0, 1], and "
            "normalise them inside the loss."
        )
    return found
