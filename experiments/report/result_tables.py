"""The tables of one section: defenses, leakage, rounds, utility, problems, norms and bounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple

import pandas as pd

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.analysis.frames import ATTACK, PLACE, frame
from experiments.analysis.keys import DefenseInSetting
from experiments.report.beyond import Inferences, inferences_of
from experiments.report.brackets import Bracket
from experiments.report.details import phrases
from experiments.report.limit_tables import budget_table, rank_table, success_table
from experiments.report.naming import (
    attack_label,
    attack_name,
    null_of,
    number,
    place_of,
    placed,
    reached,
    unit_of_main,
    useful,
)
from experiments.report.run_results import RunResults
from experiments.report.statements import word_of
from experiments.report.tables import Number, Table, Value
from experiments.stages.coverage import Coverage
from experiments.wording.names import settings, title, utility_unit
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, STATUSES, shown

_EPSILONS = {
    "epsilon claimed": "epsilon",
    "epsilon, add or remove one": "add_or_remove",
    "epsilon, replace one": "replace",
}


def tables(section: TaskFindings) -> tuple[Table, ...]:
    """All but that of the defenses."""
    return (
        Table("leakage", "Leakage on every metric", tuple(_leakages(section))),
        Table("rounds", "Leakage by round", tuple(_rounds(section))),
        Table(
            "utility",
            "Utility of the global model on held-out rows, mean over seeds",
            tuple(_utility(section)),
        ),
        Table("problems", "Jobs by reason", tuple(_problems(section))),
        Table("adaptive", "What adapting gains", tuple(_adaptive(section))),
        Table("certified", "Certified guesses", tuple(_certified(section))),
    )


def _leakages(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """One row per attack, defense and metric, with the null baselines."""
    for result in section.results:
        nulls = [section.null(result, kind) for kind in (PRIOR_ONLY, OTHER_CLIENT)]
        for metric, measured in result.leakage.items():
            prior, other = [null.leakage.get(metric) if null else None for null in nulls]
            yield {
                **_who(section, result),
                "metric": title(metric),
                **_statistics(measured),
                "prior only": _number(prior.mean, prior.unit) if prior else None,
                "other client": _number(other.mean, other.unit) if other else None,
                **{shown(status): result.jobs[status] for status in STATUSES},
            }


def _rounds(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """One row per attack, defense, headline metric and round."""
    for result in section.results:
        for metric, by_round in result.rounds.items():
            for round_, measured in by_round.items():
                yield {
                    **_who(section, result),
                    "metric": title(metric),
                    "round": round_,
                    **_statistics(measured),
                }


def _utility(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """One row per defense and round; round 0 is before training, bytes up are of all replies."""
    metrics = sorted({name for measured in section.utility for name in measured.values})
    for measured in section.utility:
        yield {
            **placed(measured.place),
            "round": measured.round,
            "seeds": measured.seeds,
            **{title(m): _number(measured.values.get(m), utility_unit(m)) for m in metrics},
            **{k: _number(getattr(measured.spent, v, None)) for k, v in _EPSILONS.items()},
            "bytes up": measured.bytes_up,
        }


def _problems(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """One row per reason for which jobs were skipped, failed, are unfinished or left a note.

    Skipped and interrupted jobs have no score; failed ones, and unfinished ones without a guess,
    are scored as a blank guess.
    """
    for result in section.results:
        for problem in result.problems if result.control == "none" else ():
            yield {
                **_who(section, result),
                "status": shown(problem.status),
                "jobs": problem.jobs,
                "reason": problem.reason,
            }


def _adaptive(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """Each attack that ran in both variants, on the same victims.

    The intervals hold at 95 % for all rows together (Bonferroni).
    """
    unit = unit_of_main(section)
    for gap in section.evidence.gaps:
        yield {
            **placed(gap.place),
            "attack": attack_label(section, gap.attacker),
            "adaptive": Number(gap.value, unit),
            "oblivious": Number(gap.base, unit),
            "adaptive less oblivious": number(section, gap.difference),
            "victims": gap.difference.n,
            "clients": gap.difference.clusters,
        }


def _certified(section: TaskFindings) -> Iterator[dict[str, Value]]:
    """One row per defense and attack that certifies guesses: how many are exact."""
    for count in section.evidence.certified:
        rate = count.exact / count.certified if count.certified else None
        yield {
            **placed(count.place),
            "attack": attack_label(section, count.attacker),
            "certified": count.certified,
            "exact": count.exact,
            "false": count.certified - count.exact,
            "rate exact": None if rate is None else Number(rate, "1", count.low, count.high),
        }


def defense_table(
    section: TaskFindings,
    inferences: Sequence[Inferences],
    brackets: Mapping[DefenseInSetting, Bracket],
) -> Table:
    """A row a defense and setting: its verdict, the strongest attack, cost, what else is known."""
    rows = tuple(
        _defense_row(
            section, verdict, inferences_of(inferences, verdict.place), brackets.get(verdict.place)
        )
        for verdict in section.evidence.verdicts
    )
    return Table("defenses", "Each defense under the strongest attack on it", rows)


def _defense_row(
    section: TaskFindings, verdict: Verdict, inferred: Inferences | None, bracket: Bracket | None
) -> dict[str, Value]:
    measure, change, _ = useful(section, verdict.place)
    attack, leaked = reached(section, verdict.strongest)
    return {
        **placed(verdict.place),
        "verdict": word_of(section, verdict),
        "severity": verdict.grade,
        "why": "; ".join(phrases(section, verdict)),
        "clients verbatim": verdict.verbatim.hit,
        "strongest attack": attack,
        "metric": title(section.main),
        "leakage": leaked,
        "blind guess": null_of(section, verdict, verdict.null) if verdict.null else None,
        "lead over it": number(section, verdict.over_null),
        "utility metric": title(section.utility_name or ""),
        "utility": measure,
        "utility change": change,
        "victims": verdict.victims,
        "clients": verdict.clients,
        "AUC of membership": inferred.members if inferred else None,
        "epsilon accounted": inferred.accounted if inferred else None,
        "epsilon audited, at least": inferred.audited if inferred else None,
        "leaks": bracket.said if bracket else None,
        "bounded by": bracket.why if bracket else None,
    }


def coverage_table(section: TaskFindings, coverages: Iterable[Coverage]) -> Table:
    """Rows recovered so far, for attacks that were exact at least once, over clients and seeds.

    A client that sits a round out counts with its latest round: what is known of it stays known.
    """
    places = section.by_cell
    here = [row for row in coverages if row.cell in places]
    owners = pd.DataFrame([places[row.cell] for row in here], columns=PLACE)
    parts = dict(list(frame(here, Coverage).join(owners).groupby([*PLACE, *ATTACK])))
    known = [
        (r, parts.get((*r.place, *astuple(r.attacker))))
        for r in section.results
        if not r.is_control
    ]
    rows = [
        {**placed(result.place), "attack": attack_label(section, result.attacker), **counts}
        for result, part in known
        if part is not None and part.exact.any()
        for counts in _recovered(part)
    ]
    caption = (
        "Distinct private rows that the clients have used up to each captured round, how many of "
        "them the attack has recovered exactly, and how many of these it also certified: "
        f"{place_of(section)}."
    )
    return Table("coverage", caption, tuple(rows))


def _recovered(coverage: pd.DataFrame) -> Iterator[dict[str, Value]]:
    """The counts of one attack on all clients after each round; see ``Coverage``."""
    ordered = coverage.sort_values("round", kind="stable")
    for round_ in sorted(set(coverage["round"].tolist())):
        so_far = ordered[ordered["round"] <= round_]
        latest = so_far.drop_duplicates(["cell", "client"], keep="last")
        used, exact, both, false = (
            int(latest[name].sum()) for name in ("used", "exact", "recovered", "false")
        )
        yield {
            "round": round_,
            "used": used,
            "exact": exact,
            "share": Number(exact / used, "1"),
            "exact and certified": both,
            "false certificates": false,
        }


def _who(section: TaskFindings, result: Result) -> dict[str, str]:
    probe = "" if result.probe == "none" else result.probe
    return {**placed(result.place), "attack": attack_name(section, result), "probe": probe}


def _number(value: float | None, unit: str = "") -> Number | None:
    return None if value is None else Number(value, unit)


def _statistics(measured: Leakage) -> dict[str, Value]:
    share, unit = measured.share, measured.unit
    return {
        "n": measured.n,
        "clients": measured.clusters,
        "mean": _number(measured.mean, unit),
        "low": _number(measured.low, unit),
        "high": _number(measured.high, unit),
        "median": _number(measured.median, unit),
        "worst 10 %": _number(measured.worst, unit),
        "threshold": _number(share.threshold, unit) if share else None,
        "share beyond it": Number(share.value, "1", share.low, share.high) if share else None,
    }


def appendix(results: RunResults, known: Iterable[Bracket] = ()) -> dict[str, Table]:
    """Heading -> table, for one chapter; what ``fedsim limits`` wrote is of the first seed."""
    if (limits := results.limits) is None:
        return {}
    ranks, successes, brackets = limits.ranks, limits.successes, list(known)
    runs = {limit.cell: limit.run for limit in (*ranks, *successes)}
    labels = settings({name: results.cells[name] for name in runs}, runs)
    tables = {
        "Whether exact attacks can work": rank_table(ranks, labels),
        "How often a guess can be right": success_table(successes, labels),
        "How close a reconstruction can come": budget_table(brackets, settings(results.cells, {})),
    }
    return {heading: table.filled for heading, table in tables.items() if table.rows}
