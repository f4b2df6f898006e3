"""The numbers of a finished run, each with the words that tell it from the others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from experiments.analysis.differences import Side, sections
from experiments.analysis.findings import HEADLINE, Findings, Result, TaskFindings, settled
from experiments.analysis.hits import EXACT_METRIC, hits
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import METRICS as INFERRED
from experiments.analysis.membership import inferred
from experiments.analysis.paired import difference, is_attack, scored
from experiments.analysis.statistics import Estimate
from experiments.bounds.audit import AuditRecord
from experiments.plan.folder import Run
from experiments.report.naming import attack_label, attack_name, named_place, unit_of
from experiments.stages.search_errors import read_searches
from experiments.wording.names import defense_name, settings, title, told_apart
from fedsim.config.cell import CellConfig
from fedsim.metrics import METRICS
from fedsim.records import STATUSES
from fedsim.store.files import read_record, read_text

LABELS = ("data", "model", "protocol", "setting", "defense", "attack", "probe")
"""Of each value, from the widest; a table names those that differ."""


class Value(NamedTuple):
    """One number of a run's findings.

    An interval over the examples of a single client says nothing of others, and is left out.

    Attributes:
        labels: what it belongs to, in the words of the report.
        measure: display name of the metric, with the round if it is that of one round.
        low: lower end of the 95 % interval, if there is one.
        outcome: ``unfinished`` if the clock ended a job behind it, so that it is no number of the
            attack; ``all certified`` or ``k certified`` of examples that came back exactly.
    """

    labels: dict[str, str]
    measure: str
    unit: str
    n: int
    mean: float
    low: float | None
    high: float | None
    outcome: str = ""

    def matches(self, source: dict[str, str]) -> bool:
        """Whether a source names this value."""
        return source.items() <= {**self.labels, "measure": self.measure}.items()


def findings(run: Run) -> Findings:
    """The findings of a reported run."""
    return Findings.model_validate_json(read_text(run.root / "summary.json"))


def values(run: Run) -> list[Value]:
    """All numbers that a table may print: leakage by headline metric, membership and utility."""
    asked = tuple(dict.fromkeys(m for e in run.plan.experiments for m in e.metrics))
    of_sections = [
        value for section in findings(run).sections for value in _section(section, asked)
    ]
    return [*_inferred(run), *of_sections]


def derived(run: Run) -> Iterator[Value]:
    """What only a row with a source prints, beside ``values``.

    Examples that came back exactly, in all rounds and in each; paired differences of attacks and
    to their controls; all metrics of controls and rounds; the curve of utility; bounds on epsilon;
    search errors.
    """
    for side in sections(run.root).values():
        yield from _exact(side, "exact")
        for number in sorted(set(side.scores["round"])):
            there = side._replace(scores=side.scores[side.scores["round"] == number])
            yield from _exact(there, f"exact, round {number}")
        measured = (metric for result in side.findings.results for metric in result.leakage)
        for metric in dict.fromkeys(measured):
            yield from _paired(side, metric)
        yield from _by_round(side.findings)
        yield from _curve(side.findings)
    yield from _audited(run)
    yield from _searched(run)


def _exact(side: Side, measure: str) -> Iterator[Value]:
    """Share of the examples that came back exactly, also certified, and of false certificates."""
    section = side.findings
    metric = EXACT_METRIC[section.modality]
    scores = scored(side.scores, metric)
    for place in dict.fromkeys(score.place for score in scores):
        here = [score for score in scores if score.place == place]
        for attack in filter(is_attack, here):
            exact = hits({metric: here}, section.modality, [attack], "verbatim")
            n = len(attack.values)
            labels = _labels(section, place, attack_label(section, attack.attacker))
            sure = len(exact.proven)
            outcome = "all certified" if sure == n else f"{sure} certified" if sure else ""
            yield Value(labels, measure, "of n", n, len(exact.hit) / n, None, None, outcome)
            yield Value(labels, f"{measure}, certified", "of n", n, sure / n, None, None)
            false = len(exact.certified - exact.hit) / n
            yield Value(labels, f"{measure}, falsely certified", "of n", n, false, None, None)


def _by_round(section: TaskFindings) -> Iterator[Value]:
    """Every metric of every attack and control, over all rounds and in each."""
    for result in section.results:
        labels = _labels(section, result.place, attack_name(section, result))
        labels["probe"] = result.probe
        ended, batch = _outcome(result.jobs), result.n / sum(result.jobs.values())
        for metric, leaked in result.leakage.items():
            size = _size(metric, leaked, batch)
            yield Value(labels, title(metric), leaked.unit, size, *_spread(leaked), ended)
        for metric, rounds in result.rounds.items():
            for number, leaked in rounds.items():
                measure, size = f"{title(metric)}, round {number}", _size(metric, leaked, batch)
                yield Value(labels, measure, leaked.unit, size, *_spread(leaked), ended)


def _curve(section: TaskFindings) -> Iterator[Value]:
    """Utility after each round; round 0 is before training."""
    for measured in section.utility:
        labels = _labels(section, measured.place, "global model")
        for name in measured.values:
            if spread := measured.over_seeds(name):
                unit = "perplexity" if name == "perplexity" else "1"
                measure = f"{title(name)}, round {measured.round}"
                yield Value(labels, measure, unit, measured.seeds, *spread)


def _audited(run: Run) -> Iterator[Value]:
    """Bounds on epsilon that canaries gave, if the run was audited."""
    path = run.root / "audit.json"
    configs = {cell.name: cell.config for cell in run.cells}
    for row in read_record(path, AuditRecord).rows if path.exists() else ():
        defense = defense_name(row.defense, row.defense_options)
        labels = _labels_in(configs[row.cell], "", defense, "canaries")
        bounds = {
            "at least": row.lower,
            "at least, any mechanism": row.any_mechanism,
            "at most": row.epsilon,
            "shift": row.shift,
        }
        for name, bound in bounds.items():
            measure = f"{name}, round {row.round}"
            yield Value(labels, measure, "1", row.canaries, bound, None, None)


def _searched(run: Run) -> Iterator[Value]:
    """Search errors among the updates that an attack missed."""
    cells = {cell.name: cell.config for cell in run.cells}
    where = settings(cells, {cell.name: cell.experiment.name for cell in run.cells})
    searches = read_searches(run.root)
    for search in searches:
        defense = defense_name(search.defense, search.defense_options)
        attack = told_apart(search.attacker, [each.attacker for each in searches])
        labels = _labels_in(cells[search.cell], where[search.cell], defense, attack)
        n = search.missed
        if search.excess is not None:
            yield Value(labels, "search errors", "of n", n, search.errors / n, None, None)
            yield Value(labels, "excess", search.unit, n, search.excess, None, None)


def _paired(side: Side, metric: str) -> Iterator[Value]:
    """Each attack less each other one and less its own controls, on the same examples.

    The label of the attack is ``A less B``. The intervals are those of one comparison.
    """
    section = side.findings
    for attack, other in permutations(scored(side.scores, metric), 2):
        control = other.control != "none"
        if attack.control != "none" or attack.place != other.place:
            continue
        if control and attack.attacker != other.attacker:
            continue
        if between := difference(attack.values, other.values):
            first, second = (attack_label(section, each.attacker) for each in (attack, other))
            name = f"{first} less {second}{f', {title(other.control)}' * control}"
            labels = _labels(section, attack.place, name)
            unit = unit_of(section, metric)
            both = attack.values.keys() & other.values.keys()
            replies = len({(victim.seed, victim.client, victim.round) for victim in both})
            size = _size(metric, between, between.n / replies)
            yield Value(labels, title(metric), unit, size, *_spread(between))


def _labels(section: TaskFindings, place: DefenseInSetting, attack: str) -> dict[str, str]:
    where = (section.dataset, section.model, title(section.protocol), *named_place(place))
    return dict(zip(LABELS, (*where, attack, "none"), strict=True))


def _labels_in(config: CellConfig, setting: str, defense: str, attack: str) -> dict[str, str]:
    """Of what belongs to a cell and no section of the report."""
    protocol = title(config.federation.protocol)
    where = (config.task.dataset, config.task.model, protocol, setting, defense)
    return dict(zip(LABELS, (*where, attack, "none"), strict=True))


def _inferred(run: Run) -> Iterator[Value]:
    """Memberships that attacks inferred, if any did."""
    cells = {cell.name: cell.config for cell in run.cells}
    where = settings(cells, {cell.name: cell.experiment.name for cell in run.cells})
    configs = {where[name]: config for name, config in cells.items()}
    for finding in inferred(run.membership, where, cells):
        attack = f"{finding.attack}; {finding.control}"
        config, when = configs[finding.setting], f", round {finding.round}" * bool(finding.round)
        labels = _labels_in(config, finding.setting, finding.defense, attack)
        measure = f"{INFERRED[finding.metric]}{when}"
        ends = (finding.low, finding.high) if finding.clients > 1 else (None, None)
        yield Value(labels, measure, "1", finding.n, finding.mean, *ends)


def _section(section: TaskFindings, asked: Sequence[str]) -> Iterator[Value]:
    metrics = dict.fromkeys((*HEADLINE[section.modality], *asked))
    for result in section.results:
        labels = _labels(section, result.place, attack_name(section, result))
        labels["probe"] = result.probe
        ended, batch = _outcome(result.jobs), result.n / sum(result.jobs.values())
        for metric in [section.main] if result.control != "none" else metrics:
            if leaked := result.leakage.get(metric):
                spread = _spread(leaked)
                size = _size(metric, leaked, batch)
                yield Value(labels, title(metric), leaked.unit, size, *spread, ended)
        rounds = result.rounds.get(section.main, {}) if result.control == "none" else {}
        for number, leaked in rounds.items() if len(rounds) > 1 else ():
            measure = f"{title(section.main)}, round {number}"
            yield Value(labels, measure, leaked.unit, leaked.n, *_spread(leaked), ended)
    yield from _gains(section)
    yield from _utility(section)


def _outcome(jobs: Mapping[str, int]) -> str:
    return "unfinished" if jobs["timeout"] else ""


def _spread(estimate: Estimate) -> tuple[float, float | None, float | None]:
    """The mean and its interval over clients."""
    ends = (estimate.low, estimate.high) if estimate.interval_of == "clients" else (None, None)
    return estimate.mean, *ends


def _size(metric: str, estimate: Estimate, batch: float) -> int:
    """Examples behind a mean; batches of this many where all examples of one have its value."""
    whole = metric in METRICS and METRICS[metric].of_batch
    return round(estimate.n / batch) if whole else estimate.n


def _gains(section: TaskFindings) -> Iterator[Value]:
    """By how much the strongest attack of each verdict beats the strongest blind guess."""
    for verdict in section.evidence.verdicts:
        over, null = verdict.over_null, verdict.null
        if over is None or null is None or verdict.strongest is None:
            continue
        name = attack_label(section, verdict.strongest.attacker)
        labels = _labels(section, verdict.place, f"{name} less {title(null)}")
        unit, ended = unit_of(section, section.main), _outcome(verdict.jobs)
        yield Value(labels, title(section.main), unit, over.n, *_spread(over), ended)


def _utility(section: TaskFindings) -> Iterator[Value]:
    """Utility before training and, after one round or more, at its end."""
    for place in dict.fromkeys(measured.place for measured in section.utility):
        curve = [measured for measured in section.utility if measured.place == place]
        for when, measured in (("before training", curve[0]), ("trained", settled(curve[1:]))):
            labels = _labels(section, place, f"global model, {when}")
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
    counts = [f"{count} {status}" for status, count in total.items() if count]
    why: Counter[tuple[str, str, str]] = Counter()
    for section, result in attacked:
        where = f"{attack_name(section, result)} under {named_place(result.place)[1]}"
        for status, reason, count in _why(result):
            why[where, status, reason] += count
    reasons = [f"{w}: {count} {status}, as {reason}" for (w, status, reason), count in why.items()]
    return "; ".join(filter(None, [", ".join(counts), *reasons]))


def _why(result: Result) -> Iterator[tuple[str, str, int]]:
    """For each status but done, the most frequent reason and how many jobs ended so."""
    for status in STATUSES:
        problems = [problem for problem in result.problems if problem.status == status != "done"]
        if problems:
            most = max(problems, key=lambda problem: problem.jobs)
            reason = most.cause or most.reason.split(". ")[0].rstrip(".")
            yield status, reason, sum(problem.jobs for problem in problems)
