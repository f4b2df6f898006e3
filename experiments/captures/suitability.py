"""Which attacks run on an update, and why the others refuse."""

import time
from dataclasses import dataclass

from attacks import attack_classes
from attacks.base import Job
from attacks.foreign.readings import check_suits, first_refusal
from experiments.captures.update import Update
from fedsim.errors import CannotAttack
from fedsim.visible import escaped

_LONGEST = 200
"""Characters that are shown of an error."""


@dataclass(frozen=True)
class Suitability:
    """Which attacks run.

    Attributes:
        reasons: attack -> why it refuses; empty if it runs.
        others: attacks on another kind of data.
    """

    reasons: dict[str, str]
    others: tuple[str, ...]

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks that run."""
        return tuple(name for name, reason in self.reasons.items() if not reason)

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        lines = sorted(self.reasons.items(), key=lambda pair: bool(pair[1]))
        said = [f"{name:<{width}}  {_said(reason)}" for name, reason in lines]
        return "\n".join([*said, f"for other data: {', '.join(self.others)}"])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escaped(name)}</td><td>{escaped(_said(reason))}</td></tr>"
            for name, reason in self.reasons.items()
        )
        return f"<table>{rows}</table>"


def _said(reason: str) -> str:
    return f"refuses: {reason}" if reason else "runs"


def suited(victim: Update) -> Suitability:
    """Try every attack on an update for a moment.

    Each is started with its time already over, so it makes its checks and its first step alone;
    that an attack runs does not say that it succeeds.

    Example:
        With the ``victim`` of `fedsim.Update`:

        >>> "closed_form" in fedsim.suited(victim).attacks
        True
    """
    reasons: dict[str, str] = {}
    known, modality = attack_classes(), victim.task.modality
    fitting = {name: cls for name, cls in known.items() if modality in cls.modalities}
    for name, cls in fitting.items():
        short = cls().abridged()
        chosen = cls() if short is None else short[0]
        try:
            check_suits(chosen, victim.observation, victim.task)
            job = Job(deadline=time.monotonic())
            reasons[name] = first_refusal(chosen, name, victim.reply, victim.task, job)
        except CannotAttack as error:
            reasons[name] = str(error)
        except Exception as error:  # an attack and a network may be foreign code
            said = " ".join(str(error).split())[:_LONGEST]
            reasons[name] = f"it fails ({type(error).__name__}: {said})"
    return Suitability(reasons, tuple(name for name in known if name not in fitting))
