"""Sentences of the page about who attacked whom, and what became of the jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.analysis.findings import Problem, Result, TaskFindings
from experiments.report.chapter import Chapter
from experiments.report.naming import attack_label
from experiments.wording.defense_names import NO_DEFENSE
from experiments.wording.names import duration, show, title, utility_unit
from experiments.wording.prose import counted, listed
from experiments.wording.threat import WHO, ThreatModel, shared_protocol, withheld
from fedsim.records import PRIOR_ONLY, STATUSES, shown

Lines = Sequence[tuple[str, str]]


def attackers(chapters: Sequence[Chapter]) -> str:
    """Who attacked, with what, and what was kept from the attacker."""
    names = dict.fromkeys(
        title(result.attack)
        for chapter in chapters
        for result in chapter.section.results
        if not result.is_control and result.attack != PRIOR_ONLY
    )
    hidden = withheld([chapter.threat for chapter in chapters])
    parts = (
        WHO,
        f"It was not told {', nor '.join(hidden)}." if hidden else "",
        f"It ran {counted(len(names), 'attack')}: {listed(list(names))}." if names else "",
    )
    return " ".join(filter(None, parts))


def threats(chapters: Sequence[Chapter]) -> list[tuple[str, ThreatModel]]:
    """The cards that differ in what the server was told, each with the tasks that it is of."""
    groups: dict[tuple[tuple[str, ...], ...], list[Chapter]] = {}
    for (
        chapter
    ) in chapters:  # a task of pictures has fewer facts to withhold, such as no token count
        groups.setdefault((chapter.threat.granted, chapter.threat.varied), []).append(chapter)
    cards = []
    for group in groups.values():
        hidden = withheld([chapter.threat for chapter in group])
        whose = "; ".join(chapter.heading for chapter in group) if len(groups) > 1 else ""
        cards.append((whose, replace(group[0].threat, withheld=hidden)))
    return cards


def simulated(chapters: Sequence[Chapter]) -> tuple[Lines, list[Lines]]:
    """What was simulated alike in all chapters, and what is each one's own."""
    common = shared_protocol([chapter.threat for chapter in chapters]) if len(chapters) > 1 else ()
    return common, [[x for x in chapter.threat.protocol if x not in common] for chapter in chapters]


def scope(section: TaskFindings) -> str:
    """Who was attacked by what, and what became of the jobs, in a sentence."""
    attacked = [
        result
        for result in section.results
        if result.control == "none" and result.attack != PRIOR_ONLY
    ]
    attacks = {attack_label(section, result.attacker) for result in attacked}
    settings = {result.setting for result in attacked}
    defended = {result.place[1:] for result in attacked if result.defense != "none"}
    undefended = " and none" if any(result.defense == "none" for result in attacked) else ""
    under = counted(len(defended), "defense") + undefended if defended else NO_DEFENSE
    jobs = {status: sum(result.jobs[status] for result in attacked) for status in STATUSES}
    became = ", ".join(f"{count:,} {shown(status)}" for status, count in jobs.items() if count)
    became = "all done" if jobs["done"] == sum(jobs.values()) else became
    return (
        f"{counted(section.victims, 'private example')} of {counted(section.clients, 'client')}, "
        f"attacked under {under}{f' in {len(settings)} settings' if len(settings) > 1 else ''} by "
        f"{counted(len(attacks), 'attack')}: {counted(sum(jobs.values()), 'job')}, {became}, "
        f"{duration(sum(result.seconds for result in attacked))} of work in all."
    )


def trained(section: TaskFindings) -> str:
    """What to know of the utility: how many trainings there were, and what came before them."""
    name = section.utility_name
    if name is None:
        return ""
    alone = max(point.seeds for point in section.utility) == 1
    start = {
        point.values[name] for point in section.utility if point.round == 0 and name in point.values
    }
    parts = [
        "Utility is that of one training under each defense: small changes may be chance."
        if alone
        else "",
        f"Before training, {title(name)} was {show(start.pop(), utility_unit(name))}."
        if len(start) == 1
        else "",
    ]
    return " ".join(filter(None, parts))


def outcomes(result: Result) -> list[tuple[str, int, str]]:
    """(status, jobs, reason) for each reason, those that differ in their numbers as one."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in sorted(result.problems, key=lambda problem: (-problem.jobs, problem.reason)):
        alike = problem.status, re.sub(r"\d+", "#", problem.reason)
        groups.setdefault(alike, []).append(problem)
    return [
        (
            status,
            sum(problem.jobs for problem in group),
            ("for example: " if len(group) > 1 else "") + group[0].reason,
        )
        for (status, _), group in groups.items()
    ]
