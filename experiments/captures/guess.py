"""What an attack made of an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attacks.base import Attack, Reconstruction
from fedsim.config.build import options_of
from fedsim.metrics.base import Examples
from fedsim.records import UNFINISHED, Certificate
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification
from fedsim.tasks.own_tokenizer import doubt
from fedsim.visible import escaped

NO_SCORE = (
    "No score is possible without the private examples; fedsim.truth_mod records them in a test "
    "federation that agrees."
)


@dataclass(frozen=True)
class Guess:
    """An attack's reconstruction, the surest example first where the attack can tell.

    Attributes:
        attack: name of the attack.
        options: of the attack.
        examples: the guessed examples.
        confidence: of each example, ``certified``, ``consistent``, ``in_span`` or ``guess``; empty
            if the attack does not tell.
        objective: the attack's own final objective, lower is better; None if it has none.
        seconds: how long it took.
        note: caveats, and what had to be assumed; empty if there are none.
        task: the model that the guess is about.
        classes_read: whether the classes were read off the update, and are not the attack's guess.

    Example:
        With the ``victim`` of `fedsim.Update`:

        >>> guess = fedsim.attack(victim, "closed_form", quiet=True)
        >>> guess.labels, guess.certified, guess.images.shape
        ((3,), (True,), torch.Size([1, 1, 8, 8]))
    """

    attack: str
    options: dict[str, Any]
    examples: Examples
    confidence: tuple[Certificate, ...]
    objective: float | None
    seconds: float
    note: str
    task: Task = field(repr=False)
    classes_read: bool = True

    @classmethod
    def of(
        cls,
        label: str,
        chosen: Attack,
        task: Task,
        reconstruction: Reconstruction,
        seconds: float,
    ) -> Guess:
        """The guess with the caveats of the attack and those of the task."""
        late = UNFINISHED if reconstruction.expired else ""
        note = caveats(task, reconstruction.note, reconstruction.confidence or ())
        return cls(
            label,
            options_of(chosen),
            task.examples(reconstruction.guess.to("cpu")),
            reconstruction.confidence or (),
            reconstruction.objective,
            seconds,
            "; ".join(filter(None, (note, late))),
            task,
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The guessed texts without special tokens; empty for images."""
        return self.examples.words

    @property
    def images(self) -> Tensor | None:
        """Float32 inputs in their owner's shape and range; None for texts."""
        if not isinstance(self.task, ImageClassification):
            return None
        return self.task.form.given(self.examples.batch.inputs)

    @property
    def targets(self) -> Tensor | None:
        """The guessed numbers ``(example, target)`` of a regression; None elsewhere."""
        labels = self.examples.batch.labels
        return labels if self.task.spec.target == "numbers" else None

    @property
    def labels(self) -> tuple[int | tuple[int, ...], ...]:
        """The guessed class of each example, or its classes where it may have several.

        It is -1 where the attack does not guess; empty where the model knows no classes.
        """
        labels = self.examples.batch.labels
        if self.task.spec.num_classes == 0:
            return ()
        if self.task.spec.target == "classes":
            return tuple(tuple(row.nonzero()[:, 0].tolist()) for row in labels > 0.5)
        return tuple((labels.argmax(1) if labels.is_floating_point() else labels).tolist())

    @property
    def certified(self) -> tuple[bool, ...]:
        """Whether the update proves each example."""
        count = len(self.examples.batch)
        return tuple(level == "certified" for level in self.confidence) or (False,) * count

    def __str__(self) -> str:
        return "\n".join((self.line, *self._rows()))

    @property
    def line(self) -> str:
        """The attack, how sure it is, and its caveats."""
        count, sure = len(self.examples.batch), sum(self.certified)
        goal = "" if self.objective is None else f", objective {self.objective:.3g}"
        note = f". {self.note[0].upper()}{self.note[1:]}" if self.note else ""
        what: str = "row" if self.task.spec.owner_shape else self.task.modality
        what = what if count == 1 else f"{what}s"
        return f"{self.attack}: {count} {what}, {sure} certified{goal}, {self.seconds:.1f} s{note}."

    @property
    def said(self) -> list[tuple[str, str]]:
        """How sure each example is, and its class, classes or numbers in words."""
        sure = self.confidence or ("guess",) * len(self.examples.batch)
        return list(zip(sure, self._targets(), strict=True))

    def _rows(self) -> list[str]:
        if self.texts:
            pairs = zip(self.said, self.texts, strict=True)
            rows = [(level, target, text) for (level, target), text in pairs]
        else:
            what = "row" if self.task.spec.owner_shape else "image"
            alike = Counter(self.said).items()
            rows = [(*said, f"({what if n == 1 else f'{n} {what}s'})") for said, n in alike]
        return [f"  {level:<10} {target:<8} {what}".rstrip() for level, target, what in rows]

    def _targets(self) -> list[str]:
        if self.targets is not None:
            return [f"target {', '.join(f'{v:.4g}' for v in row)}" for row in self.targets]
        labels = self.labels or (-1,) * len(self.examples.batch)
        sure = (self.classes_read or proven for proven in self.certified)
        return [
            _class(label) + ("" if read or label == -1 else " (guessed)")
            for label, read in zip(labels, sure, strict=True)
        ]

    def _repr_html_(self) -> str:
        """A grid of pictures, or a table of texts."""
        from experiments.captures.rich import grid, table

        head = f"<p>{escaped(self.line)}</p>"
        if self.images is not None:
            return head + grid(self.examples.batch.inputs, self.confidence)
        levels = [level for level, _ in self.said]
        return head + table(list(zip(levels, map(escaped, self.texts), strict=True)))


def caveats(task: Task, note: str, confidence: Sequence[str]) -> str:
    """What the attack notes, and what is doubtful of the tokenizer and of the inputs' range."""
    return "; ".join(filter(None, (note.rstrip("."), doubt(task), _range(task, confidence))))


def _range(task: Task, confidence: Sequence[str]) -> str:
    """What was taken for granted of the inputs of another application's network; else empty.

    What proves a guess shows its range.
    """
    form = getattr(task, "form", None)
    sure = set(confidence) == {"certified"}
    if sure or form is None or not form.plain or not task.spec.factory:
        return ""
    return "inputs were taken to lie in [0, 1]; if the model takes others, pass input_range"


def _class(label: int | tuple[int, ...]) -> str:
    if isinstance(label, tuple):
        return f"classes {', '.join(map(str, label)) or 'none'}"
    return "" if label < 0 else f"class {label}"
