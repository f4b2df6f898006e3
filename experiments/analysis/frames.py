"""The rows of a run as pandas frames."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import pandas as pd

from experiments.analysis.keys import VictimKey
from fedsim.records import PRIOR_ONLY, STATUSES, ScoreRow, UtilityRow
from fedsim.store.rows import columns

PLACE = ["setting", "defense", "defense_options"]
"""Columns of a ``DefenseInSetting``."""
ATTACK = ["attack", "attack_options", "adaptive"]
"""Columns of an ``AttackKey``."""
_EXAMPLE = ["cell", "probe", "round", "client", "example", "metric"]
_DTYPES = {int: "int64", float: "float64", bool: "bool", str: "category"}
_ORDER = ["cell", *ATTACK, "control", "round", "client", "metric", "example"]


def frame(rows: Iterable[Any], kind: type[Any]) -> pd.DataFrame:
    """One column per field, one line per row, in the order given.

    Texts are categories, as they recur. Optional fields stay Python objects: pandas would turn None
    into NaN, and a NaN that was measured could no longer be told from a value that is missing.
    """
    records = list(rows)
    return pd.DataFrame(
        {
            name: pd.Series(list(map(attrgetter(name), records)), dtype=_DTYPES.get(hint, object))
            for name, hint in columns(kind).items()
        }
    )


def score_frame(rows: Iterable[ScoreRow], settings: Mapping[str, str]) -> pd.DataFrame:
    """Score rows, in an order that does not depend on the order in which they come.

    No two of them are of the same metric, guess and example.

    Args:
        rows: of the cells in ``settings``.
        settings: cell -> its setting.

    Returns:
        The fields of ``ScoreRow``, where ``row`` is -1 if it is not known; ``setting``; and
        ``has_value``, False where the value is None.
    """
    table = _ordered(rows, ScoreRow, settings, _ORDER)
    table["row"] = [-1 if row is None else row for row in table.row]
    table["has_value"] = [value is not None for value in table.value]
    return table


def utility_frame(rows: Iterable[UtilityRow], settings: Mapping[str, str]) -> pd.DataFrame:
    """The fields of ``UtilityRow`` and ``setting``; order and arguments as in ``score_frame``."""
    return _ordered(rows, UtilityRow, settings, ["cell", "round", "metric"])


def _ordered(
    rows: Iterable[ScoreRow | UtilityRow],
    kind: type[ScoreRow | UtilityRow],
    settings: Mapping[str, str],
    by: list[str],
) -> pd.DataFrame:
    table = frame(sorted(rows, key=attrgetter(*by)), kind)
    table["setting"] = pd.Series([settings[cell] for cell in table.cell], dtype="category")
    return table


def with_prior(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows, where victims that an attack refused have the value of ``prior_only``.

    That is the guess which an attacker is left with, so that no mean is taken over the victims that
    an attack liked. An attack that refused all of them has no value, and neither has a refused
    victim without that baseline.
    """
    attack = (scores.attack != PRIOR_ONLY) & (scores.control == "none")
    ran = scores.groupby([*PLACE, *ATTACK, "control", "probe"]).has_value.transform("any")
    refused = scores[attack & ran & (scores.status == "skipped") & ~scores.has_value]
    blind = scores[(scores.attack == PRIOR_ONLY) & (scores.control == "none") & scores.has_value]
    known = dict(zip(blind[_EXAMPLE].itertuples(index=False, name=None), blind.value, strict=True))
    filled = scores.copy()
    for index, key in zip(
        refused.index, refused[_EXAMPLE].itertuples(index=False, name=None), strict=True
    ):
        if key in known:
            filled.at[index, "value"], filled.at[index, "has_value"] = known[key], True
    return filled


def attacked(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of attacks on clients: neither controls nor probes."""
    return scores[(scores.control == "none") & (scores.probe == "none")]


def victims(scores: pd.DataFrame) -> list[VictimKey]:
    """The victim of each row."""
    return list(map(VictimKey, *(scores[name].tolist() for name in VictimKey._fields)))


def jobs(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per job."""
    return scores.drop_duplicates(["cell", *ATTACK, "control", "round", "client"], keep="last")


def jobs_of_attacks(scores: pd.DataFrame) -> dict[str, int]:
    """Number of jobs of attacks on clients by status, those of the blind guess left out."""
    known = attacked(scores)
    return by_status(jobs(known[known.attack != PRIOR_ONLY]))


def by_status(jobs: pd.DataFrame) -> dict[str, int]:
    """Number of jobs by status; all statuses are there."""
    counts = jobs.status.value_counts()
    return {status: int(counts.get(status, 0)) for status in STATUSES}
