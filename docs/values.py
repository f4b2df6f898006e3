"""The numbers of a finished run, each with the words that tell it from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from experiments.analysis.differences import attacks_of, sections
from experiments.analysis.findings import HEADLINE, Findings, Result, TaskFindings, settled
from experiments.analysis.membership import METRICS, inferred
from experiments.analysis.paired import difference
from experiments.analysis.statistics import Estimate
from experiments.plan.folder import Run
from experiments.report.naming import attack_label, attack_name, named_place, unit_of
from experiments.stages.rows import read_rows
from experiments.wording.names import settings, title
from fedsim.files import read_text
from fedsim.records import STATUSES, ScoreRow


class Value(NamedTuple):
    """One number of a run's findings.

    An interval over the examples of a single client says nothing of others, and is left out.

    Attributes:
        labels: what it belongs to, in the words of the report.
        measure: display name of the metric, with the round if it is that of one round.
        low: lower end of the 95 % interval, if there is one.
        unfinished: whether the clock ended a job behind it, so that it is no number of the attack.
    """

    labels: dict[str, str]
    measure: str
    unit: str
    n: int
    mean: float
    low: float | None
    high: float | None
    unfinished: bool = False

    def matches(self, source: dict[str, str]) -> bool:
        """Whether a source names this value."""
        return source.items() <= {**self.labels, "measure": self.measure}.items()


def findings(run: Run) -> Findings:
    """The findings of a reported run."""
    return Findings.model_validate_json(read_text(run.root / "summary.json"))


def values(run: Run) -> list[Value]:
    """All numbers that a table may print: leakage by headline metric, membership and utility."""
    asked = tuple(dict.fromkeys(m for e in run.plan.experiments for m in e.metrics))
    found = [value for section in findings(run).sections for value in _section(section, asked)]
    return [*_inferred(run), *found]


def paired(run: Run) -> Iterator[Value]:
    """Each attack less each other one under the same defense, on the same examples.

    The label of the attack is ``A less B``. The intervals are those of one comparison.
    """
    for side in sections(run.root).values():
        section = side.findings
        about = {"data": section.dataset, "model": section.model, "probe": "none"}
        for metric in HEADLINE[section.modality]:
            for one, other in permutations(attacks_of(side.scores, metric), 2):
                between = difference(one.values, other.values)
                if one.place != other.place or between is None:
                    continue
                setting, defense = named_place(one.place)
                first, second = (attack_label(section, each.attacker) for each in (one, other))
                labels = about | {
                    "protocol": title(section.protocol),
                    "setting": setting,
                    "defense": defense,
                    "attack": f"{first} less {second}",
                }
                unit = unit_of(section, metric)
                yield Value(labels, title(metric), unit, between.n, *_spread(between))


def _inferred(run: Run) -> Iterator[Value]:
    """Memberships and properties that attacks inferred, if any did."""
    cells = {cell.name: cell.config for cell in run.cells}
    where = settings(cells, {cell.name: cell.experiment.name for cell in run.cells})
    configs = {where[name]: config for name, config in cells.items()}
    for kind in ("membership", "properties"):
        path = run.root / f"{kind}.parquet"
        for one in inferred(read_rows(path, ScoreRow), where, cells) if path.exists() else ():
            task, when = configs[one.setting].task, f", round {one.round}" if one.round else ""
            labels = {
                "data": task.dataset,
                "model": task.model,
                "protocol": title(configs[one.setting].federation.protocol),
                "setting": one.setting,
                "defense": one.defense,
                "attack": f"{one.attack}; {one.control}",
                "probe": "none",
            }
            measure = f"{METRICS[one.metric]}{when}"
            ends = (one.low, one.high) if one.clients > 1 else (None, None)
            yield Value(labels, measure, "1", one.n, one.mean, *ends)


def _section(section: TaskFindings, asked: Sequence[str]) -> Iterator[Value]:
    about = {"data": section.dataset, "model": section.model, "protocol": title(section.protocol)}
    metrics = dict.fromkeys((*HEADLINE[section.modality], *asked))
    for result in section.results:
        setting, defense = named_place(result.place)
        labels = {
            **about,
            "setting": setting,
            "defense": defense,
            "attack": attack_name(section, result),
            "probe": result.probe,
        }
        ended = result.jobs["timeout"] > 0
        for metric in [section.main] if result.control != "none" else metrics:
            if leaked := result.leakage.get(metric):
                spread = _spread(leaked)
                yield Value(labels, title(metric), leaked.unit, leaked.n, *spread, ended)
        rounds = result.rounds.get(section.main, {}) if result.control == "none" else {}
        for number, leaked in rounds.items() if len(rounds) > 1 else ():
            measure = f"{title(section.main)}, round {number}"
            yield Value(labels, measure, leaked.unit, leaked.n, *_spread(leaked), ended)
    yield from _gains(section, about)
    yield from _utility(section, about)


def _spread(found: Estimate) -> tuple[float, float | None, float | None]:
    """The mean and its interval over clients."""
    ends = (found.low, found.high) if found.interval_of == "clients" else (None, None)
    return found.mean, *ends


def _gains(section: TaskFindings, about: dict[str, str]) -> Iterator[Value]:
    """By how much the strongest attack of each verdict beats the strongest blind guess."""
    for verdict in section.evidence.verdicts:
        over, null = verdict.over_null, verdict.null
        if over is None or null is None or verdict.strongest is None:
            continue
        setting, defense = named_place(verdict.place)
        name = attack_label(section, verdict.strongest.attacker)
        labels = {
            **about,
            "setting": setting,
            "defense": defense,
            "attack": f"{name} less {title(null)}",
            "probe": "none",
        }
        unit, ended = unit_of(section, section.main), verdict.jobs["timeout"] > 0
        yield Value(labels, title(section.main), unit, over.n, *_spread(over), ended)


def _utility(section: TaskFindings, about: dict[str, str]) -> Iterator[Value]:
    """Utility before training and, after one round or more, at its end."""
    for place in dict.fromkeys(measured.place for measured in section.utility):
        curve = [measured for measured in section.utility if measured.place == place]
        setting, defense = named_place(place)
        for when, measured in (("before training", curve[0]), ("trained", settled(curve[1:]))):
            labels = {
                **about,
                "setting": setting,
                "defense": defense,
                "attack": f"global model, {when}",
                "probe": "none",
            }
            for name in measured.values if measured else ():
                if measured and (spread := measured.over_seeds(name)):
                    unit = "perplexity" if name == "perplexity" else "1"
                    yield Value(labels, title(name), unit, measured.seeds, *spread)


def jobs(run: Run) -> str:
    """How many jobs ended how, and why some did not succeed; empty if nothing was attacked."""
    attacked = [
        (section, result)
        for section in findings(run).sections
        for result in section.results
        if result.control == "none"
    ]
    total = {status: sum(r.jobs[status] for _, r in attacked) for status in STATUSES}
    counts = ", ".join(f"{count} {status}" for status, count in total.items() if count)
    why = dict.fromkeys(reason for section, result in attacked for reason in _why(section, result))
    return "; ".join(filter(None, [counts, *why]))


def _why(section: TaskFindings, result: Result) -> Iterator[str]:
    """For each status but done, the most frequent reason."""
    where = f"{attack_name(section, result)} under {named_place(result.place)[1]}"
    for status in STATUSES:
        told = [one for one in result.problems if one.status == status != "done"]
        if told:
            reason = max(told, key=lambda one: one.jobs).reason.split(". ")[0].rstrip(".")
            yield f"{where}: {sum(one.jobs for one in told)} {status}, as {reason}"
