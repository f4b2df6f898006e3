"""Guesses of the attacks, put in the order of the private examples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.api.victims import Victims
from fedsim.metrics.base import Examples
from fedsim.metrics.match import Assignment, align, match, nothing
from fedsim.records import CUT, JobRecord, Modality
from fedsim.store.capture import CaptureKey, batch_from, read_keyed
from fedsim.store.files import load_tensors

NOT_YET = "not attacked yet"
"""Reason of a job that the attack stage did not come to."""


@dataclass(frozen=True)
class StoredGuess:
    """What one job left.

    Attributes:
        examples: None where the job left only its record.
    """

    record: JobRecord
    examples: Examples | None

    @property
    def cut(self) -> bool:
        """Whether the clock or a budget ended the job."""
        return self.record.status in CUT


@dataclass(frozen=True)
class Matched:
    """A guess beside the private examples that it is compared with.

    Attributes:
        record: of the job that made the guess.
        aligned: row ``i`` is the guess at private example ``i``, blank where there is none.
        assignment: for each private example, the guess's own number; None where it is blank.
    """

    record: JobRecord
    aligned: Examples
    assignment: Assignment

    def certified(self, example: int) -> bool | None:
        """Whether the attack certified its guess at an example; None where it never does."""
        confidence, index = self.record.confidence, self.assignment[example]
        if confidence is None:
            return None
        return index is not None and confidence[index] == "certified"


def read_guess(victims: Victims[Any], label: str, key: CaptureKey) -> StoredGuess:
    """Read what the jobs of one label made of one capture, checked against its hash."""
    path, record = read_record_of(victims, label, key)
    if record.sha256 is None:
        return StoredGuess(record, None)
    tensors = load_tensors(path.with_suffix(".safetensors"), record.sha256)
    return StoredGuess(record, victims.seen(batch_from(tensors)))


def read_record_of(victims: Victims[Any], label: str, key: CaptureKey) -> tuple[Path, JobRecord]:
    """The record of one job on one capture, and its path; a job that never ran is interrupted."""
    path = victims.cell.guess_folder(label) / f"{key}.json"
    if not path.exists():
        return path, JobRecord(key=key, attack=label, status="interrupted", reason=NOT_YET)
    return path, read_keyed(path, JobRecord, key)


def read_scores(
    victims: Victims[Any], label: str, key: CaptureKey
) -> tuple[JobRecord, Tensor | None]:
    """The record of an attack that infers something else than rows, and its scores, if any."""
    path, record = read_record_of(victims, label, key)
    if record.sha256 is None:
        return record, None
    return record, load_tensors(path.with_suffix(".safetensors"), record.sha256)["scores"]


def matched(guess: StoredGuess, truth: Examples, modality: Modality) -> Matched:
    """Match a guess to private examples, which need not be those that the attack was after."""
    examples = nothing(truth, modality) if guess.examples is None else guess.examples
    assignment = match(examples, truth, modality)
    return Matched(guess.record, align(examples, assignment, modality), assignment)
