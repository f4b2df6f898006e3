"""What is found of a reply as it is read, in the one form that every test of it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from attacks.observed import output_rows
from fedsim.reply_kind import ascends
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Tensors


class Finding(NamedTuple):
    """In what a reply departs from the weights, differences or gradients of the model as described.

    Attributes:
        code: what it is, whatever its words, such as ``turned`` of gradients that rise.
        said: a clause.
        hides: whether nothing can be proven because of it; else the reply was read accordingly.
    """

    code: str
    said: str
    hides: bool = False


@dataclass(frozen=True)
class Listed:
    """One record of a message.

    Attributes:
        name: of the record, or of a set in it.
        tensors: how many arrays it holds.
        entries: in all of them.
        formats: of numbers, such as ``float32``.
        relation: to the model, such as ``the model's shapes``; empty for none.
        read_as: what it was read as; empty where it was not read.
    """

    name: str
    tensors: int
    entries: int
    formats: tuple[str, ...]
    relation: str
    read_as: str

    def __str__(self) -> str:
        relation = f" of {self.relation}" if self.relation else ""
        read = f"read as {self.read_as}" if self.read_as else "not read"
        return f"{self.name!r} ({self.tensors} tensor{'s' * (self.tensors > 1)}{relation}, {read})"


@dataclass(frozen=True)
class Reading:
    """A reply as far as it is read.

    Attributes:
        observation: what attacks see.
        findings: in the order of the tests.
        wire: every record that the client sent, the model first; empty until they are listed.
    """

    observation: Observation
    findings: tuple[Finding, ...] = ()
    wire: tuple[Listed, ...] = field(default=(), repr=False)

    def finding(self, *findings: Finding | None, observation: Observation | None = None) -> Reading:
        """With what a test found, and the reply read accordingly."""
        new = tuple(each for each in findings if each is not None and each.said)
        seen = self.observation if observation is None else observation
        return Reading(seen, (*self.findings, *new), self.wire)

    @property
    def codes(self) -> frozenset[str]:
        """What was found."""
        return frozenset(finding.code for finding in self.findings)

    @property
    def match(self) -> str:
        """How the reply was read, a sentence."""
        return _said(finding for finding in self.findings if not finding.hides)

    @property
    def doubt(self) -> str:
        """Why the model may not explain it, as in ``CaptureRecord``."""
        return _said(finding for finding in self.findings if finding.hides)


def descending(reading: Reading, task: Task) -> Reading:
    """An update with the sign of a loss's gradient, where it shows that its own is the opposite.

    Steps of one example alone show it: several that ascend may look like one class that descends.
    """
    seen = reading.observation
    if seen.kind != "gradient" and seen.knowledge.num_examples != 1:
        return reading
    arrays = {name: value.float().numpy() for name, value in seen.update().items()}
    by_bias = ascends(arrays, seen.knowledge.num_examples)
    if not by_bias and not (seen.kind == "gradient" and output_rows.ascends(seen, task)):
        return reading
    turned, said = _turned(seen, task), "they rise where a loss's fall, and were turned round"
    return reading.finding(Finding("turned", said), observation=turned)


def _turned(seen: Observation, task: Task) -> Observation:
    """With minus the update; running statistics stay."""
    if seen.kind != "weights":
        return replace(seen, received={name: -value for name, value in seen.received.items()})
    trained = seen.received.keys() & {name for name, _ in task.build().named_parameters()}
    turned = {
        name: (2 * seen.sent[name].double() - seen.received[name].double())
        for name in trained & seen.sent.keys()
    }
    turned = {name: value.to(seen.received[name].dtype) for name, value in turned.items()}
    return replace(seen, received={**seen.received, **turned})


def cosine(a: Tensors, b: Tensors) -> float:
    """Of the tensors that both have, as one vector; 0 if either is zero."""
    pairs = [(value.double(), b[name].double()) for name, value in a.items() if name in b]
    both = sum(float((x * y).sum()) for x, y in pairs)
    squares = [
        sum(float(part.square().sum()) for part in side) for side in zip(*pairs, strict=True)
    ]
    return both / max(float(squares[0] * squares[1]) ** 0.5, 1e-300) if pairs else 0.0


def _said(findings: Iterable[Finding]) -> str:
    return "; ".join(dict.fromkeys(finding.said for finding in findings))
