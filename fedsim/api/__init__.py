"""What others read a run by: cells, observations, guesses, scores, findings; and what they call.

Extras, notebooks and packages of others need no inner module. To import this package costs neither
torch nor pandas: the names of ``_LATER`` are imported at their first use, also those of packages
above this one, of which an extra gets these and no more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim import __version__
from fedsim.api.cell import CellFolder, StoredCell
from fedsim.api.findings import DOUBTFUL, Findings, WorstPerson
from fedsim.api.ledger import LedgerRow
from fedsim.api.live import Forming
from fedsim.api.run import Run, RunFolder
from fedsim.build import explain, options_of
from fedsim.capture import CaptureKey, CaptureStore, Observation, batch_tensors
from fedsim.errors import ConfigError, FedsimError, StoreError
from fedsim.files import (
    SCHEMA,
    Record,
    Sealed,
    copy_files,
    digest,
    load_tensors,
    read_bytes,
    read_json,
    read_record,
    save_tensors,
    write_bytes,
    write_json,
)
from fedsim.manifest import check_hashes, hashes
from fedsim.plain_files import check_folder, check_path, digest_plain, make_private
from fedsim.records import (
    FRESH_ROW,
    MAIN,
    OTHER_CLIENT,
    PRIOR_ONLY,
    STATUSES,
    UNSCORED,
    JobRecord,
    Modality,
    ScoreRow,
    shown,
)
from fedsim.redaction import redacted
from fedsim.visible import say

if TYPE_CHECKING:
    from attacks.scheduling.jobs import Progress
    from experiments.analysis.findings import UTILITY
    from experiments.analysis.keys import DefenseInSetting
    from experiments.analysis.paired import Values, difference, estimate
    from experiments.analysis.statistics import Estimate
    from experiments.browser import show_page
    from experiments.captures.tensor_files import read_state_dict
    from experiments.operations import (
        attack_captures,
        check_run,
        metric_named,
        named_attack,
        places,
        planned_jobs,
        reconstructions,
        repeat_job,
        score_guesses,
        simulate_secretly,
        unit_of,
        values_of,
        without_null,
    )
    from experiments.plan.overrides import override
    from experiments.report.curves import FEW
    from experiments.report.figures import INK, Figure, frame_decibels, frame_shares, panel, strokes
    from experiments.report.gallery import data_uri, mark, words
    from experiments.report.templates import render
    from experiments.stages.coverage import EXACT, is_exact
    from experiments.stages.gallery import content
    from experiments.stages.live import forming
    from experiments.wording.defense_names import defense_name, spoken
    from experiments.wording.names import duration, show, title
    from fedsim.api.guesses import matched, read_guess
    from fedsim.data.splits import Split
    from fedsim.seeds import SECRET_BITS
    from fedsim.tasks import load_task
    from fedsim.tasks.base import Task
    from fedsim.tasks.text import TextTask
    from fedsim.threads import one_thread
    from fedsim.truth import TruthRecord, TruthStore
    from fedsim.types import Batch, Rows, Tensors

_LATER = {
    "attacks.scheduling.jobs": ("Progress",),
    "experiments.analysis.findings": ("UTILITY",),
    "experiments.analysis.keys": ("DefenseInSetting",),
    "experiments.analysis.paired": ("Values", "difference", "estimate"),
    "experiments.analysis.statistics": ("Estimate",),
    "experiments.browser": ("show_page",),
    "experiments.captures.tensor_files": ("read_state_dict",),
    "experiments.operations": (
        "attack_captures",
        "check_run",
        "metric_named",
        "named_attack",
        "places",
        "planned_jobs",
        "reconstructions",
        "repeat_job",
        "score_guesses",
        "simulate_secretly",
        "unit_of",
        "values_of",
        "without_null",
    ),
    "experiments.plan.overrides": ("override",),
    "experiments.report.curves": ("FEW",),
    "experiments.report.figures": (
        "INK",
        "Figure",
        "frame_decibels",
        "frame_shares",
        "panel",
        "strokes",
    ),
    "experiments.report.gallery": ("data_uri", "mark", "words"),
    "experiments.report.templates": ("render",),
    "experiments.stages.coverage": ("EXACT", "is_exact"),
    "experiments.stages.gallery": ("content",),
    "experiments.stages.live": ("forming",),
    "experiments.wording.defense_names": ("defense_name", "spoken"),
    "experiments.wording.names": ("duration", "show", "title"),
    "fedsim.api.guesses": ("matched", "read_guess"),
    "fedsim.data.splits": ("Split",),
    "fedsim.seeds": ("SECRET_BITS",),
    "fedsim.tasks": ("load_task",),
    "fedsim.tasks.base": ("Task",),
    "fedsim.tasks.text": ("TextTask",),
    "fedsim.threads": ("one_thread",),
    "fedsim.truth": ("TruthRecord", "TruthStore"),
    "fedsim.types": ("Batch", "Rows", "Tensors"),
}
_HOMES = {name: home for home, names in _LATER.items() for name in names}

__all__ = [
    "DOUBTFUL",
    "EXACT",
    "FEW",
    "FRESH_ROW",
    "INK",
    "MAIN",
    "OTHER_CLIENT",
    "PRIOR_ONLY",
    "SCHEMA",
    "SECRET_BITS",
    "STATUSES",
    "UNSCORED",
    "UTILITY",
    "Batch",
    "CaptureKey",
    "CaptureStore",
    "CellFolder",
    "ConfigError",
    "DefenseInSetting",
    "Estimate",
    "FedsimError",
    "Figure",
    "Findings",
    "Forming",
    "JobRecord",
    "LedgerRow",
    "Modality",
    "Observation",
    "Progress",
    "Record",
    "Rows",
    "Run",
    "RunFolder",
    "ScoreRow",
    "Sealed",
    "Split",
    "StoreError",
    "StoredCell",
    "Task",
    "Tensors",
    "TextTask",
    "TruthRecord",
    "TruthStore",
    "Values",
    "WorstPerson",
    "__version__",
    "attack_captures",
    "batch_tensors",
    "check_folder",
    "check_hashes",
    "check_path",
    "check_run",
    "content",
    "copy_files",
    "data_uri",
    "defense_name",
    "difference",
    "digest",
    "digest_plain",
    "duration",
    "estimate",
    "explain",
    "forming",
    "frame_decibels",
    "frame_shares",
    "hashes",
    "is_exact",
    "load_task",
    "load_tensors",
    "make_private",
    "mark",
    "matched",
    "metric_named",
    "named_attack",
    "one_thread",
    "options_of",
    "override",
    "panel",
    "places",
    "planned_jobs",
    "read_bytes",
    "read_guess",
    "read_json",
    "read_record",
    "read_state_dict",
    "reconstructions",
    "redacted",
    "render",
    "repeat_job",
    "save_tensors",
    "say",
    "score_guesses",
    "show",
    "show_page",
    "shown",
    "simulate_secretly",
    "spoken",
    "strokes",
    "title",
    "unit_of",
    "values_of",
    "without_null",
    "words",
    "write_bytes",
    "write_json",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
