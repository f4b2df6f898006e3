"""What a verdict says: a sentence for each defense, or for all that share it, and its numbers.

No sentence claims more than its verdict: what is inconclusive reads as open, and one that holds
does so only as far as these attacks tell.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis.evidence import Verdict, Word
from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.statistics import FEW
from experiments.report.details import details, share
from experiments.report.naming import name_of, things, unit_of_main
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.names import defense_name, title
from experiments.wording.prose import capital, counted, listed

MOST = 3
"""Up to so many defenses of one verdict are named; of more, the first and how many follow."""
_SEVERITY = (
    *("leaks.verbatim", "leaks.recognisable", "leaks.words", "leaks.better than guessing"),
    *("labels leak", "members leak", "not decided"),
    *("no leak found.idle", "no leak found", "holds by bound", "not attacked"),
)


@dataclass(frozen=True, slots=True)
class Statement:
    """What the attacks show under one defense, or under several with one verdict.

    Attributes:
        name: of the defense; of the first of several.
        said: the verdict as the page prints it.
        grade: how bad the leak is, in the word that the page shows; empty without a leak.
        lead: the verdict as a sentence.
        details: the numbers that it rests on; none for several defenses.
    """

    name: str
    word: Word
    said: str
    grade: str
    lead: Said
    details: tuple[Said, ...]

    @property
    def detail(self) -> str:
        """The numbers, in sentences."""
        return " ".join(map(str, self.details))


@dataclass(frozen=True, slots=True)
class SectionAnswer:
    """What one task says in one setting.

    Attributes:
        setting: empty where the task ran in one setting only.
        brief: a statement for each verdict, the worst first.
        statements: one for each defense; no defense first.
    """

    setting: str
    brief: tuple[Statement, ...]
    statements: tuple[Statement, ...]


def answers(section: TaskFindings) -> list[SectionAnswer]:
    """One answer for each setting of the task, in order."""
    verdicts = section.evidence.verdicts
    return [
        _answer(section, setting, [verdict for verdict in verdicts if verdict.setting == setting])
        for setting in dict.fromkeys(verdict.setting for verdict in verdicts)
    ]


def _answer(section: TaskFindings, setting: str, verdicts: Sequence[Verdict]) -> SectionAnswer:
    base = next((verdict for verdict in verdicts if verdict.defense == "none"), None)
    ordered = sorted(verdicts, key=lambda verdict: verdict.defense != "none")
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in ordered:
        groups.setdefault((kind_of(verdict, base), verdict.rows), []).append(verdict)
    worst_first = sorted(groups, key=lambda group: _SEVERITY.index(group[0]))
    return SectionAnswer(
        setting,
        tuple(_statement(section, groups[group], base) for group in worst_first),
        tuple(stated(section, verdict, base) for verdict in ordered),
    )


def kind_of(verdict: Verdict, base: Verdict | None) -> str:
    """The verdict with its grade; idle where a defense hides what was not shown to leak."""
    if verdict.word == "leaks":
        return f"leaks.{verdict.grade}"
    shown = verdict.defense == "none" or base is None or base.rows == "leaks"
    return "no leak found.idle" if verdict.word == "no leak found" and not shown else verdict.word


def stated(section: TaskFindings, verdict: Verdict, base: Verdict | None) -> Statement:
    """What the attacks show under one defense, or where none is in their way.

    Args:
        section: the task.
        verdict: on the defense.
        base: the verdict without a defense in the same setting.
    """
    return _statement(section, [verdict], base, tuple(details(section, verdict, base)))


def _statement(
    section: TaskFindings,
    group: Sequence[Verdict],
    base: Verdict | None,
    details: tuple[Said, ...] = (),
) -> Statement:
    first, lead = group[0], _lead(section, group, base)
    name, said = name_of(section, first), word_of(section, first)
    return Statement(name, first.word, said, first.grade or "", lead, details)


def _lead(section: TaskFindings, group: Sequence[Verdict], base: Verdict | None) -> Said:
    first, them = group[0], things(section)
    facts = {"them": them, "Them": capital(them), "smallest": show_smallest(section, first)}
    rows = sentence(f"rows.{first.rows}", **facts)
    here = where(section, group, _beside)
    return say(f"verdict.{kind_of(first, base)}", where=here, rows=rows, **facts)


def where(
    section: TaskFindings,
    group: Collection[DefenseInSetting | Verdict],
    beside: Callable[[Any], str] = lambda _: "",
) -> str:
    """``without a defense (3 of 8 clients, ...) and under sign (1 of 8 clients, ...)``."""
    bare = sentence("defense.as_it_ran" if section.foreign else "defense.without")
    undefended = {bare + beside(verdict): None for verdict in group if verdict.defense == "none"}
    defended = {name_of(section, o) + beside(o): None for o in group if o.defense != "none"}
    return listed([*undefended, *([f"under {names(list(defended))}"] if defended else [])])


def _beside(verdict: Verdict) -> str:
    """How many clients are hit, and what leaks beside the verdict, in brackets."""
    hit = {"verbatim": verdict.verbatim, "recognisable": verdict.recovered}.get(verdict.grade or "")
    parts = []
    if hit is not None:
        facts = {"hit": hit.hit, "of": hit.of, "low": share(hit.low)}
        parts.append(sentence("verdict.hit", **facts))
    if verdict.labels and verdict.word != "labels leak":
        parts.append(sentence("verdict.labels"))
    if verdict.members and verdict.word != "members leak":
        parts.append(sentence("verdict.members"))
    return f" ({'; '.join(parts)})" if parts else ""


def names(defenses: Sequence[str]) -> str:
    """``a, b and c``; of many the first three and how many more."""
    if len(defenses) > MOST + 1:
        return f"{', '.join(defenses[:MOST])} and {len(defenses) - MOST} more"
    return listed(defenses)


def word_of(section: TaskFindings, verdict: Verdict) -> str:
    """The verdict as the tables print it."""
    none = verdict.word == "no leak found"
    return f"no leak above {show_smallest(section, verdict)} found" if none else verdict.word


def shade(word: Word, grade: str | None) -> str:
    """The class of the page that colours a verdict: by its severity, else by its word."""
    return (grade or word).replace(" ", "-")


def show_smallest(section: TaskFindings, verdict: Verdict) -> str:
    """The smallest effect that counts, with its unit."""
    unit = unit_of_main(section)
    return f"{verdict.smallest:g} {title(section.main) if unit == '1' else unit}"


def overall(sections: Iterable[TaskFindings]) -> list[Said]:
    """Which defenses hold in the whole run, judged by the worst verdict on each."""
    worst: dict[str, str] = {}
    for section in sections:
        verdicts = section.evidence.verdicts
        bases = {verdict.setting: verdict for verdict in verdicts if verdict.defense == "none"}
        for verdict in verdicts:
            if verdict.defense != "none":
                name = defense_name(verdict.defense, verdict.defense_options)
                kind = kind_of(verdict, bases.get(verdict.setting))
                worst[name] = min(worst.get(name, kind), kind, key=_SEVERITY.index)
    if not worst:
        return [say("overall.untested")]
    ways = {"overall.bound": "holds by bound", "overall.held": "no leak found"}
    said = [
        say(reason, who=capital(names(who)))
        for reason, kind in ways.items()
        if (who := [name for name, known in worst.items() if known == kind])
    ]
    return said or [say("overall.nothing")]


def certainty(sections: Iterable[TaskFindings], seeds: Collection[int]) -> Said:
    """On how many victims, clients and trainings the answers rest, and what they leave open."""
    verdicts = [
        verdict for section in sections for verdict in section.evidence.verdicts if verdict.victims
    ]
    if not verdicts:
        return say("sure.nothing")
    victims, clients = ([getattr(v, n) for v in verdicts] for n in ("victims", "clients"))
    return say(
        "sure.rests",
        victims=_counted(victims, "victim"),
        clients=_counted(clients, "client"),
        trainings=counted(len(seeds), "training"),
        few=sentence("sure.few", few=FEW) if min(clients) < FEW else "",
    )


def _counted(numbers: Sequence[int], noun: str) -> str:
    """``1 victim``, or ``2 to 8 victims``."""
    low, high = min(numbers), max(numbers)
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"
