"""All questions on one page: rows, words, members, classes and epsilon, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import SEEN, Finding, inferred
from experiments.bounds.audit import AuditRow
from experiments.report.answers import names
from experiments.report.naming import named_place
from experiments.report.run_results import RunResults
from experiments.report.tables import Number
from experiments.wording.defense_names import cell_defense, defense_name
from experiments.wording.names import natural, settings, show, title
from fedsim.records import FRESH_ROW, OTHER_CLIENT


@dataclass(frozen=True, slots=True)
class Inferences:
    """What is known of one defense in one setting.

    Attributes:
        members: AUC of the attack that tells members best; None without such an attack.
        epsilon: audited lower bound and accounted upper bound; None without an audit.
        sentences: topic and sentence.
    """

    setting: str
    defense: str
    members: Number | None
    epsilon: Number | None
    sentences: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Known:
    """Findings and audits of the cells of a chapter, by setting and name of the defense."""

    section: TaskFindings
    findings: Sequence[Finding]
    audits: Mapping[tuple[str, str], Sequence[AuditRow]]

    def of(self, setting: str, defense: str, prefix: str) -> list[Finding]:
        here = [f for f in self.findings if (f.setting, f.defense) == (setting, defense)]
        return [finding for finding in here if finding.metric.startswith(prefix)]

    def members(self, setting: str, defense: str) -> Finding | None:
        findings = self.of(setting, defense, "membership_auc")
        whole = [
            finding for finding in findings if finding.control == SEEN and finding.round is None
        ]
        return max(whole, key=lambda finding: finding.mean, default=None)

    def hides(self, setting: str, defense: str) -> bool:
        """Whether attacks on members ran to their end, and no metric of any tells them."""
        findings = self.of(setting, defense, "membership")
        seen = [finding for finding in findings if finding.control == SEEN]
        return bool(seen) and not any(finding.tells or finding.lost for finding in seen)


def beyond(section: TaskFindings, results: RunResults) -> list[Inferences]:
    """By setting and defense; empty without inferred membership, properties or an audit."""
    cells, labels = results.cells, settings(results.cells, {})
    findings = [
        finding
        for rows in (results.members, results.properties)
        for finding in inferred(rows, labels, cells)
    ]
    audits: dict[tuple[str, str], list[AuditRow]] = {}
    for row in results.audits:
        key = labels[row.cell], defense_name(row.defense, row.defense_options)
        audits.setdefault(key, []).append(row)
    known = _Known(section, findings, audits)
    places = {(labels[name], cell_defense(cell)) for name, cell in cells.items()}
    by_place = [_inferences(known, *place) for place in sorted(places, key=_order)]
    return by_place if findings or audits else []


def _order(place: tuple[str, str]) -> tuple[object, ...]:
    return natural(place[0]), place[1] != "none", natural(place[1])


def inferences_of(known: Sequence[Inferences], place: DefenseInSetting) -> Inferences | None:
    """What is known of one defense in one setting."""
    by_place = {(inferences.setting, inferences.defense): inferences for inferences in known}
    return by_place.get(named_place(place))


def _inferences(known: _Known, setting: str, defense: str) -> Inferences:
    members, audits = known.members(setting, defense), known.audits.get((setting, defense), ())
    said = (
        ("Rows", _rows(known, setting, defense)),
        ("Words", _words(known, setting, defense)),
        ("Members", _members(known, setting, defense, members)),
        ("Classes", _classes(known, setting, defense)),
        ("Epsilon", _epsilon(audits)),
        ("What would change it", " ".join(_changes(known, setting, members, audits))),
    )
    last = audits[-1] if audits else None
    return Inferences(
        setting,
        defense,
        Number(members.mean, "1", members.low, members.high) if members else None,
        Number(last.epsilon, "", max(last.lower, last.any_mechanism), last.epsilon)
        if last
        else None,
        tuple((topic, sentence) for topic, sentence in said if sentence),
    )


def _rows(known: _Known, setting: str, defense: str) -> str:
    for verdict in known.section.evidence.verdicts:
        if named_place(verdict.place) == (setting, defense) and verdict.rows != "not attacked":
            labels = "; the labels leak" if verdict.labels else ""
            grade = f" ({verdict.grade})" if verdict.rows == "leaks" else ""
            return f"{verdict.rows}{grade}{labels}."
    return ""


def _words(known: _Known, setting: str, defense: str) -> str:
    findings = known.of(setting, defense, "word_")
    mean = {
        finding.metric: finding
        for finding in findings
        if finding.control == SEEN and finding.round is None
    }
    if "word_precision" not in mean:
        return "none is likelier than even." if "word_recall" in mean else ""
    return (
        f"{_share(mean['word_precision'])} of the words named at even odds or better are held, and "
        f"{_share(mean['word_recall'])} of those held are named; their probabilities are off by "
        f"{show(mean['word_calibration'].mean, '1')}."
    )


def _classes(known: _Known, setting: str, defense: str) -> str:
    findings = known.of(setting, defense, "class_distance")
    whole = {finding.control: finding for finding in findings if finding.round is None}
    if SEEN not in whole:
        return ""
    other = whole.get(title(OTHER_CLIENT))
    null = f" (told from another client: {show(other.mean, '1')})" if other else ""
    return f"class shares are off by {whole[SEEN].number} in all{null}{_by_round(findings)}."


def _members(known: _Known, setting: str, defense: str, best: Finding | None) -> str:
    if best is None:
        return ""
    findings = [f for f in known.of(setting, defense, "membership") if f.attack == best.attack]
    null = next((f for f in findings if f.control == title(FRESH_ROW) and f.round is None), None)
    rate = next((f for f in findings if f.metric == "membership_tpr_1" and f.control == SEEN), None)
    sure = best.tells or (rate is not None and rate.tells)
    verdict = "told from fresh rows" if sure else "not shown to be told from fresh rows"
    return (
        f"{verdict}: AUC {best.number} by {best.attack}"
        f"{f', {_share(rate)} at a false positive rate of 1 %' if rate else ''}, {best.n} members "
        f"of {best.clients} clients{best.cut}"
        f"{f'; fresh rows in their place {null.number}' if null else ''}"
        f"{_by_round([f for f in findings if f.metric == best.metric])}."
    )


def _by_round(findings: Sequence[Finding]) -> str:
    rounds = [
        finding for finding in findings if finding.round is not None and finding.control == SEEN
    ]
    parts = [f"{show(finding.mean, '1')} in round {finding.round}" for finding in rounds]
    return f"; {', '.join(parts)}" if parts else ""


def _epsilon(audits: Sequence[AuditRow]) -> str:
    parts = [
        f"after round {row.round} at least {show(max(row.lower, row.any_mechanism))} and at most "
        f"{show(row.epsilon)}{', which REFUTES the claim' if row.refuted else ''}"
        for row in audits
    ]
    return f"{'; '.join(parts)}, by {audits[-1].canaries} canaries at 95 %." if parts else ""


def _changes(
    known: _Known, setting: str, best: Finding | None, audits: Sequence[AuditRow]
) -> Iterator[str]:
    if best is not None and best.tells:
        here = dict.fromkeys(
            finding.defense for finding in known.findings if finding.setting == setting
        )
        hidden = [defense for defense in here if known.hides(setting, defense)]
        if hidden:
            yield f"{names(hidden)} left no member told here."
        else:
            yield "no defense is shown to hide members; more noise or more rows a batch may."
    elif best is not None:
        yield f"a stronger attack, or more than {best.n} members, may still tell them."
    if audits and max(audits[-1].lower, audits[-1].any_mechanism) < audits[-1].epsilon / 2:
        yield "More canaries would raise the lower bound on epsilon."


def _share(rate: Finding) -> str:
    return f"{100 * rate.mean:.0f} %"
