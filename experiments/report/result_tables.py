"""The tables of results of one section: leakage, rounds, utility and jobs."""

from __future__ import annotations

from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.report.naming import attack_name, named_place, place_of, shown_metrics
from experiments.report.tables import Number, Table, Value
from experiments.wording.defense_names import defense_name
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
