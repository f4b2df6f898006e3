"""The tables of bounds on any attack on a run, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import Any, TypeAlias

from experiments.analysis.frames import score_frame
from experiments.analysis.paired import is_attack, scored
from experiments.bounds.records import CeilingLimit, Limit, LimitsRecord, RankLimit, SuccessLimit
from experiments.plan.folder import Run
from experiments.report.tables import Number, Table, Value, to_markdown
from experiments.stages.rows import read_rows
from experiments.wording.defense_names import defense_name
from experiments.wording.names import settings, title, told_apart
from fedsim.records import ScoreRow

SettingNames: TypeAlias = Mapping[str, str]
"""Cell -> its setting."""
WHO = ("setting", "defense")


def _who(limit: Limit, labels: SettingNames) -> tuple[str, str]:
    """The values of ``WHO``."""
    return labels[limit.cell], defense_name(limit.defense, limit.defense_options)


def rank_table(limits: Iterable[RankLimit], labels: SettingNames) -> Table:
    """One row per cell and exact attack for its modality."""
    return Table(
        "limits-ranks",
        "Whether exact attacks can work, known before any is run: green if nothing prevents them, "
        "amber if they work on some replies, in part or without proof, red if they cannot work. "
        "The counts are those of the first replies, at the initial weights.",
        (*WHO, "attack", "light", "counted", "median", "largest", "limit", "why"),
        tuple(
            (
                *_who(one, labels),
                title(one.attack),
                found.colour,
                found.what,
                median_low(found.counts),
                max(found.counts),
                found.limit,
                found.reason,
            )
            for one in limits
            for found in [one.feasibility]
        ),
    )


def success_table(limits: Iterable[SuccessLimit], labels: SettingNames) -> Table:
    """One row per cell with differential privacy and kind of guess."""
    return Table(
        "limits-success",
        "The largest chance of a right guess about an example of a captured round (reconstruction "
        "robustness, Balle et al. 2022, Hayes et al. 2023): without any update, with the update of "
        "that round, and with the updates of all rounds. The example is known to be used in the "
        "captured round, as is everything that is scored, so sampling hides nothing there; into "
        "the other rounds it is drawn like any row of its client. The bound holds for every client "
        "and for every attack whose chance without an update is the one given. Noise is that of "
        "the client with the least, in units of the clipping norm, or of twice the clipping norm "
        "if two updates are compared.",
        (*WHO, "unit", "noise", "guess", "without", "one round", "all rounds", "rounds"),
        tuple(
            (
                *_who(one, labels),
                one.unit,
                Number(one.noise),
                one.guess,
                *(Number(chance) for chance in (one.without, one.one, one.all)),
                one.rounds,
            )
            for one in limits
        ),
    )


def ceiling_table(
    limits: Iterable[CeilingLimit],
    labels: SettingNames,
    scores: Sequence[ScoreRow],
) -> Table:
    """One row per cell of images whose only defense is Gaussian noise, with the best attack.

    Args:
        limits: of some captures of each cell.
        labels: cell -> its setting.
        scores: of the run; empty before the score stage.
    """
    kept = list(limits)
    groups = [
        [one for one in kept if one.cell == cell] for cell in dict.fromkeys(c.cell for c in kept)
    ]
    return Table(
        "limits-ceilings",
        "PSNR of the least mean squared error from one noisy gradient (van Trees inequality, "
        "linearised at the true image): a local ceiling, not a proof. The class is assumed known; "
        "that pixels lie in [0, 1] is not used. Next to it, the attack with the highest median "
        "PSNR on the same captures.",
        (
            *(*WHO, "noise std", "images", "median", "lowest", "highest"),
            *("best attack", "its median", "prior"),
        ),
        tuple(_ceiling_row(group, labels, scores) for group in groups),
    )


def _ceiling_row(
    group: Sequence[CeilingLimit], labels: SettingNames, rows: Iterable[ScoreRow]
) -> tuple[Value, ...]:
    values, first = [one.psnr for one in group], group[0]
    attack, reached = _best_attack(group, rows)
    return (
        *_who(first, labels),
        Number(first.std),
        len(values),
        *(Number(value, "dB") for value in (median(values), min(values), max(values))),
        attack,
        None if reached is None else Number(reached, "dB"),
        first.prior,
    )


def _best_attack(
    group: Sequence[CeilingLimit], rows: Iterable[ScoreRow]
) -> tuple[str, float | None]:
    """Label and median PSNR of the best attack with a value for each of these captures."""
    captures = {(one.client, one.round) for one in group}
    cell = group[0].cell
    mine = score_frame((row for row in rows if row.cell == cell), {cell: cell})
    attacks = list(filter(is_attack, scored(mine, "psnr")))
    found = [
        (median(values), told_apart(one.attacker, (other.attacker for other in attacks)))
        for one in attacks
        for values in [[x for v, x in one.values.items() if (v.client, v.round) in captures]]
        if len(values) == len(captures)
    ]
    best, name = max(found, default=(None, ""))
    return name, best


@dataclass(frozen=True)
class Limits:
    """The tables of one run that have rows."""

    run: Path
    tables: tuple[Table, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            table.name: [
                {
                    column: value.value if isinstance(value, Number) else value
                    for column, value in zip(table.columns, row, strict=True)
                }
                for row in table.rows
            ]
            for table in self.tables
        }

    def text(self) -> str:
        """For a terminal."""
        tables = "\n".join(map(to_markdown, self.tables))
        return f"{tables}\nfedsim report {self.run} puts these tables on the page."


def limit_tables(run: Run, record: LimitsRecord) -> Limits:
    """The tables of a run's limits, without empty ones."""
    labels = settings(
        {cell.name: cell.config for cell in run.cells},
        {cell.name: cell.experiment.name for cell in run.cells},
    )
    path = run.root / "scores.parquet"
    scores = read_rows(path, ScoreRow) if path.exists() else []
    made = (
        rank_table(record.ranks, labels),
        success_table(record.successes, labels),
        ceiling_table(record.ceilings, labels, scores),
    )
    return Limits(run.root, tuple(table for table in made if table.rows))
