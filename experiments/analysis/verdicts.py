"""The verdict on each defense: one record of evidence, and one function from it to a word.

``docs/reference/verdicts.md`` has the rule in full. In short, the first that holds:

``leaks``: more private examples came back exactly (*verbatim*), or past the threshold
(*recognisable*), than chance explains, each where no guess without the update comes near; or the
mean of all attacks as one, or a minority of clients, is above every null baseline by more than the
smallest effect (*better than guessing*); or so are precision and recall of words (*words*).
``labels leak``, ``members leak``: rows are not shown to leak, but withheld labels, or members, are.
``holds by bound``: the replies tell too little for the smallest effect, whatever the attack.
``no leak found``: the mean is surely below the smallest effect, no client is above every null, and
the attacks had the power to find a leak.
``not attacked``: no attack has a score.
``not decided``: anything else; the reasons say what would decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from experiments.analysis.evidence import Clients, Grade, Reached, Reason, Verdict, Word
from experiments.analysis.frames import attacked, by_status, jobs
from experiments.analysis.gaps import adaptive_gaps
from experiments.analysis.hits import (
    EXACT_METRIC,
    Hits,
    clients_of,
    exact_hits,
    examples,
    owners,
    recovered_hits,
)
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.membership import Finding
from experiments.analysis.paired import Scored, difference, estimate, is_attack, portfolio
from experiments.analysis.portfolio import (
    Comparison,
    Question,
    blind_guess,
    compare,
    jointly,
    leaking_parts,
    refusing,
)
from experiments.analysis.power import Power, Search, broken, lost, unsure
from experiments.plan.config import VerdictRule
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, UNSCORED, AttackKey, Modality

WORDS = ("batch_token_precision", "batch_token_recall")
"""Judged together: listing every word gives full recall, naming one sure word full precision."""

LABELS = "label_accuracy"
"""The baselines know granted labels too, so only labels that were withheld can leak."""
CLASS = {"psnr": 3.0, "rougeL": 0.15}
"""What knowing the class may bring, which the null does not know where labels are withheld: 3 dB if
it explains half of the variance of pixels. A lead below it beside labels that leak is of the class
alone. Halved, the mean image of a class of MNIST (1.25 dB) still is; doubled, outlines are no
leak."""

_RULE = VerdictRule()

_NOTHING: Mapping[AttackKey, str] = {}
_NO_SEARCHES: Mapping[AttackKey, Search] = {}
_MANY_LABELS = 0.5
"""Share of labels read beyond every baseline that no word of holding stands beside, though the
clients are too few, or too much alike, to show it. Halved, chance keeps verdicts on five clients
open; doubled, none is."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the word rests on.

    Attributes:
        attacks: on the main metric.
        match: all of them as one against their baselines; None where none has a score.
        over_class: the same by what the class cannot explain, where withheld labels may be read.
        answered: each attack that refused victims, on the others, against its baselines.
        words: as ``match``, by words of the batch that are both right and complete.
        either: the same by each of the two.
        labels: as ``match``, by the labels that attacks infer.
        readers: mean lead of each attack by labels, over the baseline that it beats by least.
        parts: rounds or seeds on which alone the attacks leak.
        exact: victims that came back exactly.
        recovered: victims that passed the threshold.
        false: attack -> certificates, and how many of them are false.
        jobs: by status.
        power: of the attacks.
        members: what tells members best.
        bounded: whether no attack can gain the smallest effect.
    """

    attacks: Sequence[Scored]
    match: Comparison | None
    over_class: Comparison | None
    answered: Sequence[tuple[Scored, Comparison]]
    words: Comparison | None
    either: Sequence[Comparison]
    labels: Comparison | None
    readers: Mapping[AttackKey, float]
    parts: Sequence[Reason]
    exact: Hits
    recovered: Hits
    false: Mapping[AttackKey, tuple[int, int]]
    jobs: Mapping[str, int]
    power: Power
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
    searches: Mapping[AttackKey, Search] = _NO_SEARCHES,
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
        searches: how far attacks searched their objective, of those that have one.
        members: what tells members best.
        bounded: whether a bound on information rules out the smallest effect, by any attack.
    """
    here = {
        m: [candidate for candidate in scored_by_metric.get(m, ()) if candidate.place == place]
        for m in metrics(modality)
    }
    seen = evidence_of(
        place, scores, here, modality, rule, working, searches, members, bounded=bounded
    )
    rows, grade = rows_word(seen)
    labels = _label_reader(seen)
    telling = members if members is not None and members.tells else None
    beating = _beating(here, modality, rule)
    best = max(seen.attacks, key=lambda a: (a.attacker in beating, a.mean), default=None)
    gaps = adaptive_gaps(seen.attacks)
    gap = max(gaps, key=lambda pair: max(pair.value, pair.base), default=None)
    chosen = portfolio(seen.attacks)
    victims = _victims(seen.attacks)
    null = seen.match.hardest if seen.match else None
    return Verdict(
        **place._asdict(),
        word=_word(rows, labels=labels is not None, members=telling is not None),
        rows=rows,
        grade=grade or ("class only" if labels else None),
        smallest=rule.smallest(modality),
        most=_most(seen),
        verbatim=_clients(seen, seen.exact.counted()),
        exact=_clients(seen, seen.exact.hit),
        recovered=_clients(seen, seen.recovered.alone),
        beyond=_clients(seen, _of(seen, seen.match.above if seen.match else frozenset())),
        reasons=tuple(_reasons(place, rows, seen)),
        levels=tuple(sorted(filter(None, set(scores.level)))),
        attacks=len(seen.attacks),
        victims=len(victims),
        clients=len(owners(victims)),
        jobs=dict(seen.jobs),
        strongest=_reached(best) if best else None,
        labels=labels,
        members=telling,
        null=null,
        nulls=_nulls(best, here[MAIN[modality]]) if best else {},
        over_null=seen.match.leads[null] if seen.match and null else None,
        beating=beating,
        oblivious=_strongest([attack for attack in seen.attacks if not attack.attacker.adaptive]),
        adaptive=_strongest([attack for attack in seen.attacks if attack.attacker.adaptive]),
        gained=gap.attacker if gap else None,
        gain=gap.difference if gap else None,
        portfolio=estimate(chosen) if chosen else None,
    )


def metrics(modality: Modality) -> tuple[str, ...]:
    """The metrics that verdicts rest on."""
    words = WORDS if modality == "text" else ()
    return (MAIN[modality], LABELS, EXACT_METRIC[modality], *words)


def rows_word(seen: Evidence) -> tuple[Word, Grade | None]:
    """The verdict on the private rows, and how bad their leak is."""
    grade = _grade(seen)
    if grade is not None:
        return "leaks", grade
    if seen.bounded:
        return "holds by bound", None
    if seen.match is None:
        return ("not decided" if seen.jobs["done"] + broken(seen.jobs) else "not attacked"), None
    return ("not decided" if list(_open(seen)) else "no leak found"), None


def evidence_of(
    place: DefenseInSetting,
    scores: pd.DataFrame,
    here: Mapping[str, Sequence[Scored]],
    modality: Modality,
    rule: VerdictRule,
    working: Mapping[AttackKey, str],
    searches: Mapping[AttackKey, Search],
    members: Finding | None,
    *,
    bounded: bool,
) -> Evidence:
    """All that the word on one defense rests on; the arguments are those of ``judge``.

    ``here`` has the values of this defense alone.
    """
    main, smallest = MAIN[modality], rule.smallest(modality)
    attacks = list(filter(is_attack, here[main]))
    question = _main_question(modality, rule)
    of_labels = Question(LABELS, rule.rouge, rule.clients)
    readers = _readers(here[LABELS], of_labels)
    told = max(readers.values(), default=0.0) > rule.rouge
    by_class = Question(main, CLASS[main], rule.clients, question.shares)
    known = attacked(scores)
    return Evidence(
        attacks=attacks,
        match=compare(attacks, here[main], question),
        over_class=compare(attacks, here[main], by_class) if told else None,
        answered=list(refusing(attacks, here[main], question)),
        words=_words_compared(here, modality, rule),
        either=[
            match
            for metric in (WORDS if modality == "text" else ())
            if (match := _compared(here[metric], Question(metric, rule.rouge, rule.clients)))
        ],
        labels=_compared(here[LABELS], of_labels),
        readers=readers,
        parts=list(leaking_parts(attacks, here[main], question)),
        exact=exact_hits(here, modality, attacks),
        recovered=recovered_hits(here, modality, attacks),
        false=_false_certificates(here, modality, attacks),
        jobs=by_status(jobs(known[known.attack != PRIOR_ONLY])),
        power=Power(
            defense=place.defense,
            options=place.defense_options,
            tried={attack.attacker: attack.tried for attack in attacks},
            working=working,
            leads=_over_blind(attacks, here[main]),
            searches=searches,
            smallest=smallest,
        ),
        members=members,
        bounded=bounded,
    )


def _main_question(modality: Modality, rule: VerdictRule) -> Question:
    main = MAIN[modality]
    return Question(main, rule.smallest(modality), rule.clients, shares=modality == "text")


def _compared(
    here: Sequence[Scored], question: Question, comparisons: int = 1
) -> Comparison | None:
    return compare(list(filter(is_attack, here)), here, question, comparisons)


def _words_compared(
    here: Mapping[str, Sequence[Scored]], modality: Modality, rule: VerdictRule
) -> Comparison | None:
    if modality != "text":
        return None
    joint = jointly([here[metric] for metric in WORDS])
    return _compared(joint, Question("words", rule.rouge, rule.clients))


def _false_certificates(
    here: Mapping[str, Sequence[Scored]], modality: Modality, attacks: Sequence[Scored]
) -> dict[AttackKey, tuple[int, int]]:
    by_attack = {a.attacker: exact_hits(here, modality, [a]) for a in attacks}
    return {
        key: (len(known.certified), false)
        for key, known in by_attack.items()
        if (false := len(known.certified - known.hit))
    }


def _over_blind(attacks: Sequence[Scored], here: Sequence[Scored]) -> dict[AttackKey, float]:
    blind = blind_guess(here)
    leads = {a.attacker: difference(a.values, blind.values) for a in attacks} if blind else {}
    return {key: lead.mean for key, lead in leads.items() if lead is not None}


def _nulls(best: Scored, here: Sequence[Scored]) -> dict[str, float]:
    """Mean of each baseline of an attack."""
    other = next((o for o in here if _is_other(o, best)), None)
    known = {PRIOR_ONLY: blind_guess(here), OTHER_CLIENT: other}
    return {kind: fmean(null.values.values()) for kind, null in known.items() if null}


def _is_other(candidate: Scored, attack: Scored) -> bool:
    return (candidate.attacker, candidate.control) == (attack.attacker, OTHER_CLIENT)


def _beating(
    here: Mapping[str, Sequence[Scored]], modality: Modality, rule: VerdictRule
) -> tuple[AttackKey, ...]:
    """Attacks that are shown to leak rows alone, by whatever route; they share the error."""
    main, words = MAIN[modality], jointly([here[metric] for metric in WORDS if metric in here])
    attacks = list(filter(is_attack, here[main]))
    question, count = _main_question(modality, rule), len(attacks)

    def leaks(attack: Scored) -> bool:
        known = [compare([attack], here[main], question, count)]
        alone = [word for word in words if word.attacker == attack.attacker and is_attack(word)]
        known.append(compare(alone, words, Question("words", rule.rouge, rule.clients), count))
        return (
            any(match is not None and match.leaks for match in known)
            or bool(exact_hits(here, modality, [attack]).counted(count))
            or recovered_hits(here, modality, [attack]).shown(count)
        )

    return tuple(attack.attacker for attack in attacks if leaks(attack))


def _readers(here: Sequence[Scored], question: Question) -> dict[AttackKey, float]:
    return {
        attack.attacker: match.mean
        for attack in filter(is_attack, here)
        if (match := compare([attack], here, question)) is not None and match.leads
    }


def _label_reader(seen: Evidence) -> AttackKey | None:
    """The attack that reads withheld labels best, where they leak."""
    if seen.labels is None or not seen.labels.leaks:
        return None
    return max(seen.readers, key=lambda key: seen.readers[key])


def _strongest(attacks: Sequence[Scored]) -> Reached | None:
    return _reached(max(attacks, key=lambda attack: attack.mean)) if attacks else None


def _reached(attack: Scored) -> Reached:
    return Reached(
        attacker=attack.attacker, leakage=estimate(attack.values), refused=len(attack.refused)
    )


def _victims(attacks: Sequence[Scored]) -> frozenset[VictimKey]:
    return frozenset(victim for attack in attacks for victim in attack.values)


def _of(seen: Evidence, clients: frozenset[int]) -> frozenset[VictimKey]:
    """One victim of each of these clients."""
    by_client = {victim.owner: victim for victim in _victims(seen.attacks)}
    return frozenset(by_client[client] for client in clients)


def _clients(seen: Evidence, hit: frozenset[VictimKey]) -> Clients:
    tried = _victims([attack.answered for attack in seen.attacks])
    return clients_of(hit, _victims(seen.attacks), tried)


def _most(seen: Evidence) -> float | None:
    """The largest of the upper bounds; None if one is missing."""
    if seen.match is None:
        return None
    ends = [match.most for match in (seen.match, *(match for _, match in seen.answered))]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def _word(rows: Word, *, labels: bool, members: bool) -> Word:
    if rows == "leaks":
        return rows
    if labels:
        return "labels leak"
    return "members leak" if members else rows


def _grade(seen: Evidence) -> Grade | None:
    """How bad a leak of rows is; None where none is shown."""
    if seen.exact.counted():
        return "verbatim"
    if seen.recovered.shown():
        return "recognisable"
    match = seen.over_class or seen.match
    if match is not None and match.leaks:
        return (
            "recognisable" if seen.recovered.alone and match.mean_leaks else "better than guessing"
        )
    return "words" if seen.words is not None and seen.words.leaks else None


def _open(seen: Evidence) -> Iterator[Reason]:
    """What keeps rows that are not shown to leak from ``no leak found``."""
    match = seen.match
    assert match is not None
    if match.leaks:  # and it is the class that does
        yield Reason(kind="class_only", numbers={"mean": match.mean})
    elif not match.within:
        yield match.reason
    if seen.words is not None and not seen.words.within:
        yield seen.words.reason
    yield from (_one_side(match) for match in seen.either if match.mean_leaks)
    yield from (_answered(attack, part) for attack, part in seen.answered if not part.within)
    yield from seen.parts
    yield from unsure(seen.members)
    if seen.labels is not None and not seen.labels.leaks and seen.labels.mean > _MANY_LABELS:
        yield seen.labels.reason
    yield from _more(seen)
    yield from lost(seen.jobs)
    yield from seen.power.lacking()


def _one_side(match: Comparison) -> Reason:
    """That one of precision and recall of words is above its baselines, without the other."""
    numbers = {"mean": match.mean}
    return Reason(kind="beats_one", baseline="", metric=match.metric, numbers=numbers)


def _answered(attack: Scored, match: Comparison) -> Reason:
    """That an attack, on the victims that it did not refuse, may leak these."""
    of, refused = float(len(attack.values)), float(len(attack.refused))
    least = {"mean": match.mean} if match.leads else {}
    numbers = {"of": of, "victims": of - refused} | least
    return Reason(kind="answered", attack=attack.attacker, metric=match.metric, numbers=numbers)


def _more(seen: Evidence) -> Iterator[Reason]:
    """Examples or clients that stand out, too few to exclude chance."""
    more, less = examples(seen.recovered.alone), examples(seen.recovered.chance)
    if more > less:
        numbers = {"clients": float(len(owners(seen.recovered.alone))), "blind": float(less)}
        yield Reason(kind="recovered", numbers=numbers)
    if seen.exact.alone:
        yield Reason(kind="exact", numbers={"clients": float(len(owners(seen.exact.alone)))})
    if seen.match is not None and seen.match.above and not seen.match.leaks:
        numbers = {"clients": float(len(seen.match.above))}
        yield Reason(kind="beyond", numbers=numbers)


def _reasons(place: DefenseInSetting, rows: Word, seen: Evidence) -> Iterator[Reason]:
    for attack, (certified, false) in seen.false.items():
        numbers = {"false": float(false), "certified": float(certified)}
        yield Reason(kind="false_certificates", attack=attack, numbers=numbers)
    if seen.match is None:
        if rows == "not decided":
            yield Reason(kind="no_metric")
        elif rows == "not attacked":
            unrun: dict[str, float] = {
                word: float(seen.jobs[word]) for word in sorted(UNSCORED) if seen.jobs[word]
            }
            yield Reason(kind="unrun", numbers=unrun)
        return
    if rows == "not decided":
        yield from _open(seen)
    elif rows == "no leak found":
        yield from seen.power.noted(place.setting)
    elif rows == "leaks":
        if seen.bounded:
            yield Reason(kind="contradiction")
        if not seen.match.leads:
            yield Reason(kind="no_null")
        yield from (reason for reason in lost(seen.jobs) if reason.kind != "failed")
    if skipped := seen.jobs["skipped"]:
        yield Reason(kind="skipped", numbers={"jobs": float(skipped)})
