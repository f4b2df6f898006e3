"""The attack stage on another application's captures."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from attacks import attack_classes
from attacks.base import Job
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.outcomes import AttackOutcome, write_outcome
from experiments.external.attacking import Progress, best_reading, check_budget
from experiments.external.captured import Captured
from experiments.external.disclosures import disclosed, write_disclosures
from experiments.external.evidence import fit_of
from experiments.external.guess import NO_SCORE, Guess, caveats
from experiments.external.page import write_page
from experiments.external.run import ExternalRun, Outcome
from experiments.external.update import Update
from experiments.plan.folder import note_provenance
from fedsim.build import suggest
from fedsim.capture import CaptureKey, CaptureStore
from fedsim.errors import CannotAttack, ConfigError, Terminated
from fedsim.files import read_json, write_json
from fedsim.tasks import save_task
from fedsim.visible import say

DEFAULTS = {"text": ("span", "embedding_rows"), "image": ("closed_form", "inverting")}
"""The attacks that are run where none is named."""


@dataclass
class Campaign:
    """What attacks made of a folder of captures, by capture and attack."""

    run: ExternalRun
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @property
    def guesses(self) -> dict[tuple[str, str], Guess]:
        """Those that there are."""
        return {k: one.guess for k, one in self.outcomes.items() if one.guess is not None}

    @property
    def refusals(self) -> dict[tuple[str, str], str]:
        """Why there is no guess."""
        return {k: one.refusal for k, one in self.outcomes.items() if one.guess is None}

    def line(self) -> str:
        """The answer in one line."""
        sure = Counter({name: 0 for _, name in self.outcomes})
        for (_, name), one in self.outcomes.items():
            sure[name] += one.certified
        total = len({key for key, _ in self.outcomes})
        said = ", ".join(f"{name} {count}" for name, count in sure.most_common())
        page = self.run.root / "report" / "index.html"
        return f"certified examples in {total} captures: {said}; report: {page}. {NO_SCORE}"

    def json(self) -> str:
        """As JSON data."""
        rows: list[dict[str, object]] = [
            {
                "capture": key,
                "attack": name,
                "texts": one.guess.texts,
                "confidence": one.guess.confidence,
                "objective": one.guess.objective,
                "cosines": one.fit,
                "note": one.guess.note,
            }
            if one.guess
            else {"capture": key, "attack": name, "refused": one.refusal}
            for (key, name), one in self.outcomes.items()
        ]
        return json.dumps({"run": str(self.run.root), "rows": rows})


def attack_captures(found: Captured, names: Sequence[str], budget: float, quiet: bool) -> Campaign:
    """Run attacks on every capture, print each guess, and write the page.

    What an earlier command finished with the same model, facts and budget is not done again.

    Args:
        found: the captures.
        names: attacks; those of ``DEFAULTS`` if empty.
        budget: seconds for each attack on each capture.
        quiet: print nothing.

    Raises:
        ConfigError: an attack does not exist, or there is no time; or no capture fits the model.
    """
    check_budget(budget)
    chosen = names or DEFAULTS[found.task.modality]
    for name in chosen:
        if name not in attack_classes():
            raise ConfigError(f"--attacks {name!r}: not known. {suggest(name, attack_classes())}")
    started, root, unfit = time.monotonic(), found.store.root, {}
    save_task(found.task, root)
    unread = root / CaptureStore.LEFT_OUT
    if unread.exists() and not quiet:
        say(f"replies that could not be read: {sum(read_json(unread).values())}, see {unread}")
    done, given = Campaign(ExternalRun.create(found, chosen, budget)), []
    with Ledger(done.run.root / "jobs.sqlite") as ledger:
        for key in found.store.keys():
            try:
                victim = found.update(key)
            except ConfigError as error:  # of this client's tensors; the others' may fit
                unfit[key] = error
                continue
            if not quiet and not done.outcomes:
                say(victim)
            given.append(disclosed(victim))
            for name in chosen:
                _attack(done, ledger, found, key, name, victim, quiet)
        if len(unfit) == len(found):
            raise next(iter(unfit.values()))
        for key, fault in unfit.items():
            for name in chosen:
                _attack(done, ledger, found, key, name, fault, quiet)
    write_disclosures(done.run.folder, given)
    note_provenance(done.run.plain, "attack", time.monotonic() - started)
    write_page(done.run, found.task)
    return done


def _attack(
    done: Campaign,
    ledger: Ledger,
    found: Captured,
    key: CaptureKey,
    name: str,
    victim: Update | ConfigError,
    quiet: bool,
) -> None:
    job = done.run.job(name, key)
    if ledger.claim(job) is None:
        job, begun = ledger.start(job), time.monotonic()
        made = _reconstruct(name, victim, done.run.budget, quiet)
        record = write_outcome(job, key, made, time.monotonic() - begun, 0, "cpu")
        ledger.finish(job, [record])
        outcome = done.run.outcome(job, found.task)
        if outcome.guess is not None and isinstance(victim, Update):
            other = found.other(key)
            readings = [victim] if victim.difference is None else [victim, victim.difference]
            fits = [fit_of(outcome.guess.examples.batch, one, other) for one in readings]
            fit = max((fit for fit in fits if fit is not None), default=None)
            write_json(done.run.fit_path(job), {"cosines": fit})
    done.outcomes[str(key), name] = done.run.outcome(job, found.task)
    if not quiet:
        say(f"{key}: {done.outcomes[str(key), name]}", flush=True)


def _reconstruct(
    name: str, victim: Update | ConfigError, budget: float, quiet: bool
) -> AttackOutcome:
    if isinstance(victim, ConfigError):
        return CannotAttack(str(victim).rstrip("."), "The others may fit.")
    chosen, job = attack_classes()[name](), Job()
    if not quiet:
        job.report = Progress(name)
    try:
        made, assumed = best_reading(victim, name, chosen, job, budget=budget)
    except (KeyboardInterrupt, Terminated):
        raise
    except Exception as error:  # a fault of one attack leaves the others their turn
        return error
    return replace(made, note=caveats(victim, made, assumed))
