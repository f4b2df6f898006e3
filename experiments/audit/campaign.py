"""Attacks on all captures of another application, with their guesses on disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attacks import attack_classes
from experiments.audit.attacking import attack, check_budget
from experiments.audit.captured import Captured
from experiments.audit.evidence import Fit, fit_of
from experiments.audit.guess import NO_SCORE, Guess
from experiments.audit.results import GUESSES, keep, write_page
from experiments.audit.update import Update
from fedsim.build import suggest
from fedsim.capture import CaptureKey, CaptureStore
from fedsim.errors import CannotAttack, ConfigError
from fedsim.files import read_json
from fedsim.records import JobRecord, Status
from fedsim.tasks import save_task
from fedsim.visible import say

DEFAULTS = {"text": ("span", "embedding_rows"), "image": ("closed_form", "inverting")}
"""The attacks that are run where none is named."""


@dataclass
class Campaign:
    """What attacks made of a folder of captures.

    Attributes:
        folder: where the guesses lie, ``<attack>/<capture>.safetensors`` and ``.json``.
        guesses: by capture and attack.
        refusals: why there is no guess, by capture and attack.
        fits: how well the update bears out the guesses, by capture and attack.
    """

    folder: Path
    guesses: dict[tuple[str, str], Guess] = field(default_factory=dict)
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)
    fits: dict[tuple[str, str], Fit | None] = field(default_factory=dict)

    def said(self, key: str, name: str) -> str:
        """What became of one attack on one capture."""
        if refusal := self.refusals.get((key, name)):
            return f"{name}: {refusal}"
        fit = self.fits[key, name]
        return f"{self.guesses[key, name]}" + ("" if fit is None else f"\n  {fit}")

    def line(self) -> str:
        """The answer in one line."""
        sure = Counter({name: 0 for _, name in (*self.guesses, *self.refusals)})
        for (_, name), guess in self.guesses.items():
            sure[name] += sum(guess.certified)
        total = len({key for key, _ in (*self.guesses, *self.refusals)})
        said = ", ".join(f"{name} {count}" for name, count in sure.most_common())
        page = self.folder / "index.html"
        return f"certified examples in {total} captures: {said}; guesses: {page}. {NO_SCORE}"

    def json(self) -> str:
        """As JSON data."""
        rows = [
            {
                "capture": key,
                "attack": name,
                "texts": guess.texts,
                "confidence": guess.confidence,
                "objective": guess.objective,
                "cosines": self.fits[key, name],
                "note": guess.note,
            }
            for (key, name), guess in self.guesses.items()
        ]
        refused = [{"capture": k, "attack": a, "refused": r} for (k, a), r in self.refusals.items()]
        return json.dumps({"guesses": str(self.folder), "rows": [*rows, *refused]})


def attack_captures(found: Captured, names: Sequence[str], budget: float, quiet: bool) -> Campaign:
    """Run attacks on every capture, print each guess, and keep them beside the captures.

    Args:
        found: the captures.
        names: attacks; those of ``DEFAULTS`` if empty.
        budget: seconds for each attack on each capture.
        quiet: print nothing.

    Raises:
        ConfigError: an attack does not exist, or there is no time.
    """
    check_budget(budget)
    root = found.store.root
    chosen = names or DEFAULTS[found.task.modality]
    for name in chosen:
        if name not in attack_classes():
            raise ConfigError(f"--attacks {name!r}: not known. {suggest(name, attack_classes())}")
    save_task(found.task, root)
    unread = root / CaptureStore.LEFT_OUT
    if unread.exists() and not quiet:
        say(f"replies that could not be read: {sum(read_json(unread).values())}, see {unread}")
    done = Campaign(root / GUESSES)
    unfit: dict[CaptureKey, ConfigError] = {}
    for key in found.store.keys():
        try:
            victim = found.update(key)
        except ConfigError as error:  # of this client's tensors; the others' may fit
            unfit[key] = error
            continue
        if not quiet and not done.guesses and not done.refusals:
            say(victim)
        for name in chosen:
            _attack(done, found, victim, name, budget, quiet)
    if len(unfit) == len(found):
        raise next(iter(unfit.values()))
    for key, fault in unfit.items():
        for name in chosen:
            _refuse(done, key, name, f"refuses: {fault}", "skipped", quiet)
    write_page(root)
    return done


def _attack(
    done: Campaign, found: Captured, victim: Update, name: str, budget: float, quiet: bool
) -> None:
    key = victim.observation.key
    try:
        guess = attack(victim, name, budget=budget, quiet=quiet)
    except CannotAttack as error:
        _refuse(done, key, name, f"refuses: {error}", "skipped", quiet)
        return
    except Exception as error:  # a fault of one attack leaves the others their turn
        _refuse(done, key, name, f"{type(error).__name__}: {error}", "failed", quiet)
        return
    done.guesses[str(key), name] = guess
    other = found.other(key)
    readings = [victim] if victim.difference is None else [victim, victim.difference]
    fits = [fit_of(guess.examples.batch, reading, other) for reading in readings]
    fit = max((fit for fit in fits if fit is not None), default=None)
    done.fits[str(key), name] = fit
    keep(done.folder, _record(key, guess), guess, fit)
    _say(done, key, name, quiet)


def _refuse(
    done: Campaign, key: CaptureKey, name: str, reason: str, status: Status, quiet: bool
) -> None:
    done.refusals[str(key), name] = reason
    keep(done.folder, JobRecord(attack=name, key=key, status=status, reason=reason), None, None)
    _say(done, key, name, quiet)


def _say(done: Campaign, key: CaptureKey, name: str, quiet: bool) -> None:
    if not quiet:
        say(f"{key}: {done.said(str(key), name)}", flush=True)


def _record(key: CaptureKey, guess: Guess) -> JobRecord:
    return JobRecord(
        attack=guess.attack,
        key=key,
        status="done",
        reason=guess.note,
        seconds=guess.seconds,
        objective=guess.objective,
        confidence=guess.confidence or None,
    )
