"""How far any attack on a run can get: by rank, by differential privacy, by information."""

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
    """A cell and what its clients start from."""

    cell: Cell
    setting: Setting
    weights: Tensors

    @property
    def who(self) -> dict[str, str]:
        """The columns that all limits of the cell have."""
        chain = build_chain(self.cell.config.defense, "defense")
        return {
            "run": self.cell.experiment.name,
            "cell": self.cell.name,
            "defense": chain.name,
            "defense_options": chain.options_json,
        }


def limits(run: Run, victims: int) -> LimitsRecord:
    """The limits of a run's cells, of one seed each; kept in ``limits.json`` for the report.

    Args:
        run: what is not simulated has no ceiling.
        victims: captures of a cell whose ceiling is computed; 0 for none.
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
    """The cells of each experiment's first seed; rows and weights are loaded once."""
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
    """One for each exact attack that fits the cell's modality."""
    setting = case.setting
    config, private = case.cell.config, setting.holdings.private
    for attack, found in feasible(config, setting.task, private, case.weights).items():
        yield RankLimit(**case.who, attack=attack, feasibility=found)


def success_limits(case: Case) -> Iterator[SuccessLimit]:
    """One for each thing to guess, where differential privacy is claimed."""
    config, private = case.cell.config, case.setting.holdings.private
    parts = partition(private.labels, config.federation.clients, config.federation, config.seed)
    # With few rows each is used more often; but the noise of a budget is least with many.
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
    """One for each capture, where the cell is simulated and there is a ceiling."""
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
