"""Upper limits on any attack on a run, from rank, differential privacy and information."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from experiments.bounds.ceilings import ceilings
from experiments.bounds.records import CeilingLimit, LimitsRecord, RankLimit, SuccessLimit
from experiments.bounds.success import guesses, mechanism
from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.preview.feasibility import feasible
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.files import write_json
from fedsim.setting import Setting, load_setting
from fedsim.tasks import initial_weights
from fedsim.types import Tensors


@dataclass(frozen=True)
class Case:
    """A cell with its data, task and initial weights."""

    cell: Cell
    setting: Setting
    weights: Tensors

    @property
    def who(self) -> dict[str, str]:
        """The columns that all limits of the cell share."""
        chain = build_chain(self.cell.config.defense, "defense")
        return {
            "run": self.cell.experiment.name,
            "cell": self.cell.name,
            "defense": chain.name,
            "defense_options": chain.options_json,
        }


def limits(run: Run, victims: int) -> LimitsRecord:
    """Compute the limits of a run's cells, for the first seed, and write them to ``limits.json``.

    Args:
        run: cells that are not simulated get no PSNR ceiling.
        victims: number of captures per cell to compute a ceiling for; 0 for none.
    """
    known = list(cases(run.cells))
    shared: dict[str, Tensor] = {}
    record = LimitsRecord(
        ranks=tuple(limit for case in known for limit in rank_limits(case)),
        successes=tuple(limit for case in known for limit in success_limits(case)),
        ceilings=tuple(limit for case in known for limit in ceiling_limits(case, victims, shared)),
    )
    write_json(run.root / "limits.json", record)
    return record


def cases(cells: Sequence[Cell]) -> Iterator[Case]:
    """Cells of each experiment's first seed. Equal tasks are loaded once."""
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
        yield Case(cell, *loaded[key])


def rank_limits(case: Case) -> Iterator[RankLimit]:
    """Feasibility of each exact attack on the cell's modality."""
    setting = case.setting
    config, private = case.cell.config, setting.holdings.private
    for attack, found in feasible(config, setting.task, private, case.weights).items():
        yield RankLimit(**case.who, attack=attack, feasibility=found)


def success_limits(case: Case) -> Iterator[SuccessLimit]:
    """One limit per secret to guess, if the defense claims differential privacy."""
    config, private = case.cell.config, case.setting.holdings.private
    parts = partition(private.labels, config.federation.clients, config.federation, config.seed)
    # A client with few rows uses each more often, but a budget needs less noise with many rows.
    # So all sizes are tried, and the weakest protection is reported.
    found = [one for rows in sorted(set(map(len, parts))) if (one := mechanism(config, rows))]
    if not found:
        return
    for what, chance in guesses(case.setting.task, private):
        yield SuccessLimit(
            **case.who,
            unit=found[0].unit,
            noise=min(one.noise for one in found),
            guess=what,
            without=chance,
            one=max(one.bound(chance, 1) for one in found),
            all=max(one.bound(chance, one.rounds) for one in found),
            rounds=found[0].rounds,
        )


def ceiling_limits(case: Case, victims: int, shared: dict[str, Tensor]) -> Iterator[CeilingLimit]:
    """One limit per capture, if the cell is simulated and a ceiling applies to it."""
    if not victims or not case.cell.simulated:
        return
    found = ceilings(case.cell, victims, shared)
    if isinstance(found, str):
        return
    for one in found.found:
        yield CeilingLimit(
            **case.who,
            round=one.key.round,
            client=one.key.client,
            std=one.std,
            psnr=one.psnr,
            prior=found.prior,
        )
