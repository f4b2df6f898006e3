"""The evidence of a section: verdicts, gains by adapting and certificates."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import pandas as pd

from experiments.analysis.evidence import Certified, Gap, SectionEvidence, Verdict
from experiments.analysis.frames import ATTACK, PLACE, attacked
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import Finding
from experiments.analysis.paired import Scored, difference, scored
from experiments.analysis.power import Search
from experiments.analysis.statistics import clopper_pearson
from experiments.analysis.verdicts import judge, metrics
from experiments.plan.config import VerdictRule
from experiments.stages.coverage import EXACT, is_exact
from fedsim.records import MAIN, AttackKey, Modality


def evidence(
    scores: pd.DataFrame,
    modality: Modality,
    places: Collection[DefenseInSetting],
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
        places: the defenses that were attacked or whose utility was measured, in this order.
        rule: of the verdicts.
        members: what tells members best, where something does.
        searches: how far attacks searched their objectives, where they have one.
        bounded: where no attack can gain the smallest effect.
    """
    known = {DefenseInSetting(*key): part for key, part in scores.groupby(PLACE)}
    parts = {place: known.get(place, scores.iloc[:0]) for place in places}
    by_metric = {metric: scored(scores, metric) for metric in metrics(modality)}
    main = by_metric[MAIN[modality]]
    planted = scored(scores, MAIN[modality], probe="fresh")
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
            planted=planted,
        )

    bare = [place for place in parts if place.defense == "none"]
    beating = {place.setting: judged(place, {}).beating for place in bare}
    tried = {
        place.setting: [attack.attacker for attack in attacks if attack.place == place]
        for place in bare
    }
    verdicts = tuple(judged(place, _working(place.setting, beating, tried)) for place in parts)
    return SectionEvidence(
        verdicts=verdicts,
        gaps=tuple(adaptive_gaps([a for place in places for a in attacks if a.place == place])),
        certified=tuple(c for place, part in parts.items() for c in _certified(place, part)),
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


def adaptive_gaps(attacks: Sequence[Scored]) -> list[Gap]:
    """Adaptive less oblivious, for each attack that ran in both variants.

    The intervals hold together, over all attacks and defenses that are given (Bonferroni).
    """
    known = {(attack.place, attack.attacker): attack for attack in attacks}
    pairs = []
    for (place, attacker), adapted in known.items():
        twin = oblivious_twin(attacker, [key for where, key in known if where == place])
        if twin:
            pairs.append((adapted, known[place, twin]))
    return [gap for pair in pairs if (gap := _gap(*pair, comparisons=len(pairs)))]


def _gap(adapted: Scored, base: Scored, *, comparisons: int) -> Gap | None:
    """Of their common victims; None without any."""
    between = difference(adapted.values, base.values, comparisons=comparisons)
    if between is None:
        return None
    both = sorted(adapted.values.keys() & base.values.keys())
    return Gap(
        **adapted.place._asdict(),
        attacker=adapted.attacker,
        value=fmean(adapted.values[victim] for victim in both),
        base=fmean(base.values[victim] for victim in both),
        difference=between,
    )


def oblivious_twin(attacker: AttackKey, others: Iterable[AttackKey]) -> AttackKey | None:
    """The oblivious variant of an adaptive attack, its other options equal; None without one."""
    plain = (other for other in others if attacker.adaptive and not other.adaptive)
    return next((other for other in plain if same_search(attacker, other)), None)


def same_search(attacker: AttackKey, other: AttackKey) -> bool:
    """Whether two attacks are one but for being adapted to the defense or not."""
    tables = [json.loads(key.attack_options or "{}") for key in (attacker, other)]
    first, second = ({**table, "adaptive": None} for table in tables)
    return attacker.attack == other.attack and first == second
