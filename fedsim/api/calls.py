"""What the packages above do for a command beside them: attack, score, draw; each at its first use.

To import this module costs neither torch nor pandas, and of those packages an extra gets these
names and no more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.analysis.paired import Values as Values
    from experiments.analysis.paired import difference as difference
    from experiments.analysis.paired import estimate as estimate
    from experiments.analysis.statistics import Estimate as Estimate
    from experiments.operations import attack_captures as attack_captures
    from experiments.operations import check_run as check_run
    from experiments.operations import named_attack as named_attack
    from experiments.operations import score_guesses as score_guesses
    from experiments.operations import simulate_secretly as simulate_secretly
    from experiments.operations import values_of as values_of
    from experiments.operations import verdict_of as verdict_of
    from experiments.operations import without_null as without_null
    from experiments.plan.overrides import override as override
    from experiments.report.templates import render as render

_NAMES = {
    "experiments.analysis.paired": "Values difference estimate",
    "experiments.analysis.statistics": "Estimate",
    "experiments.operations": "attack_captures check_run named_attack score_guesses "
    "simulate_secretly values_of verdict_of without_null",
    "experiments.plan.overrides": "override",
    "experiments.report.templates": "render",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
