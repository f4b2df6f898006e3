"""The verdict on each defense: one function, a word that follows from counts and intervals alone.

``docs/reference/verdicts.md`` has the rule in full. In short, the first that holds:

``leaks``: private examples came back exactly, certified or where no null baseline comes near
(*verbatim*); or more clients than chance explains have an example that passes the threshold where
no baseline does (*recognisable*); or the mean is above every baseline by more than the smallest
effect, surely (*better than guessing*); or so are precision and recall of the words of the batch
(*words*).
``labels leak``, ``members leak``: rows are not shown to leak, but withheld labels, or members, are.
``holds by bound``: the replies tell too little for the smallest effect, whatever the attack.
``no leak found``: every mean is surely below the smallest effect, no client has a recovered example
more than under the baselines, none is exact where no baseline is, no job failed or was ended by
time or budget, an attack that works without a defense was run, and under a defense one that is
adapted to it, and returned no less than a blind guess.
``not attacked``: no attack has a score.
``not decided``: anything else; the reasons say what would decide it.

Intervals of m attacks are at level 1 - 0.05 / m, so that all hold together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from experiments.analysis.blind import shortfall
from experiments.analysis.comparison import (
    BaselineComparison,
    answered,
    compared,
    leaking_parts,
    merged,
    nulls_of,
)
from experiments.analysis.evidence import Clients, Grade, Reached, Reason, Verdict, Word
from experiments.analysis.frames import attacked, by_status, jobs
from experiments.analysis.gaps import adaptive_gaps, oblivious_twin
from experiments.analysis.hits import (
    EXACT_METRIC,
    Hits,
    counted,
    exact_hits,
    owners,
    recovered_hits,
    verbatim,
)
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.membership import Finding
from experiments.analysis.open_jobs import broken, lost, unsure
from experiments.analysis.paired import Scored, estimate, is_attack, portfolio
from experiments.plan.config import VerdictRule
from experiments.plan.entries import allows_for
from fedsim.records import MAIN, PRIOR_ONLY, UNSCORED, AttackKey, Modality

WORDS = ("batch_token_precision", "batch_token_recall")
"""Judged together: listing every word gives full recall, naming one sure word full precision."""

LABELS = "label_accuracy"
"""The baselines know granted labels too, so only labels that were withheld can leak."""

_RULE = VerdictRule()

_NOTHING: Mapping[AttackKey, str] = {}
_MANY_LABELS = 0.5
"""Share of labels read beyond every baseline that no word of holding stands beside, though the
clients are too few, or too much alike, to show it. Halved, chance keeps verdicts on five clients
open; doubled, none is."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """All that the word rests on.

    Attributes:
        main: the main metric.
        smallest: effect that counts on it.
        attacks: on the main metric.
        matches: each of them against its baselines.
        answered: the same on the victims that an attack did not refuse, where it refused some.
        words: as ``matches``, by the words of the batch.
        labels: the same by the labels that attacks infer.
        parts: rounds, seeds or best examples on which alone an attack leaks.
        exact: victims that came back exactly.
        recovered: victims that passed the threshold, by attack.
        returned: victims whose exact return counts as a leak.
        jobs: by status.
        working: attacks that are known to work without a defense, and the setting that shows it.
        members: what tells members best.
        bounded: whether no attack can gain the smallest effect.
    """

    place: DefenseInSetting
    main: str
    smallest: float
    attacks: Sequence[Scored]
    matches: Sequence[BaselineComparison]
    answered: Sequence[BaselineComparison]
    words: Sequence[BaselineComparison]
    labels: Sequence[BaselineComparison]
    parts: Sequence[Reason]
    exact: Sequence[Hits]
    recovered: Sequence[Hits]
    returned: Mapping[AttackKey, frozenset[VictimKey]]
    jobs: Mapping[str, int]
    working: Mapping[AttackKey, str]
    members: Finding | None
    bounded: bool


def judge(
    place: DefenseInSetting,
    scores: pd.DataFrame,
    scored_by_metric: Mapping[str, Sequence[Scored]],
    modality: Modality,
    *,
    rule: VerdictRule = _RULE,
    working: Mapping[AttackKey, str] = _NOTHING,
    members: Finding | None = None,
    bounded: bool = False,
) -> Verdict:
    """The verdict on one defense in one setting.

    Args:
        place: the defense and its setting.
        scores: all rows of the defense, for its jobs and levels of realism.
        scored_by_metric: metric -> values by attack, at least for ``metrics(modality)``.
        modality: decides the metrics.
        rule: the smallest effect that counts, and the fewest clients.
        working: attacks that are shown to leak undefended victims, and the setting of these: the
            positive control.
        members: what tells members best.
        bounded: whether a bound on information rules out the smallest effect, by any attack.
    """
    main = MAIN[modality]
    here = {
        m: [candidate for candidate in scored_by_metric.get(m, ()) if candidate.place == place]
        for m in metrics(modality)
    }
    tested = _tested(place, scores, here, modality, rule, working, members, bounded=bounded)
    labels = tested.labels if any(match.leaks for match in tested.labels) else ()
    known = {attack.attacker: attack for attack in tested.attacks}
    beating = _beating(tested)
    best = max(
        tested.matches,
        key=lambda match: (match.attacker in beating, known[match.attacker].mean),
        default=None,
    )
    null = best.hardest(main) if best else None
    gaps = adaptive_gaps(tested.attacks)
    gap = max(gaps, key=lambda pair: max(pair.value, pair.base), default=None)
    chosen = portfolio(tested.attacks)
    rows, grade = _rows(tested)
    telling = members if members is not None and members.tells else None
    victims = _victims(tested.attacks)
    return Verdict(
        **place._asdict(),
        word=_word(rows, labels=bool(labels), members=telling is not None),
        rows=rows,
        grade=grade or ("class only" if labels else None),
        smallest=rule.smallest(modality),
        most=_most(tested, main),
        verbatim=_clients(tested, tested.returned.values()),
        exact=_clients(tested, [hits.hit for hits in tested.exact]),
        recovered=_clients(tested, [hits.gained for hits in tested.recovered]),
        reasons=tuple(_reasons(rows, tested)),
        levels=tuple(sorted(filter(None, set(scores.level)))),
        attacks=len(tested.attacks),
        victims=len(victims),
        clients=len(owners(victims)),
        jobs=dict(tested.jobs),
        strongest=_reached(known[best.attacker]) if best else None,
        labels=max(labels, key=_over_labels).attacker if labels else None,
        members=telling,
        null=null,
        nulls={
            kind: fmean(blind.values.values())
            for kind, blind in (nulls_of(known[best.attacker], here[main]) if best else {}).items()
        },
        over_null=best.against[main][null] if best and null else None,
        beating=beating,
        oblivious=_strongest([attack for attack in tested.attacks if not attack.attacker.adaptive]),
        adaptive=_strongest([attack for attack in tested.attacks if attack.attacker.adaptive]),
        gained=gap.attacker if gap else None,
        gain=gap.difference if gap else None,
        portfolio=estimate(chosen) if chosen else None,
    )


def metrics(modality: Modality) -> tuple[str, ...]:
    """The metrics that verdicts rest on."""
    words = WORDS if modality == "text" else ()
    return (MAIN[modality], LABELS, EXACT_METRIC[modality], *words)


def _tested(
    place: DefenseInSetting,
    scores: pd.DataFrame,
    here: Mapping[str, Sequence[Scored]],
    modality: Modality,
    rule: VerdictRule,
    working: Mapping[AttackKey, str],
    members: Finding | None,
    *,
    bounded: bool,
) -> _Tested:
    main = MAIN[modality]
    rows = attacked(scores)
    matches = compared(here, (main,), rule, rule.smallest(modality))
    exact = exact_hits(here, modality)
    return _Tested(
        place=place,
        main=main,
        smallest=rule.smallest(modality),
        attacks=[attack for attack in here[main] if is_attack(attack)],
        matches=matches,
        answered=answered(here, (main,), rule, rule.smallest(modality))
        + (answered(here, WORDS, rule, rule.rouge) if modality == "text" else []),
        words=compared(here, WORDS, rule, rule.rouge) if modality == "text" else [],
        labels=compared(here, (LABELS,), rule, rule.rouge),
        parts=[*leaking_parts(here[main], main, rule, rule.smallest(modality))],
        exact=exact,
        recovered=recovered_hits(here, modality),
        returned={hits.attacker: verbatim(hits, len(matches)) for hits in exact},
        jobs=by_status(jobs(rows[rows.attack != PRIOR_ONLY])),
        working=working,
        members=members,
        bounded=bounded,
    )


def _over_labels(match: BaselineComparison) -> float:
    return min((lead.mean for lead in match.against[LABELS].values()), default=-math.inf)


def _strongest(attacks: Sequence[Scored]) -> Reached | None:
    return _reached(max(attacks, key=lambda attack: attack.mean)) if attacks else None


def _reached(attack: Scored) -> Reached:
    return Reached(
        attacker=attack.attacker, leakage=estimate(attack.values), refused=len(attack.refused)
    )


def _beating(tested: _Tested) -> tuple[AttackKey, ...]:
    """Attacks that are shown to leak rows, by whatever route."""
    shown = [attacker for attacker, victims in tested.returned.items() if victims]
    shown += [hits.attacker for hits in tested.recovered if hits.shown(len(tested.matches))]
    shown += [matched.attacker for matched in (*tested.matches, *tested.words) if matched.leaks]
    return tuple(dict.fromkeys(shown))


def _victims(attacks: Iterable[Scored]) -> frozenset[VictimKey]:
    return frozenset(victim for attack in attacks for victim in attack.values)


def _clients(tested: _Tested, hits: Iterable[frozenset[VictimKey]]) -> Clients:
    tried = _victims(attack.answered for attack in tested.attacks)
    return counted(frozenset[VictimKey]().union(*hits), _victims(tested.attacks), tried)


def _most(tested: _Tested, main: str) -> float | None:
    """The largest of the attacks' upper bounds; None if one has none."""
    matches = [match for match in (*tested.matches, *tested.answered) if main in match.against]
    known = [bound for match in matches if (bound := match.most(main)) is not None]
    return max(known) if known and len(known) == len(matches) else None


def _word(rows: Word, *, labels: bool, members: bool) -> Word:
    if rows == "leaks":
        return rows
    if labels:
        return "labels leak"
    return "members leak" if members else rows


def _rows(tested: _Tested) -> tuple[Word, Grade | None]:
    """The verdict on the private rows, and how bad their leak is."""
    if tested.bounded and not (tested.matches and _beating(tested)):
        return "holds by bound", None
    if not tested.matches:
        jobs = tested.jobs
        return ("not decided" if jobs["done"] + broken(jobs) else "not attacked"), None
    if any(tested.returned.values()):
        return "leaks", "verbatim"
    if any(hits.shown(len(tested.matches)) for hits in tested.recovered):
        return "leaks", "recognisable"
    if any(match.leaks for match in tested.matches):
        some = any(hits.gained for hits in tested.recovered)
        return "leaks", "recognisable" if some else "better than guessing"
    if any(match.leaks for match in tested.words):
        return "leaks", "words"
    return ("not decided" if list(_open(tested)) else "no leak found"), None


def _open(tested: _Tested) -> Iterator[Reason]:
    """What keeps rows that are not shown to leak from ``no leak found``."""
    yield from merged(
        matched.reason for matched in (*tested.matches, *tested.words) if not matched.within
    )
    known = {attack.attacker: attack for attack in tested.attacks}
    yield from (m.reason_of(known[m.attacker]) for m in tested.answered if not m.within)
    yield from tested.parts
    yield from unsure(tested.members)
    for match in tested.labels:
        if not match.leaks and _over_labels(match) > _MANY_LABELS:
            yield match.reason
    for hits in tested.recovered:
        more, less = len(owners(hits.gained)), len(owners(hits.blind - hits.hit))
        if more > less:
            numbers = {"clients": float(more), "blind": float(less)}
            yield Reason(kind="recovered", attack=hits.attacker, numbers=numbers)
    for hits in tested.exact:
        if hits.gained:  # not so many that they count
            numbers = {"clients": float(len(owners(hits.gained)))}
            yield Reason(kind="exact", attack=hits.attacker, numbers=numbers)
    yield from lost(tested.jobs)
    yield from _untried(tested)


def _untried(tested: _Tested) -> Iterator[Reason]:
    """Which attack is missing: one that works without a defense, and is adapted to the defense."""
    if not any(attack.tried for attack in tested.attacks):
        yield Reason(kind="hardly_tested")
    elif not _fitting(tested):
        yield Reason(kind="no_adaptive")
    elif not _controls(tested):
        yield Reason(kind="no_control")
    elif missing := shortfall(_over_blind(tested), tested.smallest):
        yield Reason(kind="below_blind", numbers={"mean": -missing})


def _over_blind(tested: _Tested) -> list[float]:
    """Mean leads over the blind guess, of the attacks that a word of holding rests on."""
    leads = {match.attacker: match.against[tested.main] for match in tested.matches}
    resting = [leads[key] for key in _fitting(tested) if {*_twins(key, tested)} & {*tested.working}]
    return [against[PRIOR_ONLY].mean for against in resting if PRIOR_ONLY in against]


def _fitting(tested: _Tested) -> list[AttackKey]:
    """Attacks that tried the victims, under a defense those that are adapted to it."""
    keys = [attack.attacker for attack in tested.attacks if attack.tried]
    if tested.place.defense == "none":
        return keys
    return [key for key in keys if allows_for(key, tested.place.defense_options)]


def _controls(tested: _Tested) -> dict[AttackKey, str]:
    """Those of them, or their oblivious variants, that work without a defense; by which setting."""
    shown = [twin for key in _fitting(tested) for twin in _twins(key, tested)]
    return {key: tested.working[key] for key in shown if key in tested.working}


def _twins(key: AttackKey, tested: _Tested) -> list[AttackKey]:
    """An attack, and its oblivious variant if that works without a defense."""
    twin = oblivious_twin(key, tested.working)
    return [key] if twin is None else [key, twin]


def _reasons(rows: Word, tested: _Tested) -> Iterator[Reason]:
    for hits in tested.exact:
        false = len(hits.certified - hits.hit)
        if false:
            numbers = {"false": float(false), "certified": float(len(hits.certified))}
            yield Reason(kind="false_certificates", attack=hits.attacker, numbers=numbers)
    if not tested.matches:
        if rows == "not decided":
            yield Reason(kind="no_metric")
        else:
            unrun: dict[str, float] = {
                word: float(tested.jobs[word]) for word in sorted(UNSCORED) if tested.jobs[word]
            }
            yield Reason(kind="unrun", numbers=unrun)
        return
    if rows == "not decided":
        yield from _open(tested)
    elif rows == "no leak found":
        foreign = _controls(tested)
        if tested.place.setting not in foreign.values():
            attack, setting = next(iter(foreign.items()))
            yield Reason(kind="foreign_control", attack=attack, setting=setting)
    elif rows == "leaks":
        if tested.bounded:
            yield Reason(kind="contradiction")
        if not any(match.against[m] for match in tested.matches for m in match.against):
            yield Reason(kind="no_null")
        yield from (reason for reason in lost(tested.jobs) if reason.kind != "failed")
    if skipped := tested.jobs["skipped"]:
        yield Reason(kind="skipped", numbers={"jobs": float(skipped)})
