"""How far any attack on a run can get: by rank, by differential privacy, by information."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor

from experiments.ceilings import ceilings, obstacle
from experiments.cells import Cell
from experiments.folder import Run
from experiments.labels import describe, settings
from experiments.rank_light import lights
from experiments.success import guesses, mechanism
from experiments.tables import Number, Table, Value, to_markdown, write_table
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.setting import Setting, load_setting
from fedsim.tasks import initial_weights
from fedsim.types import Tensors

WHO = ("setting", "defense")


@dataclass(frozen=True)
class Limits:
    """The tables that hold something."""

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
        return "\n".join(map(to_markdown, self.tables)).rstrip()


@dataclass(frozen=True)
class Case:
    """A cell, how it differs from the others, and what its clients start from."""

    cell: Cell
    where: str
    setting: Setting
    weights: Tensors

    @property
    def who(self) -> tuple[str, str]:
        """The values of ``WHO``."""
        chain = build_chain(self.cell.config.defense, "defense")
        return self.where, describe(chain.name, chain.options_json)


def limits(run: Run, victims: int) -> Limits:
    """The limits of a run's cells, of one seed each; written into the report's tables, too.

    Args:
        run: what is not simulated has no ceiling.
        victims: captures of a cell whose ceiling is computed; 0 for none.
    """
    known = list(cases(run.cells))
    made = (rank_table(known), success_table(known), ceiling_table(known, victims))
    tables = tuple(table for table in made if table.rows)
    for table in tables:
        write_table(table, run.root / "report" / "tables")
    return Limits(tables)


def cases(cells: Sequence[Cell]) -> Iterator[Case]:
    """The cells of each experiment's first seed; rows and weights are loaded once."""
    where = settings(
        {cell.name: cell.config for cell in cells},
        {cell.name: cell.experiment.name for cell in cells},
    )
    loaded: dict[str, tuple[Setting, Tensors]] = {}
    for cell in cells:
        config = cell.config
        if config.seed != cell.experiment.seeds[0]:
            continue
        key = repr((config.task, config.auxiliary, config.seed))
        if key not in loaded:
            setting = load_setting(config)
            weights = initial_weights(setting.task, config.task, config.seed)
            loaded = {key: (setting, weights)}
        yield Case(cell, where[cell.name], *loaded[key])


def rank_table(known: Sequence[Case]) -> Table:
    """One row a cell and exact attack that fits its modality."""
    rows = []
    for case in known:
        rows += [
            (
                *case.who,
                light.attack,
                light.colour,
                light.what,
                Number(median(light.counts)),
                max(light.counts),
                light.limit,
                light.reason,
            )
            for light in lights(
                case.cell.config, case.setting.task, case.setting.holdings.private, case.weights
            )
        ]
    return Table(
        "limits-ranks",
        "Whether exact attacks can work, before any is run: green where nothing is in the way, "
        "amber where they work on some replies or in part, red where they cannot. Counts of the "
        "first replies, at the first weights.",
        (*WHO, "attack", "light", "counted", "median", "largest", "limit", "why"),
        tuple(rows),
    )


def success_table(known: Sequence[Case]) -> Table:
    """One row a cell with differential privacy and thing to guess."""
    rows: list[tuple[Value, ...]] = []
    for case in known:
        config, private = case.cell.config, case.setting.holdings.private
        parts = partition(private.labels, config.federation.clients, config.federation, config.seed)
        # The client with the fewest rows is drawn from most often.
        found = mechanism(config, min(map(len, parts)))
        if found is not None:
            rows += [
                (
                    *case.who,
                    found.unit,
                    Number(found.noise),
                    what,
                    Number(chance),
                    Number(found.bound(chance, 1)),
                    Number(found.bound(chance, found.rounds)),
                    found.rounds,
                )
                for what, chance in guesses(case.setting.task, private)
            ]
    return Table(
        "limits-success",
        "No attack is right more often than this, whatever else it knows (reconstruction "
        "robustness, Balle et al. 2022, Hayes et al. 2023): the chance to guess right without any "
        "update, with one round's, and with those of all rounds. Noise is in units of the clipping "
        "norm, or of twice that where two updates are compared.",
        (*WHO, "unit", "noise", "guess", "without", "one round", "all rounds", "rounds"),
        tuple(rows),
    )


def ceiling_table(known: Sequence[Case], victims: int) -> Table:
    """One row a simulated cell of images with Gaussian noise alone."""
    rows: list[tuple[Value, ...]] = []
    shared: dict[str, Tensor] = {}
    for case in known:
        if not victims or not case.cell.simulated or obstacle(case.cell.config):
            continue
        found = ceilings(case.cell, victims, shared)
        if isinstance(found, str):
            continue
        values = [one.psnr for one in found.found]
        rows.append(
            (
                *case.who,
                Number(found.found[0].std),
                len(values),
                *(Number(value, "dB") for value in (found.psnr, min(values), max(values))),
                found.prior,
            )
        )
    return Table(
        "limits-ceilings",
        "PSNR of the least mean squared error from one noisy gradient (van Trees inequality, "
        "linearised at the true image): a local ceiling, not a proof. The class is given; that "
        "pixels lie in [0, 1] is not used.",
        (*WHO, "noise std", "images", "median", "lowest", "highest", "prior"),
        tuple(rows),
    )
