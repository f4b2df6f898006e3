"""How close a guess is to the private examples, for who holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.captures.alterations import altered
from experiments.captures.guess import Guess
from experiments.stages.coverage import EXACT_PSNR
from experiments.wording.catalogue import sentence
from fedsim.api.guesses import StoredGuess, matched
from fedsim.config.build import registry
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.records import MAIN, JobRecord
from fedsim.store.capture import CaptureKey
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch, Rows
from fedsim.visible import escaped

if TYPE_CHECKING:
    import pandas as pd

_BYTES = 2.0
"""Largest value of inputs that are not negative, from which they are not in [0, 1]."""
_EXACT = {"image": ("psnr", EXACT_PSNR), "text": ("exact_match", 1.0)}
"""Metric and value by which a guess is a private example."""
_SHOWN = {"image": ("psnr", "ssim", "mse"), "text": ("rouge1", "rougeL", "exact_match")}


@dataclass(frozen=True)
class Scores:
    """Each metric on each private example, which the guesses were assigned to.

    Attributes:
        attack: name of the attack.
        values: metric -> one value for each private example; see ``fedsim list metrics``.
        certified: whether the guess at each example is certified.
        note: what certified guesses are that are none of the private examples; empty if there are
            none.

    Example:
        With the ``victim`` of `fedsim.Update` and its private ``picture``:

        >>> guess = fedsim.attack(victim, "closed_form", quiet=True)
        >>> fedsim.score(guess, truth=picture).certified
        (True,)
    """

    attack: str
    values: dict[str, tuple[float, ...]]
    certified: tuple[bool, ...]
    _aligned: Examples = field(repr=False, compare=False)
    _truth: Examples = field(repr=False, compare=False)
    note: str = ""

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
        note = f". {self.note}" if self.note else ""
        return f"{self.attack}: {means} on {len(self.certified)} examples{note}"

    def _repr_html_(self) -> str:
        """Private pictures over their reconstructions, or texts with what was recovered."""
        from experiments.captures.rich import diff, grid, table

        head = f"<p>{escaped(str(self))}</p>"
        if self._truth.words:
            pairs = zip(self._truth.words, self._aligned.words, strict=True)
            return head + table([(diff(truth, guess), escaped(guess)) for truth, guess in pairs])
        psnr = [f"{value:.1f} dB" for value in self.values.get(MAIN["image"], ())]
        return head + grid(self._truth.batch.inputs, ()) + grid(self._aligned.batch.inputs, psnr)


def score(guess: Guess, truth: Any) -> Scores:  # noqa: ANN401
    """Compare a guess with the private examples, each with the guess that is closest overall.

    Args:
        guess: of ``fedsim.attack``.
        truth: texts; inputs as the model takes them, ``(example, channel, height, width)`` for
            images, or uint8; or a pair of these and their classes. Inputs in another range than
            [0, 1] are brought to it for the metrics, and the guesses with them.

    Raises:
        ConfigError: the truth is of another kind or shape.

    Example:
        With the ``victim`` of `fedsim.Update` and its private ``picture``:

        >>> guess = fedsim.attack(victim, "closed_form", quiet=True)
        >>> fedsim.score(guess, truth=picture).mean("psnr") > 60
        True
    """
    if not isinstance(guess, Guess):
        raise ConfigError(
            f"score: got {type(guess).__name__}. Pass a guess: fedsim.attack(victim, ...)."
        )
    task, guessed = guess.task, guess.examples
    private = (
        truth if isinstance(truth, Examples) else _examples(_long_enough(task, guessed), truth)
    )
    if task.modality == "image":
        _check_range(guessed, private)
        guessed, private = _in_unit_range(guessed, private)
    job = JobRecord(
        key=CaptureKey(round=1, client=0),
        attack=guess.attack,
        status="done",
        confidence=guess.confidence or None,
    )
    stored = StoredGuess(job, guessed if len(guessed.batch) else None)
    pairing = matched(stored, private, task.modality)
    aligned, values = pairing.aligned, dict[str, tuple[float, ...]]()
    classes = task.spec.target == "class" and task.spec.num_classes
    for name, cls in registry(METRICS, "fedsim.metrics").items():
        metric = cls()
        untold = name == "label_accuracy" and not (classes and private.batch.labels.min() >= 0)
        if not (task.unfit(metric) or metric.available() or untold):
            values[name] = tuple(metric.score(aligned, private).tolist())
    certified = tuple(bool(pairing.certified(i)) for i in range(len(private.batch)))
    certified_by, exact = _EXACT[task.modality]
    pairs = zip(certified, values.get(certified_by, (math.nan,) * len(certified)), strict=True)
    off = [i for i, (sure, value) in enumerate(pairs) if sure and value < exact]
    note = sentence("truth.changed", count=len(off)) if off else ""
    if off and isinstance(task, ImageClassification):
        note = altered(aligned.batch.inputs[off], private.batch.inputs, task.form.shape)
    return Scores(guess.attack, values, certified, aligned, private, note)


def _long_enough(task: Task, guessed: Examples) -> Task:
    """The task, whose texts are cut no shorter than the guess, with a start and an end."""
    longest = guessed.batch.inputs.shape[1] + 2 if task.modality == "text" else 0
    if longest <= task.spec.input_shape[0]:
        return task
    return replace(task, spec=task.spec.model_copy(update={"input_shape": (longest,)}))


def _examples(task: Task, truth: Any) -> Examples:  # noqa: ANN401
    inputs, labels = truth if isinstance(truth, tuple) and len(truth) == 2 else (truth, None)
    if isinstance(task, ImageClassification):
        images = _images(inputs, task)
        return task.examples(Batch(images, _labels(labels, len(images))))
    texts = (inputs,) if isinstance(inputs, str | int | float) else tuple(inputs)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError("truth: this model takes text. Pass truth=[...], a list of strings.")
    rows = Rows(texts, _labels(labels, len(texts)), tuple(range(len(texts))))
    return task.examples(task.encode(rows))


def _labels(labels: Any, count: int) -> Tensor:  # noqa: ANN401
    given = torch.full((count,), -1) if labels is None else torch.as_tensor(labels)
    if given.shape[:1] != (count,):
        raise ConfigError(
            f"truth: {count} examples, and {given.numel()} labels. Pass one for each."
        )
    return given


def _images(inputs: Any, task: ImageClassification) -> Tensor:  # noqa: ANN401
    """Pixels of the owner's inputs."""
    form = task.form
    try:
        pixels = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError("truth: this model takes images. Pass a tensor of them.") from None
    bytes_ = pixels.dtype == torch.uint8 and form.plain
    pixels = pixels.float() / 255 if bytes_ else pixels.float()
    pixels = pixels[None] if pixels.dim() == len(form.shape) else pixels
    if tuple(pixels.shape[1:]) != form.shape or not len(pixels):
        raise ConfigError(
            f"truth: the inputs have the shape {tuple(pixels.shape)}, and the model takes "
            f"(example, {', '.join(map(str, form.shape))}). Pass the clients' examples."
        )
    return form.read(pixels)


def _check_range(guessed: Examples, private: Examples) -> None:
    """Bytes beside a guess in [0, 1] are no other range, but another scale."""
    low, high = float(private.batch.inputs.min()), float(private.batch.inputs.max())
    top = float(guessed.batch.inputs.max()) if len(guessed.batch) else 1.0
    if low >= 0 and high >= _BYTES > top:
        raise ConfigError(
            f"truth: pixels from {low:.2f} to {high:.2f}, and the guess is in [0, 1]. Pass them in "
            "the range that the model takes, in [0, 1] or as input_range says."
        )


def _in_unit_range(guessed: Examples, private: Examples) -> tuple[Examples, Examples]:
    """Both in [0, 1], from the range that the private inputs have if that is another."""
    pixels = private.batch.inputs
    low, high = float(pixels.min()), float(pixels.max())
    if low >= 0 and high <= 1:
        return guessed, private
    if low == high:
        raise ConfigError(
            f"truth: every number is {low:.3g}, which tells no range. Pass inputs in [0, 1], or "
            "score them together with other examples."
        )
    return _moved(guessed, low, high - low), _moved(private, low, high - low)


def _moved(examples: Examples, low: float, scale: float) -> Examples:
    batch = replace(examples.batch, inputs=(examples.batch.inputs - low) / scale)
    return replace(examples, batch=batch)
