"""The evidence of a section: verdicts, paired comparisons, certificates and the null test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from experiments.analysis.evidence import Certified, Evidence, Gap, NullCalls, Verdict
from experiments.analysis.keys import Attacker, Place, undefended
from experiments.analysis.paired import Scored, difference, scored
from experiments.analysis.statistics import wilson
from experiments.analysis.tradeoff import at_loss, equal_utility, points
from experiments.analysis.verdicts import gap_of, gaps_of, judge, metrics
from experiments.stages.coverage import EXACT, is_exact
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, SECOND_CLIENT, Modality, ScoreRow


def evidence(
    rows: Sequence[ScoreRow],
    labels: Mapping[str, str],
    modality: Modality,
    utility: Mapping[Place, Mapping[str, float] | None],
) -> Evidence:
    """What the rows of a section prove.

    Args:
        rows: of the section.
        labels: cell -> its setting.
        modality: decides the main metric.
        utility: every place in its order -> the utility at its end, where it was measured.
    """
    places = tuple(utility)
    by_metric = {metric: scored(rows, labels, metric) for metric in metrics(modality)}
    found = by_metric[MAIN[modality]]
    by_place: dict[Place, list[ScoreRow]] = {place: [] for place in places}
    for row in rows:
        by_place[labels[row.cell], row.defense, row.defense_options].append(row)
    attacks = [one for one in found if one.control == "none"]
    verdicts = _with_control(
        [judge(place, mine, by_metric, modality) for place, mine in by_place.items()], attacks
    )
    line = points(verdicts, attacks, utility)
    return Evidence(
        verdicts=verdicts,
        gaps=tuple(
            gap
            for place in places
            for gap in gaps_of([one for one in attacks if one.place == place])
        ),
        against_none=tuple(_against_none(verdicts, attacks)),
        certified=tuple(_certified(by_place)),
        null_calls=tuple(null_calls(found)),
        at_loss=tuple(at_loss(line)),
        equal_utility=tuple(equal_utility(line)),
    )


def _with_control(verdicts: Sequence[Verdict], attacks: Iterable[Scored]) -> tuple[Verdict, ...]:
    """Say where no adaptive attack works without a defense either: its failure proves nothing."""
    adaptive: dict[Place, set[Attacker]] = defaultdict(set)
    for one in attacks:
        if one.attacker.adaptive:
            adaptive[one.place].add(one.attacker)
    works = {one.setting: one.beating for one in verdicts if one.defense == "none"}
    note = "no adaptive attack works even without a defense"
    told = []
    for verdict in verdicts:
        mine, held = adaptive[verdict.place], verdict.word in ("inconclusive", "no leak found")
        if held and mine and mine.isdisjoint(works.get(verdict.setting, mine)):
            verdict = verdict.model_copy(update={"notes": (*verdict.notes, note)})
        told.append(verdict)
    return tuple(told)


def _against_none(verdicts: Iterable[Verdict], attacks: Sequence[Scored]) -> Iterator[Gap]:
    """Each defense less none, by the strongest attack on the defense; all share one error."""
    known = {(one.place, one.attacker): one for one in attacks}
    bases = undefended(place for place, _ in known)
    pairs: dict[str, list[tuple[Scored, Scored, int]]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.defense != "none" and verdict.strongest is not None:
            place = bases.get(verdict.setting)
            attacker = verdict.strongest.attacker
            base = known.get((place, attacker)) if place else None
            if base is not None:
                one = known[verdict.place, attacker]
                pairs[verdict.setting].append((one, base, verdict.attacks))
    for compared in pairs.values():
        # The strongest attack was chosen among all that could be compared.
        comparisons = sum(attacks for *_, attacks in compared)
        for one, base, _ in compared:
            gap = gap_of(one, base, comparisons=comparisons)
            if gap is not None:
                yield gap


def _certified(by_place: Mapping[Place, Iterable[ScoreRow]]) -> Iterator[Certified]:
    for (setting, defense, options), rows in by_place.items():
        exact: dict[tuple[str, str, bool], list[bool]] = defaultdict(list)
        for row in rows:
            own = (row.control, row.probe) == ("none", "none")
            if own and row.metric in EXACT and row.certified is not None:
                attack = row.attack, row.attack_options, row.adaptive
                exact[attack] += [is_exact(row)] if row.certified else []
        for (name, given, adaptive), group in sorted(exact.items()):
            low, high = wilson(sum(group), len(group))
            yield Certified(
                setting=setting,
                defense=defense,
                defense_options=options,
                attacker=Attacker(attack=name, attack_options=given, adaptive=adaptive),
                certified=len(group),
                exact=sum(group),
                low=low,
                high=high,
            )


def null_calls(found: Sequence[Scored]) -> Iterator[NullCalls]:
    """How often the guess from another client's update is called a leak, were it the attack.

    Against the guess from a second such update the two are alike, and calls come by chance alone;
    against ``prior_only`` more of them say that this baseline by itself is too weak. Without a
    correction for several attacks, since what is tested is the interval.
    """
    calls: dict[str, list[bool]] = defaultdict(list)
    nulls = {(one.place, one.attacker, one.control): one.values for one in found}
    priors = {
        one.place: one.values
        for one in found
        if (one.attacker.attack, one.control) == (PRIOR_ONLY, "none")
    }
    for one in found:
        if one.control == OTHER_CLIENT:
            second = nulls.get((one.place, one.attacker, SECOND_CLIENT))
            for baseline, values in ((SECOND_CLIENT, second), (PRIOR_ONLY, priors.get(one.place))):
                between = difference(one.values, values) if values else None
                if between is not None and between.low is not None:
                    calls[baseline].append(between.low > 0)
    for baseline in sorted(calls, reverse=True):
        called, tested = sum(calls[baseline]), len(calls[baseline])
        low, high = wilson(called, tested)
        yield NullCalls(baseline=baseline, tested=tested, called=called, low=low, high=high)
