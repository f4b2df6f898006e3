"""Jobs that stop an attack early, so that its run time can be extrapolated."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from attacks.base import Job

PATIENCE = 0.5
"""Seconds after which the timing of an attack stops."""
_LOOKS = 4  # steps of a search that are timed, if they are quick


@dataclass
class StepClock(Job):
    """A job that stops a search after a few steps and records when each of them began."""

    looks: list[float] = field(default_factory=list)

    @property
    def expired(self) -> bool:
        """True once enough steps have been timed."""
        self.looks.append(time.perf_counter())
        return len(self.looks) > _LOOKS or self.looks[-1] - self.looks[0] > PATIENCE

    @property
    def span(self) -> float:
        """Seconds from the first step that was timed to the last."""
        return self.looks[-1] - self.looks[0] if self.looks else 0.0

    @property
    def step(self) -> float:
        """Mean seconds per step."""
        return self.span / max(1, len(self.looks) - 1)


@dataclass
class TimedTrial(Job):
    """A job that stops an attack after a while and records whether it had to."""

    began: float = field(default_factory=time.perf_counter)
    heard: bool = False

    @property
    def expired(self) -> bool:
        """True once the attack has run long enough to be called slow."""
        self.heard = self.heard or time.perf_counter() - self.began > PATIENCE
        return self.heard
