"""What was read off replies: findings, each with an interval, a proof, or the word that none is."""

from typing import Literal, TypeAlias

from fedsim.store.capture import CaptureKey
from fedsim.store.files import Record

Part: TypeAlias = Literal[
    "format",
    "grid",
    "signs",
    "sparsity",
    "cut",
    "noise",
    "noise shape",
    "clip",
    "withheld",
    "optimizer",
    "weight decay",
    "local steps",
    "sum",
]
State: TypeAlias = Literal["present", "absent", "open"]
OPEN = "not to be told from here"
_DEFENSES: tuple[Part, ...] = (
    *("format", "grid", "signs", "sparsity", "cut", "noise", "clip", "withheld"),
)
"""Parts that defend; the others are how a client trains."""


class Finding(Record):
    """One property of a reply.

    Attributes:
        part: the property.
        state: whether the reply has it; ``open`` where its numbers do not tell.
        value: its size, in units of the update; None where it has none.
        low: lower end of an interval of 99 %, or a bound.
        high: upper end.
        proven: whether arithmetic alone shows it, whatever the model and its loss are.
        sound: False of noise that some tensors lack, or that is not Gaussian.
        text: in words.
    """

    part: Part
    state: State
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    proven: bool = False
    sound: bool = True


class Attested(Record):
    """What one reply shows.

    Attributes:
        key: the reply.
        findings: one for each part, in their order.
    """

    key: CaptureKey
    findings: tuple[Finding, ...]

    def __getitem__(self, part: Part) -> Finding:
        return next(each for each in self.findings if each.part == part)

    @property
    def defenses(self) -> tuple[Part, ...]:
        """The parts that defend and are there."""
        return tuple(part for part in _DEFENSES if self[part].state == "present")

    def __str__(self) -> str:
        there = [each.text for each in self.findings if each.state == "present"]
        absent = [each.part for each in self.findings if each.state == "absent"]
        parts = ["; ".join(there) or "nothing that defends is seen"]
        if absent:
            parts.append(f"none of: {', '.join(absent)}")
        untold = [each for each in self.findings if each.state == "open"]
        for text in dict.fromkeys(each.text for each in untold):
            parts.append(f"{', '.join(each.part for each in untold if each.text == text)}: {text}")
        return f"{self.key}: {'. '.join(parts)}."
