"""What attacks made of another application's captures, beside what the updates say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.captures.evidence import Evidence, Fit
from experiments.captures.findings import Findings, WordFit
from experiments.captures.guess import Guess, caveats
from experiments.captures.run import read_intake
from experiments.console import Console
from experiments.plan.folder import Run
from experiments.wording.catalogue import sentence
from experiments.wording.prose import capital, listed
from fedsim.records import UNFINISHED, JobRecord
from fedsim.store.capture import CaptureKey, batch_from
from fedsim.store.files import Sealed, load_tensors, read_record, write_json
from fedsim.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd

_FITS = "fits.json"
_WEIGHED = "comparing guesses with other clients' updates"


class Fits(Sealed):
    """The cosines of the guesses, by attack, capture and hash; None for a guess that has none."""

    cosines: dict[str, Fit | None]


@dataclass(frozen=True)
class Outcome:
    """One attack on one capture; ``guess`` is None where there is none.

    Attributes:
        words: how the words of a guessed text lie in the updates; None where none can be read.
    """

    record: JobRecord
    guess: Guess | None
    fit: Fit | None
    words: WordFit | None = None

    @property
    def notes(self) -> list[str]:
        """What the attack notes on its guess, each by itself."""
        return self.guess.note.split("; ") if self.guess and self.guess.note else []

    @property
    def evidence(self) -> str:
        """What the update says of the guess, in sentences; empty if nothing.

        Words are weighed as a set, and not by the gradient of the text that a guess made of them.
        """
        sure = self.guess is not None and all(self.guess.certified)
        weighed = self.fit if sure or self.words is None else self.words
        if weighed is None:
            return ""
        said = f"{capital(str(weighed))}."
        if self.guess is None or sure:
            return said
        words = self.words is not None and self.words.borne_out
        if not words and self.fit is not None and self.fit.leads is not False:
            return said
        return said + " " + sentence("guess.words_borne_out" if words else "guess.not_borne_out")

    @property
    def certified(self) -> int:
        """Number of examples that the update proves."""
        return sum(level == "certified" for level in self.record.confidence or ())

    @property
    def refusal(self) -> str:
        """Why there is no guess; empty if there is one."""
        if self.guess is not None:
            return ""
        record = self.record
        if not record.cause:
            return record.reason
        late = f"{UNFINISHED}; " if record.status == "timeout" else ""
        return f"{late}{record.cause}. {record.advice}"

    def __str__(self) -> str:
        if self.guess is None:
            refuses = "refuses: " if self.record.status == "skipped" else ""
            return f"{self.record.attack}: {refuses}{self.refusal}"
        return f"{self.guess}\n  {self.evidence}".rstrip()


@dataclass(frozen=True)
class Results:
    """Everything that attacks left in a run, by attack and capture, and what was taken into it."""

    run: Run
    task: Task
    outcomes: tuple[Outcome, ...]
    findings: Findings
    fits: dict[str, Fit | None]

    @classmethod
    def of(cls, run: Run, task: Task) -> Results:
        """Read the records of all jobs.

        Raises:
            StoreError: a file is missing, cut or altered, or the run is of an earlier version.
        """
        (cell,) = run.cells
        intake, path = read_intake(run), cell.folder / _FITS
        fits = read_record(path, Fits).cosines if path.exists() else {}
        findings = Findings(intake.given)
        outcomes = list[Outcome]()
        for name in [table["name"] for table in cell.experiment.attacks]:
            for text, reason in intake.unfit.items():
                key = CaptureKey.parse(text)
                unfit = JobRecord(key=key, attack=name, status="skipped", reason=reason)
                outcomes.append(Outcome(unfit, None, None))
            for key in cell.captures.keys():
                path = cell.guess_folder(name) / f"{key}.json"
                if path.exists():
                    record = read_record(path, JobRecord)
                    guess = None if record.sha256 is None else _guess(run, record, task, findings)
                    words = None if guess is None else findings.fit(key, _tokens(guess))
                    outcomes.append(Outcome(record, guess, fits.get(_fit_name(record)), words))
        return cls(run, task, tuple(outcomes), findings, fits)

    def weighed(self, console: Console) -> Results:
        """With each guess's gradient compared with the update, and with another client's."""
        (cell,) = self.run.cells
        fits = dict(self.fits)
        fresh = [o for o in self.outcomes if o.guess and _fit_name(o.record) not in fits]
        evidence = Evidence(cell.captures, self.task)
        console.expect(_WEIGHED, len(fresh))
        for outcome in fresh:
            assert outcome.guess is not None
            key, name = outcome.record.key, _fit_name(outcome.record)
            fits[name] = evidence.fit(key, outcome.guess.examples.batch)
            console.advance(_WEIGHED, name.rpartition("/")[0])
        write_json(cell.folder / _FITS, Fits(cosines=fits))
        outcomes = tuple(replace(o, fit=fits.get(_fit_name(o.record))) for o in self.outcomes)
        return replace(self, outcomes=outcomes, fits=fits)

    def efforts(self) -> pd.DataFrame:
        """One row for each attack, in the order in which they were run.

        Columns: captures on which it was run, guesses, examples that an update proves, and means
        of its objective and of the cosines of ``evidence.Fit`` with their null, NaN without any.
        """
        import pandas as pd

        rows = [
            {
                "attack": outcome.record.attack,
                "captures": 1,
                "guesses": int(outcome.guess is not None),
                "certified": outcome.certified,
                "objective": outcome.record.objective,
                "cosine": outcome.fit.cosine if outcome.fit else None,
                "cosine (null)": outcome.fit.null if outcome.fit else None,
            }
            for outcome in self.outcomes
        ]
        counts = dict.fromkeys(("captures", "guesses", "certified"), "sum")
        means = dict.fromkeys(("objective", "cosine", "cosine (null)"), "mean")
        frame = pd.DataFrame(rows).astype(dict.fromkeys(means, float))
        return frame.groupby("attack", sort=False).agg({**counts, **means}).reset_index()


def apart(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[str]]:
    """The outcomes with what each alone notes; what several note, once, with their clients."""
    where: dict[str, list[int]] = {}
    for outcome in outcomes:
        for note in outcome.notes:
            where.setdefault(note, []).append(outcome.record.key.client)
    alone = [
        replace(o, guess=o.guess and replace(o.guess, note="; ".join(single)))
        for o in outcomes
        for single in [[note for note in o.notes if len(where[note]) == 1]]
    ]
    every, shared = {o.record.key.client for o in outcomes}, dict[str, list[str]]()
    for note, clients in where.items():
        named = listed([str(client) for client in sorted({*clients})])
        whose = "all clients" if every == {*clients} else f"clients {named}"
        if len(clients) > 1:
            shared.setdefault(whose, []).append(note)
    return alone, [f"of {who}: {'; '.join(n)}" for who, n in shared.items()]


def _guess(run: Run, record: JobRecord, task: Task, findings: Findings) -> Guess:
    path = run.cells[0].guess_folder(record.attack) / f"{record.key}.safetensors"
    confidence = record.confidence or ()
    return Guess(
        attack=record.attack,
        options={},
        examples=task.examples(batch_from(load_tensors(path, record.sha256))),
        confidence=confidence,
        objective=record.objective,
        seconds=record.seconds,
        note=caveats(task, record.reason, confidence),
        task=task,
        classes_read=findings.classes_read(record.key),
    )


def _tokens(guess: Guess) -> set[int]:
    return {token for line in guess.examples.tokens for token in line}


def _fit_name(record: JobRecord) -> str:
    return f"{record.attack}/{record.key}/{record.sha256}"
