"""The attack stage on another application's captures."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from attacks import attack_classes
from attacks.scheduling.ledger import Ledger
from experiments.captures.attacking import check_budget
from experiments.captures.captured import Captured
from experiments.captures.evidence import fit_of
from experiments.captures.findings import Findings
from experiments.captures.guess import NO_SCORE, Guess
from experiments.captures.page import write_page
from experiments.captures.run import (
    Outcome,
    fit_name,
    make_run,
    outcomes,
    read_fits,
    read_intake,
    write_fits,
)
from experiments.console import Console
from experiments.plan.folder import Run, note_provenance
from experiments.stages.attack import attackers
from experiments.stages.integrity import check_captures
from experiments.wording.prose import listed
from fedsim.build import suggest
from fedsim.capture import CaptureKey, CaptureStore
from fedsim.errors import ConfigError
from fedsim.files import read_json
from fedsim.tasks import held, save_task
from fedsim.visible import say

DEFAULTS = {"text": ("span", "embedding_rows"), "image": ("closed_form", "inverting")}
"""The attacks that are run where none is named."""
_WEIGHED = "comparing guesses with other clients' updates"


@dataclass(frozen=True)
class Campaign:
    """What the named attacks made of a folder of captures, by capture and attack."""

    run: Run
    outcomes: dict[tuple[str, str], Outcome]
    unrepeated: str = ""
    """That jobs of an earlier commit were not run again."""

    @property
    def guesses(self) -> dict[tuple[str, str], Guess]:
        """Those that there are."""
        return {
            k: outcome.guess for k, outcome in self.outcomes.items() if outcome.guess is not None
        }

    @property
    def refusals(self) -> dict[tuple[str, str], str]:
        """Why there is no guess."""
        return {k: outcome.refusal for k, outcome in self.outcomes.items() if outcome.guess is None}

    def line(self) -> str:
        """The answer in one line."""
        sure = Counter({name: 0 for _, name in self.outcomes})
        for (_, name), outcome in self.outcomes.items():
            sure[name] += outcome.certified
        total = len({key for key, _ in self.outcomes})
        said = ", ".join(f"{name} {count}" for name, count in sure.most_common())
        page = self.run.root / "report" / "index.html"
        unrepeated = f" {self.unrepeated}." if self.unrepeated else ""
        answer = f"certified examples in {total} captures: {said}; report: {page}. {NO_SCORE}"
        return answer + unrepeated

    def json(self) -> str:
        """As JSON data."""
        rows: list[dict[str, object]] = [
            {
                "capture": key,
                "attack": name,
                "texts": outcome.guess.texts,
                "confidence": outcome.guess.confidence,
                "objective": outcome.guess.objective,
                "cosines": outcome.fit,
                "words": outcome.words,
                "note": outcome.guess.note,
            }
            if outcome.guess
            else {"capture": key, "attack": name, "refused": outcome.refusal}
            for (key, name), outcome in self.outcomes.items()
        ]
        return json.dumps({"run": str(self.run.root), "rows": rows})


def attack_captures(
    captures: Captured, names: Sequence[str], budget: float, quiet: bool
) -> Campaign:
    """Run attacks on every capture, print each guess, and write the page.

    What an earlier command finished with the same model, facts and budget is not done again.

    Args:
        captures: those that are attacked.
        names: attacks; those of ``DEFAULTS`` if empty.
        budget: seconds for each attack on each capture.
        quiet: print nothing.

    Raises:
        ConfigError: an attack does not exist, or there is no time; or no capture fits the model.
    """
    check_budget(budget)
    chosen = names or DEFAULTS[captures.task.modality]
    for name in chosen:
        if name not in attack_classes():
            raise ConfigError(f"--attacks {name!r}: not known. {suggest(name, attack_classes())}")
    root, started = captures.store.root, time.monotonic()
    save_task(captures.task, root)
    unread = root / CaptureStore.LEFT_OUT
    if unread.exists() and not quiet:
        say(f"replies that could not be read: {sum(read_json(unread).values())}, see {unread}")
    run = make_run(captures, chosen, budget)
    if not quiet:
        say(next(iter(captures)))
    (cell,) = run.cells
    with ExitStack() as stack:
        if not captures.named:
            stack.enter_context(held(captures.task, cell.captures.root.resolve()))
        ledger = stack.enter_context(Ledger(run.root / "jobs.sqlite"))
        console = stack.enter_context(Console(quiet))
        team = stack.enter_context(attackers(run, ledger, console))
        check_captures(cell)
        team.announce(run.cells)
        team.submit(cell)
    with Console(quiet) as console:
        _weigh(run, captures, console)
    unrepeated = team.unrepeated(run)
    note_provenance(run, "attack", time.monotonic() - started, worked=team.ended > 0)
    every = list(outcomes(run, captures.task))
    write_page(run, captures.task)
    done = {(str(o.record.key), o.record.attack): o for o in every if o.record.attack in chosen}
    if not quiet:
        say_outcomes(done)
        proven = {outcome.record.key for outcome in every if outcome.certified}
        for _, sentence in Findings(read_intake(run).given).sentences(proven):
            say(sentence)
    return Campaign(run, done, unrepeated)


def say_outcomes(done: Mapping[tuple[str, str], Outcome]) -> None:
    """Print each guess; a note that several share is printed once, with the clients."""
    where: dict[str, list[CaptureKey]] = {}
    for (_, _), outcome in sorted(done.items()):
        for note in _notes(outcome):
            where.setdefault(note, []).append(outcome.record.key)
    shared = {note for note, keys in where.items() if len(keys) > 1}
    for (key, _), outcome in sorted(done.items()):
        if outcome.guess is not None:
            alone = [note for note in _notes(outcome) if note not in shared]
            outcome = replace(outcome, guess=replace(outcome.guess, note="; ".join(alone)))
        say(f"{key}: {outcome}")
    for note in shared:
        clients = sorted({key.client for key in where[note]})
        whose = f"client{'s' * (len(clients) > 1)} {listed([str(client) for client in clients])}"
        say(f"of {whose}: {note}")


def _notes(outcome: Outcome) -> list[str]:
    note = outcome.guess.note if outcome.guess is not None else ""
    return [part for part in note.split("; ") if part]


def _weigh(run: Run, captures: Captured, console: Console) -> None:
    """Compare each new guess's gradient with the update, and with another client's."""
    fits = dict(read_fits(run))
    fresh = [
        outcome
        for outcome in outcomes(run, captures.task)
        if outcome.guess is not None and fit_name(outcome.record) not in fits
    ]
    console.expect(_WEIGHED, len(fresh))
    for outcome in fresh:
        assert outcome.guess is not None
        victim, other = (f(outcome.record.key) for f in (captures.update, captures.other))
        assert victim is not None  # there is a guess at it
        readings = [victim] if victim.difference is None else [victim, victim.difference]
        each = [fit_of(outcome.guess.examples.batch, reading, other) for reading in readings]
        name = fit_name(outcome.record)
        fits[name] = max((fit for fit in each if fit is not None), default=None)
        console.advance(_WEIGHED, name.rpartition("/")[0])
    write_fits(run, fits)
