"""The page of another application's captures, in the form of a run's page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from markupsafe import Markup
from torch import Tensor

from experiments.captures.disclosures import Disclosure
from experiments.captures.findings import Findings, sure
from experiments.captures.run import Outcome, efforts, is_scored, outcomes, read_intake
from experiments.plan.folder import Run
from experiments.report.footer import cost, cover, provenance_lines
from experiments.report.page import SCRIPT, environment
from experiments.report.tables import Table
from experiments.stages.png import png
from experiments.wording.catalogue import sentence
from experiments.wording.names import title
from experiments.wording.prose import capital, counted
from fedsim.api.run import read_provenance
from fedsim.capture import CaptureKey
from fedsim.files import write_bytes
from fedsim.knowledge import FACTS, PASSED
from fedsim.plain_files import make_private
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification

_NONE = "\N{EN DASH}"
_MOST = 12
"""Guessed examples of one attack on one capture that the page shows."""
_COLUMNS = 24
"""Columns of a guessed row that are drawn."""
LEVELS = {
    "certified": "The example makes the observed update, up to the rounding of its numbers.",
    "consistent": "It makes the update but for what noise, rounding or pruning explains.",
    "in_span": "Its words lie in the span of the gradient; their order is not proven.",
    "guess": "Nothing but the objective of a search speaks for it.",
}
"""What is said of a guessed example."""
_WITHOUT_TRUTH = (
    "There are no private examples to compare with, so that nothing is scored: a certificate is a "
    "proof, words and classes are read, and everything else is weighed by the null, the cosine of "
    "the same gradient with another client's update. fedsim.truth_mod records the "
    "examples of a test federation."
)

_WITH_TRUTH = (
    "The private examples are known, and the report beside this page compares each guess with them."
)


@dataclass(frozen=True)
class _Picture:
    level: str
    label: str
    text: str
    image: bytes | None


@dataclass(frozen=True)
class _Shown:
    """One guess as the page shows it; ``more`` counts the examples that it leaves out."""

    heading: str
    line: str
    evidence: str
    pictures: tuple[_Picture, ...]
    more: int


def write_page(run: Run, task: Task) -> Path:
    """Write what attacks results of the captures, its owner's alone.

    It is the report itself, or lies beside it once the run is scored.
    """
    results, given = list(outcomes(run, task)), read_intake(run).given
    findings = Findings(given)
    provenance = read_provenance(run.root)
    cohort = run.plan.experiments[0].federation.secure_aggregation
    guesses = [_shown(outcome) for outcome in results if outcome.guess is not None]
    refused = _refused(results)
    body = (
        environment()
        .get_template("external.html.j2")
        .render(
            name=run.root.resolve().parent.name,
            cover=cover(provenance),
            answers=list(_answers(results, findings)),
            switches=list(_switches(results, findings, task)),
            who=_who(given, task, cohort),
            sure=_WITH_TRUTH if is_scored(run) else _WITHOUT_TRUTH,
            attacks=_attacks(results),
            findings=_findings(findings, cohort),
            words=[_words(findings, disclosure) for disclosure in given if disclosure.words],
            replies=_replies(given, cohort),
            statistics=_statistics(given),
            guesses=guesses,
            refused=refused,
            known=sorted({fact for disclosure in given for fact in disclosure.known}),
            withheld=[
                fact for fact in FACTS if not any(fact in disclosure.known for disclosure in given)
            ],
            levels=LEVELS,
            cost=cost(provenance),
            provenance=provenance_lines(provenance, full=False),
            script=Markup(SCRIPT),  # ours
            script_hash=b64encode(sha256(SCRIPT.encode()).digest()).decode(),
        )
    )
    make_private(run.root / "report")
    page = run.root / "report" / ("captures.html" if is_scored(run) else "index.html")
    write_bytes(page, body.encode(), private=True)
    return page


def _answers(results: Sequence[Outcome], findings: Findings) -> Iterator[tuple[str, str]]:
    """The shade and the sentence of each finding, the worst first."""
    by_attack: dict[str, list[Outcome]] = {}
    for outcome in results:
        by_attack.setdefault(outcome.record.attack, []).append(outcome)
    each = [_answer(name, those, findings) for name, those in by_attack.items()]
    yield from (answer for answer in each if answer[0] == "verbatim")
    yield from findings.sentences({o.record.key for o in results if o.certified})
    yield from (answer for answer in each if answer[0] != "verbatim")


def _answer(name: str, those: Sequence[Outcome], findings: Findings) -> tuple[str, str]:
    guessed = [outcome for outcome in those if outcome.guess is not None]
    who, known = capital(title(name)), findings.known()
    if not guessed:
        captures = counted(len(those), "capture")
        return "not-decided", sentence("guess.refused", attack=who, captures=captures, known=known)
    facts = {
        "attack": who,
        "examples": counted(
            sum(len(o.guess.examples.batch) for o in guessed if o.guess), "example"
        ),
        "captures": counted(len(guessed), "capture"),
    }
    if proven := sum(outcome.certified for outcome in guessed):
        return "verbatim", sentence("guess.proven", proven=proven, **facts)
    fits = [o.fit for o in guessed if o.fit and o.fit.other is not None and o.words is None]
    leading = sum(fit.own > (fit.other or 0.0) for fit in fits)
    ahead = sentence("guess.ahead", ahead=leading, of=len(fits)) if fits else ""
    return "not-decided", sentence("guess.open", ahead=ahead, known=known, **facts)


def _switches(results: Sequence[Outcome], findings: Findings, task: Task) -> Iterator[str]:
    """What to switch on: a defense where something leaks, a fact where attacks lack it."""
    given = findings.given
    if findings.worded:
        yield sentence("advice.words")
    simulated = not task.spec.owner_shape and task.spec.target == "class"
    if any(outcome.certified for outcome in results):
        yield sentence("advice.certified")
    if not simulated:
        yield sentence("advice.not_simulated")
    elif any(outcome.certified for outcome in results):
        yield sentence("advice.simulate")
    elif findings.worded:
        yield sentence("advice.ask")
    else:
        yield sentence("advice.proves_nothing")
    if any(disclosure.labels for disclosure in given):
        yield (
            "The last layer's bias tells how often each class occurs: secure aggregation hides "
            "whose classes they are, and noise on each client's update blurs them."
        )
    if any(disclosure.layers for disclosure in given):
        yield (
            "Batch normalisation sends mean and variance of every batch: keep the statistics on "
            "the clients, as FedBN does, or choose group normalisation."
        )
    missing = {fact for outcome in results for fact in outcome.record.missing}
    yield from findings.offers()
    lacking = [fact for fact in PASSED if fact in missing]
    if lacking:
        options = " ".join(f"--knows {fact}=VALUE" for fact in lacking)
        yield (
            f"Attacks that were refused run where the attacker knows {', '.join(lacking)}: "
            f"fedsim attack with {options}."
        )


def _who(given: Sequence[Disclosure], task: Task, cohort: int) -> str:
    known = sorted({fact.replace("_", " ") for disclosure in given for fact in disclosure.known})
    facts = f"It knows {', '.join(known)}." if known else "It was told nothing else."
    replies = f"means of {cohort} clients' replies" if cohort else "each reply"
    defended = any("defense" in disclosure.known for disclosure in given)
    unknown = "" if defended else " " + sentence("advice.defense_not_known")
    who = f"The server that aggregates, with the model ({task.spec.model}) and {replies}."
    return f"{who} {facts}{unknown}"


def _attacks(results: Sequence[Outcome]) -> Table:
    columns = ("attack", "captures", "guesses", "certified", "objective", "cosine", "null")
    lines = tuple(
        (
            title(effort.attack),
            *(effort.captures, effort.guesses, effort.certified),
            *(_mean(effort.objective), _mean(effort.cosine), _mean(effort.null)),
        )
        for effort in efforts(results)
    )
    return Table("attacks", "What each attack results of the captures", columns, lines)


def _mean(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3g}"


def _findings(findings: Findings, cohort: int) -> Table:
    columns = ("round", "client", "finding", "value", "how known", "in another's update")
    rows = tuple(
        (
            found.key.round,
            _whose(found.key, cohort),
            *(found.what, found.value, found.source, found.null or _NONE),
        )
        for found in findings.rows()
    )
    return Table("findings", "What each update shows by itself", columns, rows)


def _words(findings: Findings, disclosure: Disclosure) -> tuple[str, list[tuple[str, bool]]]:
    """A heading, and each word with whether it moved in no other update."""
    assert disclosure.words is not None
    others = {
        token
        for other in findings.given
        if other.words and other.key.client != disclosure.key.client
        for token in other.words.ids
    }
    key = disclosure.key
    return f"Round {key.round}, client {key.client}", sure(disclosure.words, others)


def _replies(given: Sequence[Disclosure], cohort: int) -> Table:
    title = "How each reply was read"
    lines = [(each.key.round, _whose(each.key, cohort), each.match) for each in given]
    if all(len(each.records) < 2 for each in given):  # the reply is all that came
        return Table("replies", title, ("round", "client", "reply"), tuple(lines))
    listed = [", ".join(each.records) for each in given]
    rows = tuple((*line, records) for line, records in zip(lines, listed, strict=True))
    return Table("replies", title, ("round", "client", "reply", "all records"), rows)


def _whose(key: CaptureKey, cohort: int) -> str:
    return f"mean of {cohort}" if cohort else str(key.client)


def _statistics(given: Sequence[Disclosure]) -> str:
    layers = max((disclosure.layers for disclosure in given), default=0)
    if not layers:
        return "No running statistics are sent."
    who = (
        "1 normalisation layer sends its" if layers == 1 else f"{layers} normalisation layers send"
    )
    whose = "" if layers == 1 else " their"
    return f"{who}{whose} running statistics: mean and variance of the batches of a client."


def _refused(results: Sequence[Outcome]) -> Table:
    counts: dict[tuple[str, str, str], int] = {}
    for outcome in results:
        if outcome.guess is None:
            record = outcome.record
            key = (title(record.attack), record.cause or record.reason, record.advice or _NONE)
            counts[key] = counts.get(key, 0) + 1
    rows = tuple((*key, count) for key, count in counts.items())
    return Table("refused", "What was refused", ("attack", "why", "what helps", "captures"), rows)


def _drawn(inputs: Tensor, task: Task) -> bytes:
    """A picture, or of a row of a table a line for each column, in its owner's range."""
    if len(task.spec.owner_shape) != 1 or not isinstance(task, ImageClassification):
        return png(inputs)
    row = task.form.given(inputs[None]).flatten().tolist()
    lines = [f"column {place}: {value:.4g}" for place, value in enumerate(row[:_COLUMNS], 1)]
    more = [f"and {len(row) - _COLUMNS} more: "] if len(row) > _COLUMNS else []
    return "\n".join([*lines, *more]).encode()


def _shown(outcome: Outcome) -> _Shown:
    guess = outcome.guess
    assert guess is not None
    batch = guess.examples.batch
    levels = guess.confidence or ("guess",) * len(batch)
    pictures = []
    for i in range(min(len(batch), _MOST)):
        label = guess.labels[i] if i < len(guess.labels) else -1
        unread = "" if guess.classes_read or levels[i] == "certified" else ", guessed"
        pictures.append(
            _Picture(
                level=str(levels[i]),
                label="" if label == -1 else f"class {label}{unread}",
                text=guess.texts[i] if guess.texts else "",
                image=None if guess.texts else _drawn(batch.inputs[i], guess.task),
            )
        )
    key = outcome.record.key
    return _Shown(
        heading=f"{title(outcome.record.attack)}, round {key.round}, client {key.client}",
        line=guess.line,
        evidence=outcome.evidence,
        pictures=tuple(pictures),
        more=len(batch) - len(pictures),
    )
