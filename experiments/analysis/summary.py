"""From rows to findings: pool the seeds, count every job, and never average over survivors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

from experiments.analysis.findings import (
    HEADLINE,
    PROBES,
    THRESHOLDS,
    Findings,
    Leakage,
    Problem,
    Result,
    RoundUtility,
    TaskFindings,
    settled,
)
from experiments.analysis.judgement import evidence
from experiments.analysis.keys import Placed
from experiments.analysis.statistics import Direction, summary
from experiments.wording.names import natural, settings
from fedsim.build import registry
from fedsim.cell import CellConfig
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.records import PRIOR_ONLY, SECOND_CLIENT, STATUSES, Modality, ScoreRow, UtilityRow

Names: TypeAlias = tuple[str, str, str, str]
Wants: TypeAlias = Mapping[str, Direction]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def metric_classes() -> dict[str, type[Metric]]:
    """The project's metrics and those of installed packages."""
    return registry(METRICS, "fedsim.metrics")


def section_names(cells: Mapping[str, CellConfig], rows: Iterable[ScoreRow]) -> dict[str, Names]:
    """Cell -> (task, dataset, model, protocol).

    A cell without scores is read from its config; where that leaves the kind of task open, it is
    that of its neighbours.
    """
    scored: dict[str, Names] = {
        row.cell: (row.task, row.dataset, row.model, row.protocol) for row in rows
    }
    kinds = {names[1:]: names[0] for names in scored.values()}
    names = dict(scored)
    for name in cells.keys() - scored.keys():
        task, protocol = cells[name].task, cells[name].federation.protocol
        rest = (task.dataset, task.model, protocol)
        kind = kinds.get(rest, task.kind) if task.kind == "auto" else task.kind
        names[name] = (kind, *rest)
    return names


def summarise(
    rows: Sequence[ScoreRow], utility: Sequence[UtilityRow], cells: Mapping[str, CellConfig]
) -> Findings:
    """Cells that differ in nothing but their seed count as one; the order of rows does not."""
    rows = sorted(rows, key=lambda row: row.model_dump_json(exclude={"seconds"}))
    utility = sorted(utility, key=lambda row: row.model_dump_json(exclude={"seconds"}))
    names, wants = section_names(cells, rows), _directions(rows)
    runs = {row.cell: row.run for row in rows} | {row.cell: row.run for row in utility}
    sections = []
    for section in sorted(set(names.values())):
        mine = {name: cell for name, cell in sorted(cells.items()) if names[name] == section}
        found = _section(
            section,
            [row for row in rows if row.cell in mine],
            [row for row in utility if row.cell in mine],
            settings(mine, runs),
            wants,
        )
        sections.append(found)
    return Findings(sections=tuple(sections))


def _directions(rows: Iterable[ScoreRow]) -> Wants:
    """Metric -> what the attacker wants, in the order of the known metrics."""
    known = metric_classes()
    if unknown := sorted({row.metric for row in rows} - known.keys()):
        raise ConfigError(
            f"scores.parquet: the metric {unknown[0]!r} is not known. "
            "Install the package that adds it, or score again."
        )
    return {name: metric.attacker_wants for name, metric in known.items()}


def _group(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for key, item in items:
        groups[key].append(item)
    return dict(groups)


def _section(
    names: Names,
    rows: list[ScoreRow],
    utility: list[UtilityRow],
    labels: Mapping[str, str],
    wants: Wants,
) -> TaskFindings:
    modality: Modality = "image" if names[0].startswith("image") else "text"

    def place(row: ScoreRow | UtilityRow) -> tuple[str, str, str]:
        return labels[row.cell], row.defense, row.defense_options

    attacked = _group(
        ((place(r), r.attack, r.attack_options, r.adaptive, r.control, r.probe), r)
        for r in rows
        if r.control != SECOND_CLIENT
    )
    measured = _group(((place(r), r.round), r) for r in utility)
    mine = [row for row in rows if row.probe == "none"]
    results = [_result(key[0][0], group, modality, wants) for key, group in attacked.items()]
    curve = [_utility(key[0][0], group) for key, group in measured.items()]
    curve.sort(key=lambda u: (*_order(u), u.round))
    results.sort(key=lambda result: (*_order(result), *_rank(result)))
    found = {one.place: _order(one) for one in (*results, *curve)}
    curves = _group((one.place, one) for one in curve)
    ends = {place: settled(group) for place, group in curves.items()}
    ordered = sorted(found, key=lambda place: found[place])
    places = {place: end.values if (end := ends.get(place)) else None for place in ordered}
    return TaskFindings(
        cells=tuple(labels),
        task=names[0],
        dataset=names[1],
        model=names[2],
        protocol=names[3],
        modality=modality,
        victims=len({_example(row) for row in mine}),
        clients=len({(row.seed, row.client) for row in mine}),
        levels=tuple(sorted({row.level for row in rows if row.level})),
        results=tuple(results),
        utility=tuple(curve),
        evidence=evidence(rows, labels, modality, places),
    )


def _example(row: ScoreRow) -> tuple[object, ...]:
    """What one private example is known by: its row, however often it is attacked."""
    if row.row is None:
        return row.seed, row.client, row.round, row.example
    return row.split, row.row


def _order(found: Placed) -> tuple[Any, ...]:
    setting, defense, options = found.place
    return natural(setting), defense != "none", defense, natural(options)


def _rank(found: Result) -> tuple[Any, ...]:
    """Within a place: each attack on clients and on probes, each with its control; prior last."""
    return (
        found.attack == PRIOR_ONLY,
        *(found.attack, natural(found.attack_options), found.adaptive),
        PROBES.index(found.probe),
        found.control != "none",
    )


def _result(setting: str, rows: list[ScoreRow], modality: Modality, wants: Wants) -> Result:
    jobs = {(row.cell, row.round, row.client): row for row in rows}
    status = Counter(row.status for row in jobs.values())
    problems = Counter(
        (row.status, row.reason) for row in jobs.values() if row.status != "done" or row.reason
    )
    metrics = _group((row.metric, row) for row in rows if row.value is not None)
    return Result(
        cells=tuple(sorted({row.cell for row in rows})),
        setting=setting,
        defense=rows[0].defense,
        defense_options=rows[0].defense_options,
        attack=rows[0].attack,
        attack_options=rows[0].attack_options,
        adaptive=rows[0].adaptive,
        control=rows[0].control,
        probe=rows[0].probe,
        jobs={name: status[name] for name in STATUSES},
        problems=tuple(
            Problem(status=name, reason=reason, jobs=count)
            for (name, reason), count in sorted(problems.items())
        ),
        leakage={
            name: _leakage(metrics[name], better)
            for name, better in wants.items()
            if name in metrics
        },
        rounds={
            metric: {
                number: _leakage(part, wants[metric])
                for number, part in sorted(_group((r.round, r) for r in metrics[metric]).items())
            }
            for metric in HEADLINE[modality]
            if metric in metrics
        },
        seconds=sum(row.seconds for row in jobs.values()),
    )


def _leakage(rows: list[ScoreRow], better: Direction) -> Leakage:
    found = summary(
        [row.value for row in rows if row.value is not None],
        [(row.seed, row.client) for row in rows],
        better=better,
        threshold=THRESHOLDS.get(rows[0].metric),
        seed=0,
    )
    return Leakage(unit=rows[0].unit, **found.model_dump())


def _utility(setting: str, rows: list[UtilityRow]) -> RoundUtility:
    by_seed: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        by_seed[row.metric][row.seed] = row.value
    # Replies and budget are told once for each metric; over seeds, the mean and the larger budget.
    cells = {row.cell: row for row in rows}.values()
    epsilons = [row.epsilon for row in cells if row.epsilon is not None]
    return RoundUtility(
        setting=setting,
        defense=rows[0].defense,
        defense_options=rows[0].defense_options,
        round=rows[0].round,
        values={metric: fmean(seeds.values()) for metric, seeds in by_seed.items()},
        by_seed=dict(by_seed),
        epsilon=max(epsilons, default=None),
        bytes_up=sum(row.bytes_up for row in cells) // len(cells),
    )
