"""The page of another application's captures, in the form of a run's page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from experiments.analysis.evidence import Grade, Shown
from experiments.captures.findings import UNSCORED, Findings
from experiments.captures.guess import Guess
from experiments.captures.results import Outcome, Results, apart
from experiments.captures.run import is_scored
from experiments.report.footer import footer
from experiments.report.statements import Statement
from experiments.report.templates import SCRIPT, render
from experiments.stages.gallery import drawn
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.names import title
from experiments.wording.prose import capital, counted
from fedsim.api.run import read_provenance
from fedsim.knowledge import FACTS, PASSED
from fedsim.records import PRIOR_ONLY
from fedsim.store.files import write_bytes
from fedsim.store.plain_files import make_private
from fedsim.tasks.base import Task

LEVELS = ("certified", "consistent", "in_span", "guess")
"""Of a guessed example, the surest first."""
_MOST = 12
"""Guessed examples of one attack on one capture that the page shows."""


def write_page(attacked: Results) -> Path:
    """Write what attacks made of the captures, its owner's alone.

    It is the report itself, or lies beside it once the run is scored.
    """
    run, task, findings = attacked.run, attacked.task, attacked.findings
    results = [each for each in attacked.outcomes if each.record.attack != PRIOR_ONLY]
    outcomes, shared = apart(results)
    refused = [outcome.record for outcome in results if outcome.guess is None]
    known = {fact for disclosure in findings.given for fact in disclosure.known}
    body = render(
        "experiments.captures",
        "external.html.j2",
        script=SCRIPT,
        name=run.root.resolve().parent.name,
        answers=_answers(results, findings),
        switches=list(_switches(results, findings, task, scored=is_scored(run))),
        cohort=run.plan.experiments[0].federation.secure_aggregation,
        sure=say("captured.scored" if is_scored(run) else "captured.unscored"),
        attacked=attacked,
        findings=findings,
        guesses=[
            (outcome, outcome.guess, _pictures(outcome.guess))
            for outcome in outcomes
            if outcome.guess is not None
        ],
        shared=shared,
        most=_MOST,
        refused=Counter((r.attack, r.cause or r.reason, r.advice) for r in refused),
        known=[fact for fact in FACTS if fact in known],
        withheld=[fact for fact in FACTS if fact not in known],
        levels={level: say(f"level.{level}") for level in LEVELS},
        **footer(read_provenance(run.root)),
    )
    make_private(run.root / "report")
    page = run.root / "report" / ("captures.html" if is_scored(run) else "index.html")
    write_bytes(page, body.encode(), private=True)
    return page


def _answers(results: Sequence[Outcome], findings: Findings) -> list[Statement]:
    """What is shown of words, and by each attack, the worst first."""
    by_attack: dict[str, list[Outcome]] = {}
    for outcome in results:
        by_attack.setdefault(outcome.record.attack, []).append(outcome)
    each = [_answer(name, those, findings) for name, those in by_attack.items()]
    of_words = findings.sentences({o.record.key for o in results if o.certified})
    statements = [
        Statement("", shown.word, shown.word, shown.grade or "", said, ())
        for shown, said in (*of_words, *each)
    ]
    grades = (*get_args(Grade), "")
    return sorted(statements, key=lambda statement: grades.index(statement.grade))


def _answer(name: str, those: Sequence[Outcome], findings: Findings) -> tuple[Shown, Said]:
    """The judge's evidence without the private rows, where certificates alone are a proof."""
    guessed = [outcome for outcome in those if outcome.guess is not None]
    who, known = capital(title(name)), findings.known()
    facts = {"attack": who, "captures": counted(len(guessed or those), "capture")}
    if not guessed:
        return Shown(attacked=False), say("guess.refused", known=known, **facts)
    count = sum(len(o.guess.examples.batch) for o in guessed if o.guess)
    facts["examples"] = counted(count, "example")
    if proven := sum(outcome.certified for outcome in guessed):
        return Shown(frozenset({"verbatim"})), say("guess.proven", proven=proven, **facts)
    fits = [o.fit.leads for o in guessed if o.fit and o.words is None and o.fit.leads is not None]
    ahead = say("guess.ahead", ahead=fits.count(True), of=len(fits)) if fits else ""
    return UNSCORED, say("guess.open", ahead=ahead, known=known, **facts)


def _switches(
    results: Sequence[Outcome], findings: Findings, task: Task, *, scored: bool
) -> Iterator[Said]:
    """What to switch on: a defense where something leaks, a fact where attacks lack it."""
    given = findings.given
    if findings.worded:
        yield say("advice.words")
    simulated = not task.spec.owner_shape and task.spec.target == "class"
    if any(outcome.certified for outcome in results):
        yield say("advice.certified")
    if not simulated:
        table = sentence("advice.table") if task.spec.owner_shape else ""
        yield from () if scored else (say("advice.not_simulated", table=table),)
    elif any(outcome.certified for outcome in results):
        yield say("advice.simulate")
    elif findings.worded:
        yield say("advice.ask")
    else:
        yield say("advice.proves_nothing")
    if any(disclosure.labels for disclosure in given):
        yield say("advice.labels")
    if any(disclosure.layers for disclosure in given):
        yield say("advice.statistics")
    missing = {fact for outcome in results for fact in outcome.record.missing}
    yield from findings.offers()
    lacking = [fact for fact in PASSED if fact in missing]
    if lacking:
        options = " ".join(f"--knows {fact}=VALUE" for fact in lacking)
        yield say("advice.facts", facts=", ".join(lacking), options=options)


def _pictures(guess: Guess) -> list[bytes]:
    """Of the examples that are shown; none of texts."""
    inputs = guess.examples.batch.inputs[:_MOST]
    return [] if guess.texts else [drawn(each, guess.task) for each in inputs]
