"""What others read a run by: cells, observations, guesses, scores, findings.

Extras, notebooks and packages of others need no module above ``fedsim``. To import this package
costs neither torch nor pandas.
"""

from fedsim.api.cell import CellFolder, StoredCell
from fedsim.api.findings import DOUBTFUL, Findings, WorstPerson
from fedsim.api.ledger import Forming, LedgerRow
from fedsim.api.run import Run, RunFolder
from fedsim.errors import ConfigError, FedsimError, StoreError
from fedsim.records import JobRecord, ScoreRow
from fedsim.store.capture import CaptureKey, Observation

__all__ = [
    "DOUBTFUL",
    "CaptureKey",
    "CellFolder",
    "ConfigError",
    "FedsimError",
    "Findings",
    "Forming",
    "JobRecord",
    "LedgerRow",
    "Observation",
    "Run",
    "RunFolder",
    "ScoreRow",
    "StoreError",
    "StoredCell",
    "WorstPerson",
]
