"""What others read a run by: cells, observations, guesses, scores, findings; and what they call.

Extras, notebooks and packages of others need no inner module. To import this package costs neither
torch nor pandas: names of ``_LATER`` are imported at their first use, and so are those above this
package, of which there are as few as extras can live with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim import __version__
from fedsim.api.cell import CellFolder, StoredCell
from fedsim.api.findings import DOUBTFUL, Findings, WorstPerson
from fedsim.api.run import Run, RunFolder
from fedsim.errors import ConfigError, FedsimError, StoreError
from fedsim.files import SCHEMA, Sealed, read_record, write_bytes, write_json
from fedsim.plain_files import check_path, digest_plain
from fedsim.redaction import redacted
from fedsim.visible import say

if TYPE_CHECKING:
    from experiments.report.templates import render
    from experiments.wording.names import show

__all__ = [
    "DOUBTFUL",
    "SCHEMA",
    "CellFolder",
    "ConfigError",
    "FedsimError",
    "Findings",
    "Run",
    "RunFolder",
    "Sealed",
    "StoreError",
    "StoredCell",
    "WorstPerson",
    "__version__",
    "check_path",
    "digest_plain",
    "read_record",
    "redacted",
    "render",
    "say",
    "show",
    "write_bytes",
    "write_json",
]

_LATER = {
    "render": "experiments.report.templates",
    "show": "experiments.wording.names",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
