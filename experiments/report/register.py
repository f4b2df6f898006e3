"""The register of attacks: what was tried, with which budget and outcome, and what was not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from attacks import attack_classes
from experiments.analysis.findings import Result, TaskFindings
from experiments.analysis.membership import METRICS, SEEN, Finding, inferred, tried
from experiments.analysis.membership import labels as labels_of
from experiments.plan.entries import allows_for, entries
from experiments.plan.folder import Run
from experiments.preview.manuals import CATALOGS
from experiments.report.naming import attack_label, named_place
from experiments.report.tables import Number
from experiments.wording.names import defense_name, options, settings, spoken, title
from fedsim.api.findings import Objective, Tested
from fedsim.records import PRIOR_ONLY, STATUSES, ScoreRow
from fedsim.visible import redacted

_Place: TypeAlias = tuple[str, str, str]
"""Setting, defense and attack, as they are printed."""

OBJECTIVES: Mapping[str, Objective] = {
    "rows": "data reconstruction",
    "membership": "membership inference",
}
_ENTIRE = (
    "model extraction: not applicable, as the server owns the model",
    "poisoning, evasion and abuse: no attacks on privacy, and out of scope",
)


def register(
    run: Run, sections: Sequence[TaskFindings], known: Mapping[str, Any]
) -> Iterator[Tested]:
    """A line for each attack under each defense; null baselines stand in their outcome."""
    commit = str(known.get("commits", {}).get("attack", "unknown"))
    common = {
        "version": f"fedsim {known.get('fedsim', 'unknown')}, commit {commit[:12]}",
        "date": str(known.get("started", ""))[:10],
    }
    budgets = _budgets(run)
    said = CATALOGS["attacks"]()
    for section in sections:
        for result in section.results:
            if result.is_control or result.attack == PRIOR_ONLY:
                continue
            setting, defense = named_place(result.place)
            yield Tested(
                objective=OBJECTIVES["rows"],
                setting=setting,
                defense=spoken(defense),
                attack=attack_label(section, result.attacker),
                what=said.get(result.attack, "").replace("``", ""),
                options=options(result.attack_options),
                adapted=allows_for(result.attacker, result.place.defense_options),
                budget=f"{sum(result.jobs.values())} captures; {budgets[section.cells[0]]}",
                jobs=result.jobs,
                outcome=_outcome(section, result),
                **common,
            )
    yield from _inferences(run, common, budgets)


def untried(run: Run, sections: Sequence[TaskFindings], lines: Sequence[Tested]) -> Iterator[str]:
    """Objectives that no attack tried, and built-in attacks that were not run.

    Args:
        run: its plan says which attacks were to be run.
        sections: their data decides which attacks could have been.
        lines: of the register.
    """
    tried = {entry.infers for e in run.plan.experiments for entry in entries(e)}
    ran = {line.objective for line in lines if sum(line.jobs.values()) > line.jobs["skipped"]}
    names = {entry.key.attack for e in run.plan.experiments for entry in entries(e)}
    for kind, objective in OBJECTIVES.items():
        if kind not in tried:
            yield f"{objective}: not tried"
        elif objective not in ran:
            yield f"{objective}: every attack refused"
    modalities = {section.modality for section in sections}
    others = [
        title(name)
        for name, cls in attack_classes().items()
        if name not in {*names, PRIOR_ONLY} and cls.infers == "rows" and cls.modalities & modalities
    ]
    if others:
        yield f"data reconstruction by {', '.join(sorted(others))}: not tried"
    yield from _ENTIRE


def _inferences(
    run: Run, common: Mapping[str, str], budgets: Mapping[str, str]
) -> Iterator[Tested]:
    configs = {cell.name: cell.config for cell in run.cells}
    labels = settings(configs, {cell.name: cell.experiment.name for cell in run.cells})
    budget = next(iter(budgets.values()))
    rows = tried(run.membership)
    attacks, by_attack = labels_of(rows), defaultdict[_Place, list[ScoreRow]](list)
    for row in rows:
        if row.control == "none":
            defense = defense_name(row.defense, row.defense_options)
            by_attack[labels[row.cell], defense, attacks[row.attack_key]].append(row)
    outcomes = defaultdict[_Place, list[str]](list)
    for finding in inferred(rows, labels, configs):
        if finding.round is None and finding.control == SEEN:
            key = finding.setting, finding.defense, finding.attack
            outcomes[key].append(_inference(finding))
    for key, scored in by_attack.items():
        captures = {(row.cell, row.round, row.client): row for row in scored}.values()
        counts = Counter(row.status for row in captures)
        jobs: dict[str, int] = {status: counts[status] for status in STATUSES}
        problems = Counter((row.status, row.reason) for row in captures)
        for outcome in outcomes[key] or [_none([(*what, n) for what, n in problems.items()])]:
            yield Tested(
                objective=OBJECTIVES["membership"],
                setting=key[0],
                defense=spoken(key[1]),
                attack=key[2],
                what="",
                options="",
                adapted=False,
                budget=budget,
                jobs=jobs,
                outcome=outcome,
                **common,
            )


def _inference(finding: Finding) -> str:
    number = Number(finding.mean, "1", finding.low, finding.high)
    surely = ", surely more than a guess" if finding.tells else ""
    return f"{METRICS[finding.metric]} {number}, {finding.clients} clients{finding.cut}{surely}"


def _none(problems: Iterable[tuple[str, str, int]]) -> str:
    """Why there is no score; the reason of a failed job is left out, as it may hold a guess."""
    status, reason, _ = max(problems, key=lambda problem: problem[2], default=("", "", 0))
    return f"no score: {redacted(reason)}" if status == "skipped" and reason else "no score"


def _budgets(run: Run) -> dict[str, str]:
    """Cell -> time that a job may take."""
    return {
        cell.name: f"at most {cell.experiment.attack_stage.time_budget:g} s a job"
        for cell in run.cells
    }


def _outcome(section: TaskFindings, result: Result) -> str:
    """The mean of the main metric beside that of the blind guess."""
    leakage = result.leakage.get(section.main)
    if leakage is None:
        return _none(
            [(problem.status, problem.reason, problem.jobs) for problem in result.problems]
        )
    unit = "" if leakage.unit == "1" else f" {leakage.unit}"
    mean = Number(leakage.mean, leakage.unit, leakage.low, leakage.high)
    text = f"mean {title(section.main)} {mean}{unit}"
    null = section.null(result, PRIOR_ONLY)
    blind = null.leakage.get(section.main) if null else None
    return text + (f"; a blind guess {Number(blind.mean, blind.unit)}{unit}" if blind else "")
