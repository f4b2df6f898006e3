"""The evidence of a section: verdicts, paired comparisons, certificates and the null test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pandas as pd

from experiments.analysis.evidence import Certified, Gap, NullCalls, SectionEvidence, Verdict
from experiments.analysis.frames import ATTACK, PLACE, attacked
from experiments.analysis.gaps import adaptive_gaps, gap_of, same_search
from experiments.analysis.keys import DefenseInSetting, undefended
from experiments.analysis.membership import Finding
from experiments.analysis.paired import Scored, Values, difference, scored
from experiments.analysis.power import Search
from experiments.analysis.statistics import clopper_pearson
from experiments.analysis.tradeoff import at_loss, equal_utility, points
from experiments.analysis.verdicts import judge, metrics
from experiments.plan.config import VerdictRule
from experiments.stages.coverage import EXACT, is_exact
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, SECOND_CLIENT, AttackKey, Modality


def evidence(
    scores: pd.DataFrame,
    modality: Modality,
    utility: Mapping[DefenseInSetting, Mapping[str, float] | None],
    *,
    rule: VerdictRule,
    members: Mapping[DefenseInSetting, Finding],
    searches: Mapping[DefenseInSetting, Mapping[AttackKey, Search]],
    bounded: Collection[DefenseInSetting],
) -> SectionEvidence:
    """What the rows of a section prove.

    Args:
        scores: rows of the section, see ``score_frame``.
        modality: decides the main metric.
        utility: utility at the end of training, None if it was not measured; the defenses are
            judged in this order.
        rule: of the verdicts.
        members: what tells members best, where something does.
        searches: how far attacks searched their objectives, where they have one.
        bounded: where no attack can gain the smallest effect.
    """
    known = {DefenseInSetting(*key): part for key, part in scores.groupby(PLACE)}
    parts = {place: known.get(place, scores.iloc[:0]) for place in utility}
    by_metric = {metric: scored(scores, metric) for metric in metrics(modality)}
    main = by_metric[MAIN[modality]]
    attacks = [candidate for candidate in main if candidate.control == "none"]

    def judged(place: DefenseInSetting, working: Mapping[AttackKey, str]) -> Verdict:
        return judge(
            place,
            parts[place],
            by_metric,
            modality,
            rule=rule,
            working=working,
            searches=searches.get(place, {}),
            members=members.get(place),
            bounded=place in bounded,
        )

    beating = {
        place.setting: judged(place, {}).beating for place in parts if place.defense == "none"
    }
    tried = {
        place.setting: [attack.attacker for attack in attacks if attack.place == place]
        for place in undefended(parts).values()
    }
    verdicts = tuple(judged(place, _working(place.setting, beating, tried)) for place in parts)
    line = points(verdicts, attacks, utility)
    return SectionEvidence(
        verdicts=verdicts,
        gaps=tuple(
            adaptive_gaps(
                [attack for place in utility for attack in attacks if attack.place == place]
            )
        ),
        against_none=tuple(_against_none(verdicts, attacks)),
        certified=tuple(
            count for place, part in parts.items() for count in _certified(place, part)
        ),
        null_calls=tuple(null_calls(main)),
        at_loss=tuple(at_loss(line)),
        equal_utility=tuple(equal_utility(line)),
    )


def _working(
    setting: str,
    beating: Mapping[str, Collection[AttackKey]],
    tried: Mapping[str, Collection[AttackKey]],
) -> dict[AttackKey, str]:
    """Attacks that are shown to leak undefended victims, and the setting that shows it.

    That of another setting counts only for an attack that was not run in this one, in any variant.

    Args:
        setting: of the verdict.
        beating: setting -> attacks that leak undefended victims.
        tried: setting -> attacks on undefended victims.
    """
    others = {
        attacker: other
        for other, attackers in beating.items()
        for attacker in attackers
        if not any(same_search(attacker, here) for here in tried.get(setting, ()))
    }
    return others | dict.fromkeys(beating.get(setting, ()), setting)


def _against_none(verdicts: Iterable[Verdict], attacks: Sequence[Scored]) -> Iterator[Gap]:
    """Each defense less none, under the strongest attack on the defense.

    The strongest attack was picked among ``verdict.attacks`` candidates, and a reader compares all
    defenses of a setting at once. The Bonferroni correction counts every comparison that could
    have been shown: level 1 - 0.05 / sum of the candidates over the defenses of the setting.
    """
    known = {(attack.place, attack.attacker): attack for attack in attacks}
    bases = undefended(place for place, _ in known)
    pairs: dict[str, list[tuple[Scored, Scored, int]]] = {}
    for verdict in verdicts:
        base_place, strongest = bases.get(verdict.setting), verdict.strongest
        if verdict.defense != "none" and base_place and strongest:
            base = known.get((base_place, strongest.attacker))
            if base is not None:
                defended = known[verdict.place, strongest.attacker]
                pairs.setdefault(verdict.setting, []).append((defended, base, verdict.attacks))
    for compared in pairs.values():
        comparisons = sum(candidates for *_, candidates in compared)
        for defended, base, _ in compared:
            gap = gap_of(defended, base, comparisons=comparisons)
            if gap is not None:
                yield gap


def _certified(place: DefenseInSetting, scores: pd.DataFrame) -> Iterator[Certified]:
    """How many certificates hold, for each attack on a defense that gives any."""
    rows = attacked(scores)
    rows = rows[rows.metric.isin(EXACT) & rows.certified.notna()]
    for (attack, options, adaptive), part in rows.groupby(ATTACK):
        sure = [row for row in part.itertuples() if row.certified]
        exact = sum(map(is_exact, sure))
        clients = len({row.client for row in sure})
        low, high = clopper_pearson(clients * exact / len(sure) if sure else 0, clients)
        yield Certified(
            **place._asdict(),
            attacker=AttackKey(attack, options, bool(adaptive)),
            certified=len(sure),
            exact=exact,
            low=low,
            high=high,
        )


def null_calls(attacks: Sequence[Scored]) -> Iterator[NullCalls]:
    """How often the test calls a leak where there is none: its false positive rate.

    The guess from another client's update is put in the place of the attack. Compared with the
    guess from a second such update, neither saw the victim, so the 95 % interval of the difference
    should lie above 0 in 2.5 % of the tests. Compared with ``prior_only``, a higher rate says that
    this baseline alone is too weak. Uncorrected for the number of attacks: the interval itself is
    under test.

    Over all clients each guess is once the first and once the second wrong one, so that how good it
    is cancels, and hardly any test would be called whatever the level. Every other client is used:
    the guess for it is then used for no other one.
    """
    values = {(attack.place, attack.attacker, attack.control): attack.values for attack in attacks}
    priors = {
        attack.place: attack.values
        for attack in attacks
        if (attack.attacker.attack, attack.control) == (PRIOR_ONLY, "none")
    }
    calls: dict[str, list[bool]] = {SECOND_CLIENT: [], PRIOR_ONLY: []}
    for attack in attacks:
        if attack.control == OTHER_CLIENT:
            second = values.get((attack.place, attack.attacker, SECOND_CLIENT))
            for baseline, null in ((SECOND_CLIENT, second), (PRIOR_ONLY, priors.get(attack.place))):
                between = difference(_every_other(attack.values), null, fewest=2) if null else None
                if between is not None and between.low is not None:
                    calls[baseline].append(between.low > 0)
    for baseline, called in calls.items():
        if called:
            yield NullCalls(baseline=baseline, tested=len(called), called=sum(called))


def _every_other(values: Values) -> Values:
    """The values of every other client, in the order of their numbers."""
    clients = sorted({victim.owner for victim in values})[::2]
    return {victim: value for victim, value in values.items() if victim.owner in set(clients)}
