"""The readings of another application's reply, of which the one that fits it best is kept.

An application states neither how many examples a client trained on nor, of a few replies, their
sign. Attacks that need these are run with each possible value.
"""

import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import get_args

from torch import nn

from attacks.base import Attack, Job, Reconstruction
from attacks.foreign.assumed_steps import STEPS, taken, with_steps
from attacks.observed.readings import coarseness
from attacks.observed.smoothed_labels import smoothing_note
from attacks.observed.token_types import types_note
from attacks.proofs.two_classes import UNSETTLED, has_two_classes, negated, sign_behind
from attacks.proofs.verdict import coarse_note
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.knowledge import PASSED, Fact, Origin
from fedsim.records import Certificate
from fedsim.seeds import derive, generator, seeded
from fedsim.store.capture import CaptureKey, CaptureStore, Observation
from fedsim.tasks.base import Task

MIRRORED = "mirrored"
"""Folder of the second reading of replies whose sign is open, below that of the captures."""
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of examples that are tried where none is known and none claimed, until one is proven."""
_SHARE = 0.5
"""Of the time left, what one of several numbers of examples gets."""
_TRIALS = 2
"""Numbers of examples by which it is judged whether an attack refuses."""
_LEVELS: tuple[Certificate, ...] = get_args(Certificate)[::-1]  # the strongest last
_GUESSED: tuple[Certificate, ...] = ("guess",)
_AS_RISING = "the reply was read as the gradient times -1"
_AS_DIFFERENCE = "the reply was read as a difference"
_NOT_KNOWN = "tried, as the number is not known"
_ONE_STEP = "its local training counts as one step; pass local_steps if there were several"
_UNDIFFERENTIABLE = re.compile(
    r"autograd\.Function with functorch|once_differentiable|derivative for .* not implemented"
)
"""What torch says of a layer whose derivative cannot be differentiated again."""
_LONGEST = 160
"""Characters of torch's words that a refusal repeats."""
_KNOWN = ("torch.", "attacks.", "fedsim.")
"""Packages whose modules fail by a fault of an attack."""


@dataclass(frozen=True)
class OpenReply:
    """A reply whose facts are open.

    Attributes:
        seen: the reply.
        claimed: how many examples the client says it used; None if it says nothing.
        mirrored: the reply with the other sign; None where the sign is not open.
        doubt: why the model may not explain it, as in ``CaptureRecord``.
    """

    seen: Observation
    claimed: int | None = None
    mirrored: Observation | None = None
    doubt: str = ""


def load_reply(store: CaptureStore, key: CaptureKey) -> OpenReply:
    """The reply of ``key``, each file checked against its hash."""
    record = store.record(key)
    other = CaptureStore(store.root / MIRRORED).load(key) if record.sign_open else None
    return OpenReply(store.load(key), record.claimed_examples, other, record.doubt)


@dataclass(frozen=True)
class _Tried:
    """A reconstruction, and the reply with the facts that were taken for it."""

    guess: Reconstruction
    seen: Observation
    assumed: str


def best_reading(
    reply: OpenReply, task: Task, label: str, chosen: Attack, job: Job, seed: int = 0
) -> Reconstruction:
    """The reconstruction that fits the update best; its note says what was assumed for it.

    Raises:
        CannotAttack: no reading gives what the attack needs.
    """
    check_suits(chosen, reply.seen, task)
    end = job.deadline
    best: _Tried | None = None
    late = exhausted = False  # in any reading, as more might have made it the best
    refused = CannotAttack("it has no reading of the reply", "Choose another attack.")
    sign: int | None = 1
    needed = "num_examples" in chosen.requires
    counted = reply.seen.knowledge.num_examples is not None
    claim = None if reply.seen.knowledge.num_examples else reply.claimed
    for number, (seen, turned) in enumerate(_readings(chosen, reply)):
        tried = seen.knowledge.num_examples
        if needed and claim and tried != claim and (best is not None or _whatever_number(refused)):
            break  # other numbers are for attacks that refuse what is claimed
        last = None if best is None else best.guess
        doubtful = sign == -1 or _half_explained(last) or _may_rise(task, last)
        if turned and reply.mirrored is None and not doubtful:
            continue
        # An attack that can do without the number proves a guess, and leaves time for others.
        share = 1.0 if needed else _SHARE
        job.deadline, job.late = end - (1 - share) * (end - time.monotonic()), False
        try:
            guess, seen = _run(chosen, label, seen, task, job, seed)
            _check_count(guess, seen, reply.claimed, task, counted=counted)
        except CannotAttack as error:
            late, exhausted = late or job.late, exhausted or error.ended == "exhausted"
            refused = error if number == 0 else refused
            continue
        late, exhausted = late or job.late, exhausted or guess.exhausted
        if sign != -1 or not turned or reply.mirrored is not None:
            sign = _sign(reply, seen, task, guess)
        if sign in (0, 1 if turned else -1):
            levels = _GUESSED * len(guess.guess)
            guess = replace(guess, confidence=levels, note=UNSETTLED)
        if best is None or _fit(guess) > _fit(best.guess):
            best = _Tried(guess, seen, _assumed(seen, reply, turned=turned))
        settled = guess.confidence is None or guess.proven or sign == 0
        if settled or time.monotonic() >= end:
            break
    job.late = late
    if best is None:
        refused.ended = "exhausted" if exhausted else ""
        refused.reason = "; ".join(filter(None, (refused.reason, reply.doubt)))
        raise refused
    guess = best.guess
    # What was not read, or is another model's, may tell what this reading does not.
    blank, defense = guess.blank and reply.doubt, reply.seen.knowledge.defense
    overclaims = build_chain(defense, "defense").overclaims if defense else ""
    causes = ["the prior's mean is guessed" if blank else guess.note.rstrip("."), best.assumed]
    if guess.proven:
        job.late = guess.expired
        return replace(guess, note=_joined([*causes, overclaims]))
    # A search on images takes local training for one step, where nothing tells what it was.
    if task.modality == "image" and not best.seen.knowledge.has("local_steps"):
        causes += [_ONE_STEP] if reply.seen.kind != "gradient" else []
    if guess.confidence is not None:
        optimizer = reply.seen.knowledge.optimizer
        causes += [coarse_note(reply.seen), coarseness(reply.seen.update(), optimizer)]
        causes += [types_note(reply.seen)] if task.modality == "text" else []
        causes.append(smoothing_note(reply.seen, task, guess.guess.to("cpu")))
    return replace(guess, exhausted=exhausted, note=_joined([*causes, overclaims, reply.doubt]))


def _joined(causes: Sequence[str]) -> str:
    """Clauses, each once: an attack may have said what is asked of every guess."""
    clauses = (clause for cause in causes for clause in cause.split("; "))
    return "; ".join(filter(None, dict.fromkeys(clauses)))


def _assumed(seen: Observation, reply: OpenReply, *, turned: bool) -> str:
    """What was taken for a reading that nobody stated."""
    known, claims = [taken(seen.knowledge)], {"claimed": "the client's claim", "tried": _NOT_KNOWN}
    if origin := seen.knowledge.origins.get("num_examples"):
        count = seen.knowledge.num_examples or 0
        known.append(f"{count} example{'s' * (count > 1)} ({claims[origin.source]})")
    if turned:
        known.append(_AS_DIFFERENCE if reply.mirrored else _AS_RISING)
    return _joined(known)


def first_refusal(chosen: Attack, label: str, reply: OpenReply, task: Task, job: Job) -> str:
    """Why an attack refuses an update whatever the number of examples; empty if it runs."""
    reason = ""
    for seen in islice(_counted(chosen, reply.seen, reply.claimed), _TRIALS):
        try:
            _run(chosen, label, seen, task, job, 0)
        except CannotAttack as error:
            reason = reason or str(error)
        else:
            return ""
    return reason


def check_suits(chosen: Attack, seen: Observation, task: Task) -> None:
    """Raise ``CannotAttack`` if the data or the known facts rule the attack out.

    The number of examples may be unknown, as it is tried.
    """
    if task.modality not in chosen.modalities:
        raise CannotAttack(
            f"it reconstructs {' and '.join(sorted(chosen.modalities))}, and this model takes "
            f"{task.modality}",
            "fedsim.suited(victim) lists the attacks that suit.",
        )
    if chosen.infers != "rows":
        raise CannotAttack(
            f"it infers {chosen.infers}, and guesses no example", "Run it in an experiment."
        )
    missing = seen.knowledge.missing(chosen.requires - {"num_examples"})
    if "auxiliary" in missing:
        refusal = CannotAttack(
            "it learns from public rows, which an update alone does not bring",
            "Run it in an experiment with [auxiliary].",
            missing,
        )
    elif missing:
        refusal = CannotAttack(f"it needs {', '.join(missing)}", missing=missing)
    else:
        return
    refusal.granting = _passing(missing)
    raise refusal


def _readings(chosen: Attack, reply: OpenReply) -> Iterator[tuple[Observation, bool]]:
    """The reply with each number of examples to try and either sign.

    With whether the sign is not that of what was received.
    """
    mirrored = negated(reply.seen) if reply.mirrored is None else reply.mirrored
    signs = (_counted(chosen, each, reply.claimed) for each in (reply.seen, mirrored))
    for seen, other in zip(*signs, strict=True):
        yield seen, False
        if reply.seen.kind == "gradient":
            yield other, True


def _half_explained(guess: Reconstruction | None) -> bool:
    """Whether the inputs of a guess are in the span of a message that they do not explain."""
    return guess is not None and not guess.certified and "in_span" in (guess.confidence or ())


def _may_rise(task: Task, guess: Reconstruction | None) -> bool:
    """Whether another sign of a gradient has other targets, which nothing but a guess would show.

    Biases of independent classes rise or fall with each class; of a softmax they sum to 0, which
    tells the sign before.
    """
    return task.spec.target == "classes" and (guess is None or not guess.certified)


def _sign(reply: OpenReply, seen: Observation, task: Task, guess: Reconstruction) -> int | None:
    """The sign of a gradient that the guess tells, see ``sign_behind``."""
    open_sign = reply.seen.kind == "gradient" and guess.confidence is not None
    if not open_sign or (guess.certified and not has_two_classes(task)):
        return None
    count = seen.knowledge.num_examples
    known = reply.seen.knowledge.model_copy(update={"num_examples": count})
    sign = sign_behind(replace(reply.seen, knowledge=known), task, guess.guess)
    # Examples of unequal weights: the other classes with other weights do as well.
    weighted = sign is None and guess.certified and bool((guess.guess.labels >= 0).all())
    return 0 if weighted else sign


def _counted(chosen: Attack, seen: Observation, claim: int | None) -> Iterator[Observation]:
    """The reply with each number of examples to try, unless it is stated."""
    known = seen.knowledge
    if known.num_examples is not None:
        yield seen
        return
    # Without a number first: copies of a text have its gradient, and a claim would bring them.
    if "num_examples" not in chosen.requires:
        yield seen
    # Every client of a cohort has an example. A claim may be of all that a client owns.
    counts = [claim] if claim else []
    counts += [count for count in _COUNTS if count >= known.cohort]
    for count in dict.fromkeys(counts):
        origin = Origin(source="claimed" if count == claim else "tried")
        yield replace(seen, knowledge=known.adding({"num_examples": count}, origin))


def _run(
    chosen: Attack, label: str, seen: Observation, task: Task, job: Job, seed: int
) -> tuple[Reconstruction, Observation]:
    """The attack on one reading, if need be with the length of steps that the update tells."""
    try:
        return _attempt(chosen, label, seen, task, job, seed), seen
    except CannotAttack as error:
        facts = set(error.missing)
        rng = generator(seed, "steps", seen.key.round, seen.key.client)
        stepped = with_steps(seen, task, rng) if facts and facts <= STEPS else None
        if stepped is None:
            raise
    return _attempt(chosen, label, stepped, task, job, seed), stepped


def _attempt(
    chosen: Attack, label: str, seen: Observation, task: Task, job: Job, seed: int
) -> Reconstruction:
    """The attack with the facts that there are; seeded as a job of an experiment is."""
    with seeded(derive(seed, "attack", label, str(seen.key))):
        rng = generator(seed, "attack", seen.key.round, seen.key.client, label)
        if type(chosen).prepare is not Attack.prepare:
            job.prepared = chosen.prepare(seen, task, job, derive(seed, "prepare", label))
        try:
            (guess,) = chosen.reconstruct([seen], task, [rng], job)
        except CannotAttack as error:
            error.granting = _passing(error.missing)
            raise
        except Exception as error:  # perhaps of the network, which is foreign code
            said = " ".join(str(error).split())[:_LONGEST].rstrip(".")
            if isinstance(error, RuntimeError) and _UNDIFFERENTIABLE.search(str(error)):
                raise CannotAttack(
                    f"a layer has no second derivative ({said})",
                    "Give its autograd.Function a setup_context, a backward of differentiable "
                    "operations and generate_vmap_rule = True, or attack the same network without "
                    "it.",
                ) from error
            if (module := _failing_module(error)) is None:
                raise
            raise CannotAttack(
                f"{type(module).__name__}.forward fails on what it tries, such as weights in "
                f"float64 or masks of its own ({type(error).__name__}: {said})",
                "Choose another attack: fedsim.suited(victim) lists those that suit.",
            ) from error
    return guess


def _failing_module(error: Exception) -> nn.Module | None:
    """The innermost module of foreign code whose forward raised; None if it was none."""
    failing = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        foreign = isinstance(module, nn.Module) and not type(module).__module__.startswith(_KNOWN)
        if foreign and frame.f_code.co_name == "forward":
            failing = module
    return failing


def _whatever_number(refusal: CannotAttack) -> bool:
    """Whether an attack lacks what no other number of examples brings.

    It may bring the labels, which the last layer tells of one example without a bias.
    """
    return bool(set(refusal.missing) - {"labels"})


def _passing(missing: Sequence[Fact]) -> str:
    """How to say the facts that an attack lacks; empty where none can be passed."""
    facts = [f"{fact}=value" for fact in missing if fact in PASSED]
    options = " ".join(f"--knows {fact}" for fact in facts)
    how = f"If the attacker knows it, pass it (Update.of(..., {', '.join(facts)}), or {options})."
    return how if facts else ""


def _check_count(
    guess: Reconstruction, seen: Observation, claim: int | None, task: Task, *, counted: bool
) -> None:
    """Refuse more examples than the attacker knows of, or than are claimed if it proves none.

    A row of a language model may hold several texts.
    """
    count, most, proven = len(guess.guess), seen.knowledge.num_examples, guess.proven
    if not counted and not proven and claim is not None:
        most = claim  # a number that is only tried contradicts no claim without a proof
    packed = proven and task.spec.kind == "language-modelling"
    if most is not None and count > most and not packed:
        raise CannotAttack(
            f"it explains the update by {count} examples, and there are {most}",
            "Something else is in the update, or the model, its loss or the kind of the reply "
            "differs from the client's.",
        )


def _fit(guess: Reconstruction) -> tuple[float, float, float]:
    """How much the update speaks for a guess: share of certified examples, levels, objective."""
    levels = [_LEVELS.index(level) for level in guess.confidence or ()]
    certified = sum(level == len(_LEVELS) - 1 for level in levels) / max(1, len(levels))
    mean = sum(levels) / len(levels) if levels else 0.0
    return certified, mean, -float("inf") if guess.objective is None else -guess.objective
