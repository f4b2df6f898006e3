"""What was learned beside rows, a sentence each: who took part, and the audited epsilon."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import SEEN, Finding, inferred
from experiments.bounds.audit import AuditRow
from experiments.report.naming import named_place
from experiments.report.run_results import RunResults
from experiments.report.tables import Number
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.names import cell_defense, defense_name, natural, settings, show, title
from fedsim.records import FRESH_ROW


@dataclass(frozen=True, slots=True)
class Inferences:
    """What is known of one defense in one setting.

    Attributes:
        members: AUC of the attack that tells members best; None without such an attack.
        accounted: epsilon by the accountant, in words; empty without an audit.
        audited: what canaries showed it to be at least; None without an audit.
        sentences: topic and sentence.
    """

    setting: str
    defense: str
    members: Number | None
    accounted: str
    audited: Number | None
    sentences: tuple[tuple[str, Said], ...]


def beyond(results: RunResults) -> list[Inferences]:
    """By setting and defense; empty without inferred membership or an audit."""
    cells, labels = results.cells, settings(results.cells, {})
    findings = inferred(results.members, labels, cells)
    places = {(labels[name], cell_defense(cell)) for name, cell in cells.items()}
    return [
        _inferences(
            *place,
            [finding for finding in findings if (finding.setting, finding.defense) == place],
            [
                row
                for row in results.audits
                if (labels[row.cell], defense_name(row.defense, row.defense_options)) == place
            ],
        )
        for place in sorted(places, key=_order)
        if findings or results.audits
    ]


def _order(place: tuple[str, str]) -> tuple[object, ...]:
    return natural(place[0]), place[1] != "none", natural(place[1])


def inferences_of(known: Sequence[Inferences], place: DefenseInSetting) -> Inferences | None:
    """What is known of one defense in one setting."""
    by_place = {(inferences.setting, inferences.defense): inferences for inferences in known}
    return by_place.get(named_place(place))


def _inferences(
    setting: str, defense: str, findings: Sequence[Finding], audits: Sequence[AuditRow]
) -> Inferences:
    seen = [f for f in findings if (f.metric, f.control) == ("membership_auc", SEEN)]
    members = max((f for f in seen if f.round is None), key=lambda f: f.mean, default=None)
    last = audits[-1] if audits else None
    return Inferences(
        setting,
        defense,
        Number(members.mean, "1", members.low, members.high) if members else None,
        last.accounted.both if last else "",
        Number(last.shown) if last else None,
        (
            *((("Members", _members(findings, members)),) if members else ()),
            *((("Epsilon", _epsilon(audits)),) if audits else ()),
            *(("What would change it", said) for said in _changes(members, audits)),
        ),
    )


def _members(known: Sequence[Finding], best: Finding) -> Said:
    findings = [finding for finding in known if finding.attack == best.attack]
    null = next((f for f in findings if f.control == title(FRESH_ROW) and f.round is None), None)
    rate = next((f for f in findings if f.metric == "membership_tpr_1" and f.control == SEEN), None)
    sure = best.tells or (rate is not None and rate.tells)
    return say(
        "inferred.members" if sure else "inferred.no_members",
        auc=best.number,
        attack=best.attack,
        rate=sentence("inferred.rate", rate=f"{100 * rate.mean:.0f} %") if rate else "",
        count=best.n,
        clients=best.clients,
        cut=best.cut,
        null=sentence("inferred.fresh", null=null.number) if null else "",
        by_round=_by_round([f for f in findings if f.metric == best.metric]),
    )


def _by_round(findings: Sequence[Finding]) -> str:
    rounds = [
        finding for finding in findings if finding.round is not None and finding.control == SEEN
    ]
    parts = [f"{show(finding.mean, '1')} in round {finding.round}" for finding in rounds]
    return f"; {', '.join(parts)}" if parts else ""


def _epsilon(audits: Sequence[AuditRow]) -> Said:
    rounds = [
        sentence(
            "inferred.refuted" if row.refuted else "inferred.audited",
            round=row.round,
            low=show(row.shown),
            high=row.accounted.both,
        )
        for row in audits
    ]
    return say("inferred.epsilon", rounds="; ".join(rounds), canaries=audits[-1].canaries)


def _changes(best: Finding | None, audits: Sequence[AuditRow]) -> Iterator[Said]:
    if best is not None and not best.tells:
        yield say("inferred.more_members", count=best.n)
    if audits and audits[-1].shown < audits[-1].epsilon / 2:
        yield say("inferred.more_canaries")
