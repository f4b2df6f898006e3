"""Share of a client's rows that an attack has recovered by each round: a union over rounds."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import NamedTuple

from fedsim.records import AttackKey, ScoreRow
from fedsim.store.files import Record

EXACT = {"mse": (0.5 / 255) ** 2, "exact_match": 1.0}
"""Metric -> its value from which an example counts as exact: half a byte, or every token."""
EXACT_PSNR = 54.151
"""PSNR of an image that is half a byte off, in dB."""
THRESHOLDS = {"psnr": 25.0, "ssim": 0.9, "rouge1": 0.9, "rouge2": 0.9, "rougeL": 0.9}
"""Value from which an example counts as recovered; metrics that are 0 or 1 need none."""


class Coverage(Record):
    """What one attack knows of one client after a round; a row of ``coverage.parquet``.

    Attributes:
        client: -1 for all clients together, where the server sees sums over them.
        used: distinct rows that the client has used in captured rounds so far.
        recovered: those among them that were certified and exact in at least one round.
        exact: those that were exact in at least one round, whether the attack knew it or not.
        false: certificates so far of examples that were not exact.
    """

    cell: str
    attack: str
    attack_options: str
    adaptive: bool
    client: int
    round: int
    used: int
    recovered: int
    exact: int
    false: int


class _Owner(NamedTuple):
    """Whose rows an attack recovers, one round after another."""

    cell: str
    attack: AttackKey
    client: int


def coverage(rows: Iterable[ScoreRow], pooled: Collection[str] = ()) -> list[Coverage]:
    """One entry for each attack, client and captured round; controls and probes are left out.

    A row counts once, however often it is recovered. An attack that gives no certificates recovers
    nothing that it could be sure of, however good its guesses are.

    Args:
        rows: of any metric; only those of ``EXACT`` count.
        pooled: cells whose clients are cohorts. Their members change from round to round, so that
            all of them together count as one owner.
    """
    groups: dict[_Owner, list[ScoreRow]] = defaultdict(list)
    for row in rows:
        if row.metric in EXACT and row.control == "none" and row.probe == "none":
            client = -1 if row.cell in pooled else row.client
            groups[_Owner(row.cell, row.attack_key, client)].append(row)
    return [entry for owner in sorted(groups) for entry in _over_rounds(owner, groups[owner])]


def _over_rounds(owner: _Owner, rows: list[ScoreRow]) -> Iterator[Coverage]:
    used: set[int | None] = set()
    recovered: set[int | None] = set()
    exact: set[int | None] = set()
    false = 0
    for round_, new in groupby(sorted(rows, key=_round), _round):
        for row in new:
            used.add(row.row)
            if is_exact(row):
                exact.add(row.row)
            if row.certified and is_exact(row):
                recovered.add(row.row)
            elif row.certified:
                false += 1
        yield Coverage(
            cell=owner.cell,
            **asdict(owner.attack),
            client=owner.client,
            round=round_,
            used=len(used),
            recovered=len(recovered),
            exact=len(exact),
            false=false,
        )


def _round(row: ScoreRow) -> int:
    return row.round


def is_exact(row: ScoreRow) -> bool:
    """Whether the guess is the private example, for a row of ``mse`` or ``exact_match``."""
    if row.value is None:
        return False
    limit = EXACT[row.metric]
    return row.value <= limit if row.metric == "mse" else row.value >= limit
