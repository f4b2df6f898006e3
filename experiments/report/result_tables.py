"""The tables of results of one section: leakage, rounds, trends, utility and its price, jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import pandas as pd

from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.analysis.frames import PLACE, frame
from experiments.analysis.keys import DefenseInSetting
from experiments.report.naming import (
    attack_name,
    named_place,
    place_of,
    shown_metrics,
    unit_of_main,
)
from experiments.report.numbers import number
from experiments.report.tables import Number, Table, Value
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import defense_name, family
from experiments.wording.names import title, utility_unit
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, STATUSES, shown

STATISTICS = (
    *("n", "clients", "mean", "low", "high", "median", "worst 10 %"),
    *("threshold", "share beyond it"),
)
WHO = ("setting", "defense", "attack", "probe")


def tables(section: TaskFindings) -> tuple[Table, ...]:
    """Headline, leakage, rounds, utility, jobs and problems."""
    where = place_of(section)
    return (
        headline(section, where),
        leakage(section, where),
        rounds(section, where),
        utility(section, where),
        jobs(section, where),
        problems(section, where),
    )


def headline(section: TaskFindings, where: str) -> Table:
    """One row per attack and defense: means with intervals, jobs and utility."""
    metrics = shown_metrics(section)
    useful = sorted({name for measured in section.utility for name in measured.values})
    rows = []
    for result in section.results:
        end = section.at_end(result.place)
        values = end.values if end else {}
        rows.append(
            (
                *_who(section, result),
                result.n,
                "/".join(str(result.jobs[status]) for status in STATUSES),
                *(_interval(result.leakage.get(metric)) for metric in metrics),
                *(_number(values.get(name), utility_unit(name)) for name in useful),
            )
        )
    return Table(
        "headline",
        f"Mean leakage with its 95 % interval, clustered by client, and mean utility over the last "
        f"tenth of the rounds: {where}. Jobs are {'/'.join(map(shown, STATUSES))}.",
        (*WHO, "n", "jobs", *map(title, metrics), *map(title, useful)),
        tuple(rows),
    )


def leakage(section: TaskFindings, where: str) -> Table:
    """One row per attack, defense and metric, with the null baselines."""
    rows = []
    for result in section.results:
        prior, other = (section.null(result, kind) for kind in (PRIOR_ONLY, OTHER_CLIENT))
        for metric, measured in result.leakage.items():
            nulls = (null.leakage.get(metric) if null else None for null in (prior, other))
            rows.append(
                (
                    *_who(section, result),
                    title(metric),
                    *_statistics(measured),
                    *(_number(null.mean, null.unit) if null else None for null in nulls),
                    *(result.jobs[status] for status in STATUSES),
                )
            )
    return Table(
        "leakage",
        f"Leakage on every metric, next to the null baselines: {where}.",
        (
            *WHO,
            "metric",
            *STATISTICS,
            *("prior only", "other client"),
            *map(shown, STATUSES),
        ),
        tuple(rows),
    )


def rounds(section: TaskFindings, where: str) -> Table:
    """One row per attack, defense, headline metric and round."""
    return Table(
        "rounds",
        f"Leakage by round: {where}.",
        (
            *WHO,
            *("metric", "round"),
            *STATISTICS,
        ),
        tuple(
            (
                *_who(section, result),
                title(metric),
                number,
                *_statistics(measured),
            )
            for result in section.results
            for metric, by_round in result.rounds.items()
            for number, measured in by_round.items()
        ),
    )


def utility(section: TaskFindings, where: str) -> Table:
    """One row per defense and round."""
    metrics = sorted({name for measured in section.utility for name in measured.values})
    return Table(
        "utility",
        f"Utility of the global model on held-out rows, mean over seeds. Round 0 is before "
        f"training; bytes up is the size of all replies of a round: {where}.",
        ("setting", "defense", "round", "seeds", *map(title, metrics), "epsilon", "bytes up"),
        tuple(
            (
                measured.setting,
                defense_name(measured.defense, measured.defense_options),
                measured.round,
                measured.seeds,
                *(_number(measured.values.get(name), utility_unit(name)) for name in metrics),
                _number(measured.epsilon),
                measured.bytes_up,
            )
            for measured in section.utility
        ),
    )


def jobs(section: TaskFindings, where: str) -> Table:
    """One row per attack and defense; controls are left out, since they reuse other jobs."""
    return Table(
        "jobs",
        "Number of jobs by status, and mean wall time of a job in seconds; the time in which an "
        f"attack learned from auxiliary data is not included: {where}.",
        (*WHO, *map(shown, STATUSES), "seconds per job"),
        tuple(
            (
                *_who(section, result),
                *(result.jobs[status] for status in STATUSES),
                Number(result.seconds / sum(result.jobs.values())),
            )
            for result in section.results
            if result.control == "none"
        ),
    )


def problems(section: TaskFindings, where: str) -> Table:
    """One row per reason for which jobs were skipped, failed, are unfinished or left a note."""
    return Table(
        "problems",
        f"Jobs that were skipped, interrupted, failed, unfinished or left a note: {where}. Skipped "
        "jobs have no score, nor have interrupted ones, which fedsim attack runs again; failed "
        "jobs, and unfinished ones without a guess, are scored as a blank guess.",
        (*WHO, "status", "jobs", "reason"),
        tuple(
            (
                *_who(section, result),
                shown(problem.status),
                problem.jobs,
                problem.reason,
            )
            for result in section.results
            if result.control == "none"
            for problem in result.problems
        ),
    )


def _who(section: TaskFindings, result: Result) -> tuple[str, str, str, str]:
    probe = "" if result.probe == "none" else result.probe
    return *named_place(result.place), attack_name(section, result), probe


def _number(value: float | None, unit: str = "") -> Number | None:
    return None if value is None else Number(value, unit)


def _interval(measured: Leakage | None) -> Number | None:
    return (
        None
        if measured is None
        else Number(measured.mean, measured.unit, measured.low, measured.high)
    )


def _statistics(measured: Leakage) -> tuple[Value, ...]:
    values = (measured.mean, measured.low, measured.high, measured.median, measured.worst)
    share = measured.share
    beyond = Number(share.value, "1", share.low, share.high) if share else None
    return (
        *(measured.n, measured.clusters, *(_number(value, measured.unit) for value in values)),
        *(_number(share.threshold if share else None, measured.unit), beyond),
    )


def tradeoff_tables(section: TaskFindings) -> tuple[Table, Table]:
    """Leakage at a stated loss of utility, and compared with DP-SGD of equal utility."""
    where, unit, evidence = place_of(section), unit_of_main(section), section.evidence
    loss = f"{100 * evidence.at_loss[0].loss:g} %" if evidence.at_loss else "a stated share"
    return (
        Table(
            "at-loss",
            f"The least leakage of each family of defenses that costs at most {loss} of the "
            f"utility without a defense: mean {title(section.main)} of the strongest attack. A "
            "value between two members of the family is interpolated linearly; no such setting was "
            "run. The interval takes utility as known and ignores that the member was chosen on "
            f"the same victims: {where}.",
            ("setting", "defense", "leakage", "victims", "how"),
            tuple(
                (
                    *(row.setting, family(row.defense)),
                    number(section, row.leakage),
                    row.leakage.n if row.leakage else None,
                    row.how,
                )
                for row in evidence.at_loss
            ),
        ),
        Table(
            "equal-utility",
            "Each defense compared with DP-SGD of the same utility, both under the strongest "
            "attack on them and on the same victims. DP-SGD is interpolated between its settings, "
            "with no defense as the weakest one and without those that another setting beats in "
            "both leakage and utility. The intervals hold at 95 % each and ignore that attacks and "
            f"settings were chosen on the same victims. Above 0, DP-SGD leaks less: {where}.",
            ("setting", "defense", "leakage", "DP-SGD", "defense less DP-SGD", "victims", "how"),
            tuple(
                (
                    *named_place(row.place),
                    None if row.leakage is None else Number(row.leakage, unit),
                    None if row.dp_sgd is None else Number(row.dp_sgd, unit),
                    number(section, row.difference),
                    row.difference.n if row.difference else None,
                    row.how,
                )
                for row in evidence.equal_utility
            ),
        ),
    )


def trend(section: TaskFindings, updates: Iterable[UpdateRow]) -> Table:
    """One row per attack, defense and kind of probe with two captured rounds or more."""
    norms = mean_norms(section, updates)
    shown = [
        result
        for result in section.results
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1
    ]
    return Table(
        "trend",
        f"Mean {title(section.main)} in the first, middle and last captured round with its 95 % "
        "interval, clustered by client, and the mean norm of the updates of these rounds. Clients "
        "that do not use all of their rows train on others in each round, probes always on the "
        "same: "
        f"{place_of(section)}.",
        (
            *("setting", "defense", "attack", "probe", "rounds", "first", "middle", "last"),
            *("norm first", "norm middle", "norm last"),
        ),
        tuple(_row(section, result, norms) for result in shown),
    )


def _row(
    section: TaskFindings, result: Result, norms: Mapping[tuple[DefenseInSetting, int], float]
) -> tuple[Value, ...]:
    rounds = result.rounds[section.main]
    numbers = list(rounds)
    middle = numbers[len(numbers) // 2] if len(numbers) > 2 else None
    picked = (numbers[0], middle, numbers[-1])
    leakages = [None if number is None else rounds[number] for number in picked]
    lengths = [None if n is None else norms.get((result.place, n)) for n in picked]
    return (
        *named_place(result.place),
        attack_name(section, result),
        "" if result.probe == "none" else result.probe,
        ", ".join(str(number) for number in picked if number is not None),
        *(
            Number(leakage.mean, leakage.unit, leakage.low, leakage.high) if leakage else None
            for leakage in leakages
        ),
        *(None if length is None else Number(length) for length in lengths),
    )


def mean_norms(
    section: TaskFindings, rows: Iterable[UpdateRow]
) -> Mapping[tuple[DefenseInSetting, int], float]:
    """Mean norm of the updates over clients and seeds, by defense and round."""
    places = section.by_cell
    here = [row for row in rows if row.cell in places]
    owners = pd.DataFrame([places[row.cell] for row in here], columns=PLACE)
    updates = frame(here, UpdateRow).join(owners)
    return {
        (DefenseInSetting(*place), number): fmean(norms)
        for (*place, number), norms in updates.groupby([*PLACE, "round"]).norm
    }
