"""From rows to findings: seeds are pooled, and every job counts, whatever became of it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.analysis.findings import (
    HEADLINE,
    PROBES,
    Findings,
    Leakage,
    Problem,
    Result,
    RoundUtility,
    TaskFindings,
)
from experiments.analysis.frames import (
    ATTACK,
    PLACE,
    by_status,
    jobs,
    score_frame,
    utility_frame,
    with_prior,
)
from experiments.analysis.judgement import evidence
from experiments.analysis.keys import DefenseInSetting, Placed
from experiments.analysis.membership import SEEN, Finding, inferred
from experiments.analysis.power import Search
from experiments.analysis.statistics import Direction, summary
from experiments.plan.config import VerdictRule
from experiments.stages.coverage import THRESHOLDS
from experiments.stages.search_errors import SearchErrors
from experiments.wording.epsilons import Epsilons
from experiments.wording.names import defense_name, natural, settings
from fedsim.config.build import registry
from fedsim.config.cell import CellConfig
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.records import (
    OTHER_CLIENTS,
    PRIOR_ONLY,
    SECOND_CLIENT,
    AttackKey,
    Modality,
    ScoreRow,
    UtilityRow,
)

Bounded: TypeAlias = Callable[[str, Modality, VerdictRule], bool]
"""Whether no attack on a cell can gain the smallest effect of a rule."""


class SectionKey(NamedTuple):
    """What the cells of a section have in common."""

    task: str
    dataset: str
    model: str
    protocol: str

    @property
    def modality(self) -> Modality:
        """Kind of the private data; it decides on the metrics."""
        return "image" if self.task.startswith("image") else "text"


def metric_classes() -> dict[str, type[Metric]]:
    """The project's metrics and those of installed packages."""
    return registry(METRICS, "fedsim.metrics")


def summarise(
    rows: Sequence[ScoreRow],
    utility: Sequence[UtilityRow],
    cells: Mapping[str, CellConfig],
    *,
    rules: Mapping[str, VerdictRule] | None = None,
    membership: Sequence[ScoreRow] = (),
    searches: Sequence[SearchErrors] = (),
    bounded: Bounded = lambda *_: False,
) -> Findings:
    """Findings by section, independent of the order of the rows.

    Cells that differ in their seeds alone are pooled.

    Args:
        rows: scores of all cells.
        utility: utility of all cells, by round.
        cells: by name; those of every row are among them.
        rules: of the verdicts, by experiment; the default for one that is missing. A section is
            judged by the rule of its first cell.
        membership: scores of membership attacks.
        searches: how far attacks searched their objectives, by cell.
        bounded: by which cells hold; none unless it is given.
    """
    directions, keys = _directions(rows), section_keys(cells, rows)
    runs = {row.cell: row.run for row in rows} | {row.cell: row.run for row in utility}
    sections = []
    for key in sorted(set(keys.values())):
        mine = {name: cell for name, cell in sorted(cells.items()) if keys[name] == key}
        labels = settings(mine, runs)
        scores = score_frame((row for row in rows if row.cell in mine), labels)
        measured = utility_frame((row for row in utility if row.cell in mine), labels)
        rule = (rules or {}).get(runs.get(min(mine), ""), VerdictRule())
        members = _members([row for row in membership if row.cell in mine], labels, mine)
        places = {
            DefenseInSetting(*place)
            for place, part in scores.groupby(PLACE)
            if all(bounded(cell, key.modality, rule) for cell in part.cell.unique())
        }
        sections.append(
            _section(
                key,
                tuple(mine),
                scores,
                measured,
                directions,
                rule,
                members,
                _searches([errors for errors in searches if errors.cell in mine], labels),
                places,
            )
        )
    return Findings(sections=tuple(sections))


def section_keys(
    cells: Mapping[str, CellConfig], rows: Iterable[ScoreRow]
) -> dict[str, SectionKey]:
    """Cell -> its section.

    The section of a cell without scores is read from its config. If the config leaves the kind of
    task to be detected, it is that of the scored cells with the same data, model and protocol.
    """
    keys = {row.cell: SectionKey(row.task, row.dataset, row.model, row.protocol) for row in rows}
    kinds = {key[1:]: key.task for key in keys.values()}
    for name in cells.keys() - keys.keys():
        task, protocol = cells[name].task, cells[name].federation.protocol
        rest = (task.dataset, task.model, protocol)
        kind = kinds.get(rest, task.kind) if task.kind == "auto" else task.kind
        keys[name] = SectionKey(kind, *rest)
    return keys


def _directions(rows: Iterable[ScoreRow]) -> dict[str, Direction]:
    """Metric -> the direction that the attacker wants, in the order of the known metrics."""
    known = metric_classes()
    if unknown := sorted({row.metric for row in rows} - known.keys()):
        raise ConfigError(
            f"scores.parquet: the metric {unknown[0]!r} is not known. "
            "Install the package that adds it, or score again."
        )
    return {name: metric.attacker_wants for name, metric in known.items()}


def _section(
    key: SectionKey,
    cells: tuple[str, ...],
    scores: pd.DataFrame,
    measured: pd.DataFrame,
    directions: Mapping[str, Direction],
    rule: VerdictRule,
    members: Mapping[DefenseInSetting, Finding],
    searches: Mapping[DefenseInSetting, Mapping[AttackKey, Search]],
    bounded: Collection[DefenseInSetting],
) -> TaskFindings:
    results = [
        _result(part, key.modality, directions)
        for _, part in with_prior(scores).groupby([*PLACE, *ATTACK, "control", "probe"])
        if part.control.iloc[0] not in {SECOND_CLIENT, OTHER_CLIENTS}
    ]
    results.sort(key=lambda result: (*_order(result), *_rank(result)))
    curve = [_utility(part) for _, part in measured.groupby([*PLACE, "round"])]
    curve.sort(key=lambda utility: (*_order(utility), utility.round))
    return TaskFindings(
        cells=cells,
        **key._asdict(),
        modality=key.modality,
        victims=_private_examples(scores),
        clients=scores.loc[scores.probe == "none", "client"].nunique(),
        levels=tuple(sorted(filter(None, set(scores.level)))),
        results=tuple(results),
        utility=tuple(curve),
        evidence=evidence(
            scores,
            key.modality,
            list(dict.fromkeys(p.place for p in sorted((*results, *curve), key=_order))),
            rule=rule,
            members=members,
            searches=searches,
            bounded=bounded,
        ),
        rule=rule,
    )


def _members(
    rows: Sequence[ScoreRow], labels: Mapping[str, str], cells: Mapping[str, CellConfig]
) -> dict[DefenseInSetting, Finding]:
    """What tells members best under each defense, over all rounds."""
    places = {
        (labels[row.cell], defense_name(row.defense, row.defense_options)): DefenseInSetting(
            labels[row.cell], row.defense, row.defense_options
        )
        for row in rows
    }
    known = sorted(inferred(rows, labels, cells), key=lambda finding: (finding.tells, finding.mean))
    return {
        places[finding.setting, finding.defense]: finding
        for finding in known
        if finding.control == SEEN and finding.round is None
    }


def _searches(
    known: Iterable[SearchErrors], labels: Mapping[str, str]
) -> dict[DefenseInSetting, dict[AttackKey, Search]]:
    """How far each attack searched under each defense, over all seeds."""
    parts: dict[DefenseInSetting, list[SearchErrors]] = defaultdict(list)
    for errors in known:
        place = DefenseInSetting(labels[errors.cell], errors.defense, errors.defense_options)
        parts[place].append(errors)
    return {place: Search.by_attack(mine) for place, mine in parts.items()}


def _private_examples(scores: pd.DataFrame) -> int:
    """Number of distinct private examples; one that is attacked in two rounds counts once."""
    unprobed, known = scores.probe == "none", scores.row >= 0
    rows = scores.loc[unprobed & known, ["split", "row"]].drop_duplicates()
    unknown = scores.loc[
        unprobed & ~known, ["seed", "client", "round", "example"]
    ].drop_duplicates()
    return len(rows) + len(unknown)


def _order(placed: Placed) -> tuple[Any, ...]:
    """By setting, no defense first, then by name and options, numbers by their value."""
    place = placed.place
    options = natural(place.defense_options)
    return natural(place.setting), place.defense != "none", place.defense, options


def _rank(result: Result) -> tuple[Any, ...]:
    """Within a defense: clients before probes, each attack before its control, the prior last."""
    return (
        result.attack == PRIOR_ONLY,
        *(result.attack, natural(result.attack_options), result.adaptive),
        PROBES.index(result.probe),
        result.control != "none",
    )


def _result(
    scores: pd.DataFrame, modality: Modality, directions: Mapping[str, Direction]
) -> Result:
    """What one attack got under one defense; ``scores`` holds its rows alone."""
    first, done, known = scores.iloc[0], jobs(scores), scores[scores.has_value]
    said = done[(done.status != "done") | (done.reason != "")]
    problems = said.groupby(["status", "reason", "cause"]).size()
    values, clients = known.value.to_numpy(float), known.client.to_numpy()
    numbers = known.row.to_numpy(int)
    units = dict(zip(known.metric, known.unit, strict=True))
    by_metric = known.groupby("metric").indices
    by_round = known.groupby(["metric", "round"]).indices

    def leakage(metric: str, where: npt.NDArray[np.intp]) -> Leakage:
        interval = summary(
            values[where],
            clients[where],
            rows=numbers[where],
            better=directions[metric],
            threshold=THRESHOLDS.get(metric),
        )
        return Leakage(unit=units[metric], **interval.model_dump())

    return Result(
        cells=tuple(sorted(set(scores.cell))),
        **{name: first[name] for name in (*PLACE, *ATTACK, "control", "probe")},
        jobs=by_status(done),
        problems=tuple(
            Problem(status=status, reason=reason, cause=cause, jobs=count)
            for (status, reason, cause), count in problems.items()
        ),
        leakage={name: leakage(name, by_metric[name]) for name in directions if name in by_metric},
        rounds={
            name: {
                number: leakage(name, where)
                for (metric, number), where in sorted(by_round.items(), key=lambda item: item[0])
                if metric == name
            }
            for name in HEADLINE[modality]
            if name in by_metric
        },
        seconds=sum(done.seconds.tolist()),
    )


def _utility(measured: pd.DataFrame) -> RoundUtility:
    """Utility under one defense after one round: means over seeds, the largest budget spent."""
    by_seed = {
        metric: dict(zip(part.seed.tolist(), part.value.tolist(), strict=True))
        for metric, part in measured.groupby("metric", sort=False)
    }
    cells = measured.drop_duplicates("cell", keep="last")  # a row per metric repeats the rest
    first, claims = measured.iloc[0], cells.dropna(subset="epsilon")
    known = [
        Epsilons(**row.dropna().to_dict()) for _, row in claims[[*Epsilons.model_fields]].iterrows()
    ]
    return RoundUtility(
        **{name: first[name] for name in (*PLACE, "round")},
        values={metric: fmean(seeds.values()) for metric, seeds in by_seed.items()},
        by_seed=by_seed,
        spent=max(known, key=lambda each: each.epsilon, default=None),
        bytes_up=sum(cells.bytes_up.tolist()) // len(cells),
    )
