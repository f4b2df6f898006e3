"""The attack stage on another application's captures."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from attacks import attack_classes
from attacks.scheduling.ledger import Ledger
from experiments.captures.attacking import check_budget
from experiments.captures.captured import Captured
from experiments.captures.guess import NO_SCORE
from experiments.captures.page import write_page
from experiments.captures.results import Outcome, Results, apart
from experiments.captures.run import make_run
from experiments.console import Console
from experiments.pipeline import attack
from experiments.stages.attack import attackers
from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.records import PRIOR_ONLY
from fedsim.store.capture import CaptureStore
from fedsim.store.files import read_json
from fedsim.tasks import held, save_task
from fedsim.visible import say

DEFAULTS = {"text": ("span", "embedding_rows"), "image": ("closed_form", "inverting")}
"""The attacks that are run where none is named, beside a blind guess for scores to compare with."""


@dataclass(frozen=True)
class Campaign:
    """What the named attacks made of a folder of captures.

    Attributes:
        results: of these and of all attacks before.
        names: of the attacks.
        unrepeated: that jobs of an earlier commit were not run again.
    """

    results: Results
    names: tuple[str, ...]
    unrepeated: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        """Those of the named attacks, by attack and capture."""
        return [o for o in self.results.outcomes if o.record.attack in self.names]

    def line(self) -> str:
        """The answer in one line."""
        sure = Counter(dict.fromkeys(self.names, 0))
        for outcome in self.outcomes:
            sure[outcome.record.attack] += outcome.certified
        total = len({outcome.record.key for outcome in self.outcomes})
        said = ", ".join(f"{name} {count}" for name, count in sure.most_common())
        page = self.results.run.root / "report" / "index.html"
        unrepeated = f" {self.unrepeated}." if self.unrepeated else ""
        answer = f"certified examples in {total} captures: {said}; report: {page}. {NO_SCORE}"
        return answer + unrepeated

    def json(self) -> str:
        """As JSON data."""
        rows = [_row(outcome) for outcome in self.outcomes]
        return json.dumps({"run": str(self.results.run.root), "rows": rows})


def _row(outcome: Outcome) -> dict[str, object]:
    job = {"capture": str(outcome.record.key), "attack": outcome.record.attack}
    if outcome.guess is None:
        return {**job, "refused": outcome.refusal}
    return {
        **job,
        "texts": outcome.guess.texts,
        "confidence": outcome.guess.confidence,
        "objective": outcome.guess.objective,
        "cosines": outcome.fit,
        "words": outcome.words,
        "note": outcome.guess.note,
    }


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
    chosen = tuple(names or DEFAULTS[captures.task.modality])
    for name in chosen:
        if name not in attack_classes():
            raise ConfigError(f"--attacks {name!r}: not known. {suggest(name, attack_classes())}")
    root = captures.store.root
    save_task(captures.task, root)
    unread = root / CaptureStore.LEFT_OUT
    if unread.exists() and not quiet:
        say(f"replies that could not be read: {sum(read_json(unread).values())}, see {unread}")
    run = make_run(captures, chosen if names else (*chosen, PRIOR_ONLY), budget)
    if not quiet:
        say(next(iter(captures)))
    folder = run.cells[0].captures.root.resolve()
    with ExitStack() as stack:
        if not captures.named:
            stack.enter_context(held(captures.task, folder))
        ledger = stack.enter_context(Ledger(run.root / "jobs.sqlite"))
        console = stack.enter_context(Console(quiet))
        team = stack.enter_context(attackers(run, ledger, console))
        attack(run, team)
        results = Results.of(run, captures.task).weighed(console)
    write_page(results)
    done = Campaign(results, chosen, team.unrepeated(run))
    if not quiet:
        say_outcomes(done.outcomes)
        proven = {outcome.record.key for outcome in results.outcomes if outcome.certified}
        for _, sentence in results.findings.sentences(proven):
            say(sentence)
    return done


def say_outcomes(done: Iterable[Outcome]) -> None:
    """Print each guess; a note that several share is printed once, with the clients."""
    outcomes, shared = apart(sorted(done, key=lambda o: (str(o.record.key), o.record.attack)))
    for outcome in outcomes:
        say(f"{outcome.record.key}: {outcome}")
    for note in shared:
        say(note)
