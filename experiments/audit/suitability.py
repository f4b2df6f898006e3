"""Which attacks run on an update, and why the others refuse."""

from __future__ import annotations

import html
import time
from dataclasses import dataclass

from attacks import attack_classes
from attacks.base import Job
from experiments.audit.attacking import check_suits, first_refusal
from experiments.audit.update import Update
from fedsim.errors import CannotAttack


@dataclass(frozen=True)
class Suitability:
    """The attacks by name, with the reason why each refuses; empty if it runs."""

    reasons: dict[str, str]

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks that run."""
        return tuple(name for name, reason in self.reasons.items() if not reason)

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        lines = sorted(self.reasons.items(), key=lambda pair: bool(pair[1]))
        return "\n".join(
            f"{name:<{width}}  {f'refuses: {reason}' if reason else 'runs'}"
            for name, reason in lines
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(reason) or 'runs'}</td></tr>"
            for name, reason in self.reasons.items()
        )
        return f"<table><tr><th>attack</th><th></th></tr>{rows}</table>"


def suited(victim: Update) -> Suitability:
    """Try every attack on an update for a moment.

    Each is started with its time already over, so it makes its checks and its first step alone;
    that an attack runs does not say that it succeeds.
    """
    reasons = {}
    for name, cls in attack_classes().items():
        short = cls().abridged()
        chosen = cls() if short is None else short[0]
        try:
            check_suits(name, chosen, victim)
            reasons[name] = first_refusal(chosen, name, victim, Job(deadline=time.monotonic()))
        except CannotAttack as error:
            reasons[name] = str(error)
    return Suitability(reasons)
