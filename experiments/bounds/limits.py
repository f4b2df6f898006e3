"""Upper limits on any attack on a run, from rank, differential privacy and information."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from experiments.bounds.budgets import bits_sent, measured
from experiments.bounds.ceilings import InformationSpectrum, ceiling
from experiments.bounds.information import Listed, decibels, gaussian_error, most
from experiments.bounds.noise import least_noise, over_rounds
from experiments.bounds.records import (
    BudgetLimit,
    LimitsRecord,
    RankLimit,
    Source,
    SuccessLimit,
)
from experiments.bounds.success import guesses, mechanism
from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.preview.feasibility import feasible
from experiments.stages.privacy import owned
from fedsim.config.setting import Setting, load_setting
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.store.files import write_json
from fedsim.tasks import initial_weights
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Case:
    """A cell with its data, task and initial weights."""

    cell: Cell
    setting: Setting
    weights: Tensors

    @property
    def who(self) -> dict[str, Any]:
        """The columns that all limits of the cell share."""
        chain = build_chain(self.cell.config.defense, "defense")
        return {
            "run": self.cell.experiment.name,
            "cell": self.cell.name,
            "defense": chain.name,
            "defense_options": chain.options_json,
        }


def limits(run: Run, *, gaussian: bool = True) -> LimitsRecord:
    """Compute the limits of a run's cells, for the first seed, and write them to ``limits.json``.

    Args:
        run: cells that are not simulated get no budget.
        gaussian: bound the PSNR were images Gaussian, too, which takes Jacobians.
    """
    known = list(cases(run.cells))
    shared: dict[str, Tensor] = {}
    record = LimitsRecord(
        ranks=tuple(limit for case in known for limit in rank_limits(case)),
        successes=tuple(limit for case in known for limit in success_limits(case)),
        budgets=tuple(
            limit for case in known for limit in budget_limits(case, shared, gaussian=gaussian)
        ),
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
    for attack, feasibility in feasible(config, setting.task, private, case.weights).items():
        yield RankLimit(**case.who, attack=attack, feasibility=feasibility)


def success_limits(case: Case) -> Iterator[SuccessLimit]:
    """One limit per secret to guess, if the defense claims differential privacy."""
    config, private = case.cell.config, case.setting.holdings.private
    parts = partition(private.labels, config.federation.clients, config.federation, config.seed)
    # A client with few rows uses each more often, but a budget needs less noise with many rows.
    # So all sizes are tried, and the weakest protection is reported.
    mechanisms = [
        each for rows in sorted(set(map(len, parts))) if (each := mechanism(config, rows))
    ]
    if not mechanisms:
        return
    for what, chance in guesses(case.setting.task, private):
        yield SuccessLimit(
            **case.who,
            unit=mechanisms[0].unit,
            noise=min(each.noise for each in mechanisms),
            guess=what,
            without=chance,
            one=max(each.bound(chance, 1) for each in mechanisms),
            all=max(each.bound(chance, each.rounds) for each in mechanisms),
            rounds=mechanisms[0].rounds,
        )


def budget_limits(
    case: Case, shared: dict[str, Tensor], *, gaussian: bool
) -> Iterator[BudgetLimit]:
    """What the replies of a simulated and captured cell tell at most."""
    cell = case.cell
    if not cell.simulated or not cell.captures.keys():
        return
    rows = owned(cell)
    noise = least_noise(cell.config, rows)
    known: list[tuple[float, Source]] = [(bits_sent(cell), "bits sent")]
    if noise:
        known.append((noise.clipped, "clipping and noise"))
        if isinstance(nats := measured(cell, noise), float):
            known.append((nats, "noise on public gradients"))
    nats, source = min(known)
    # Gradients were measured at the weights of one round, and say nothing of others.
    single = cell.config.federation.rounds == 1
    lasting = [both for both in known if single or both[1] != "noise on public gradients"]
    of_a_round, lasting_source = min(lasting)
    whole = over_rounds(cell.config, rows, of_a_round)
    more: dict[str, Any] = {}
    public = _public(cell)
    if public is not None and public.mask is not None:
        more = {"exact": most(_alike(public), nats)}
    elif public is not None and len(public.inputs) > public.inputs.shape[1]:
        listed = Listed(public.inputs.flatten(1), public.labels)
        prior = InformationSpectrum.of(public.inputs)
        rate = decibels(gaussian_error(prior.power, nats))
        top = ceiling(cell, noise, prior, shared) if noise and gaussian else ""
        more = {
            "images": len(public.inputs),
            "blind": decibels(listed.error(0.0)),
            "proved": decibels(listed.error(nats)),
            "all_proved": decibels(listed.error(whole)),
            "assumed": rate if isinstance(top, str) else min(top, rate),
        }
    information = {"source": source, "nats": nats, "all_source": lasting_source, "all": whole}
    yield BudgetLimit(**{**case.who, **information, **more})


def _public(cell: Cell) -> Batch | None:
    if not (cell.captures.root / "auxiliary.safetensors").exists():
        return None
    return cell.captures.auxiliary()


def _alike(texts: Batch) -> float:
    """Share of the commonest text among public ones.

    Tell the attacker a list of public texts, one of them the truth: that can only help, and no
    blind guess is right more often than the commonest is there.
    """
    counts = texts.inputs.unique(dim=0, return_counts=True)[1]
    return float(counts.max()) / len(texts.inputs)
