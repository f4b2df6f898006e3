"""What the packages above do for a command beside them: attack, score, draw; each at its first use.

To import this module costs neither torch nor pandas, and of those packages an extra gets these
names and no more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.analysis.findings import UTILITY as UTILITY
    from experiments.analysis.keys import DefenseInSetting as DefenseInSetting
    from experiments.analysis.paired import Values as Values
    from experiments.analysis.paired import difference as difference
    from experiments.analysis.paired import estimate as estimate
    from experiments.analysis.statistics import Estimate as Estimate
    from experiments.browser import show_page as show_page
    from experiments.operations import attack_captures as attack_captures
    from experiments.operations import check_run as check_run
    from experiments.operations import metric_named as metric_named
    from experiments.operations import named_attack as named_attack
    from experiments.operations import places as places
    from experiments.operations import planned_jobs as planned_jobs
    from experiments.operations import reconstructions as reconstructions
    from experiments.operations import score_guesses as score_guesses
    from experiments.operations import simulate_secretly as simulate_secretly
    from experiments.operations import unit_of as unit_of
    from experiments.operations import values_of as values_of
    from experiments.operations import verdict_of as verdict_of
    from experiments.operations import without_null as without_null
    from experiments.plan.overrides import override as override
    from experiments.report.curves import FEW as FEW
    from experiments.report.figures import INK as INK
    from experiments.report.figures import Figure as Figure
    from experiments.report.figures import frame_decibels as frame_decibels
    from experiments.report.figures import frame_shares as frame_shares
    from experiments.report.figures import panel as panel
    from experiments.report.figures import strokes as strokes
    from experiments.report.gallery import words as words
    from experiments.report.templates import render as render
    from experiments.stages.gallery import content as content
    from experiments.wording.names import defense_name as defense_name
    from experiments.wording.names import show as show
    from experiments.wording.names import spoken as spoken
    from experiments.wording.names import title as title

_NAMES = {
    "experiments.analysis.findings": "UTILITY",
    "experiments.analysis.keys": "DefenseInSetting",
    "experiments.analysis.paired": "Values difference estimate",
    "experiments.analysis.statistics": "Estimate",
    "experiments.browser": "show_page",
    "experiments.operations": "attack_captures check_run metric_named named_attack places "
    "planned_jobs reconstructions score_guesses simulate_secretly unit_of values_of "
    "verdict_of without_null",
    "experiments.plan.overrides": "override",
    "experiments.report.curves": "FEW",
    "experiments.report.figures": "Figure INK frame_decibels frame_shares panel strokes",
    "experiments.report.gallery": "words",
    "experiments.report.templates": "render",
    "experiments.stages.gallery": "content",
    "experiments.wording.names": "defense_name show spoken title",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
