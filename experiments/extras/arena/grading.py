"""``fedsim grade``: a submission against the truth that its bundle commits to."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from experiments.extras.arena.records import (
    BUNDLE,
    GRADE,
    LABEL,
    REMEDY,
    SECRET,
    SUBMISSION,
    Bundle,
    Grade,
    GradedNumber,
    Secret,
    Submission,
)
from experiments.extras.arena.sealing import commitments
from experiments.extras.arena.submitting import check_answer
from fedsim import __version__
from fedsim.api import Run, StoredCell
from fedsim.api.calls import (
    Estimate,
    Values,
    difference,
    estimate,
    score_guesses,
    values_of,
    verdict_of,
)
from fedsim.errors import ConfigError, StoreError
from fedsim.records import FRESH_ROW, OTHER_CLIENT, PRIOR_ONLY, JobRecord, Modality, ScoreRow
from fedsim.store.capture import CaptureKey
from fedsim.store.files import (
    check_hashes,
    copy_files,
    load_tensors,
    read_record,
    save_tensors,
    write_json,
)
from fedsim.store.plain_files import check_folder, digest_plain
from fedsim.tasks import load_task
from fedsim.tasks.base import Task

_ALLOWANCE = 1.05
"""A budget is looked at between steps, so that an honest attack may end some seconds late."""
_TRUTH_REMEDY = "Restore the truth that fedsim seal wrote."


def grade(folder: Path, truth: Path) -> Grade:
    """Score a submission and write ``grade.json`` beside it.

    Raises:
        ConfigError: a folder is not what it should be, or the submission breaks a rule.
        StoreError: the bundle, the truth or a guess is not the one that was hashed.
    """
    manifest, submitted = _submission(folder)
    cell = _opened(truth, manifest, submitted)
    rules = manifest.rules
    if submitted.cpu_seconds > 60 * rules.cpu_minutes * _ALLOWANCE:
        raise ConfigError(
            f"{folder}: used {submitted.cpu_seconds / 60:.1f} CPU minutes, and {rules.track} "
            f"allows {rules.cpu_minutes:g}. Submit with less work."
        )
    with tempfile.TemporaryDirectory() as temporary:
        guesses = Path(temporary) / "guesses"
        task = load_task(cell.captures.root, network=False)
        _hand_in(folder, manifest, cell, task, guesses)
        rows = score_guesses(truth, guesses, {LABEL: rules.asked, PRIOR_ONLY: "rows"})
    submission = digest_plain(folder / SUBMISSION)
    result = _grade(rows, task.modality, manifest, submitted, submission)
    write_json(folder / GRADE, result)
    return result


def _submission(folder: Path) -> tuple[Bundle, Submission]:
    """Its own records, checked against each other and against its guesses."""
    if not (folder / SUBMISSION).is_file():
        raise ConfigError(f"{folder}: no submission ({SUBMISSION} is missing). Correct the path.")
    check_folder(folder)
    submitted = read_record(folder / SUBMISSION, Submission)
    if digest_plain(folder / BUNDLE) != submitted.bundle:
        raise StoreError(f"{folder / BUNDLE}: not the bundle that was attacked. {REMEDY}")
    manifest = read_record(folder / BUNDLE, Bundle)
    check_hashes(folder / "guesses", submitted.files, "Submit again.")
    return manifest, submitted


def _opened(truth: Path, manifest: Bundle, submitted: Submission) -> StoredCell:
    """The cell of a truth folder that opens the commitments of the bundle."""
    if not (truth / SECRET).is_file():
        raise ConfigError(f"--truth {truth}: {SECRET} is missing. Name the truth of fedsim seal.")
    check_folder(truth)
    secret = read_record(truth / SECRET, Secret)
    if secret.bundle != submitted.bundle:
        raise StoreError(
            f"--truth {truth}: of another bundle ({secret.bundle[:12]}, and the submission is "
            f"about {submitted.bundle[:12]}). Name the truth that was sealed with it."
        )
    run = Run.open(truth)
    (cell,) = run.cells
    if commitments(cell.truth, secret.salts) != manifest.commitments:
        raise StoreError(
            f"--truth {truth}: its rows do not open the commitments of the bundle. {_TRUTH_REMEDY}"
        )
    check_hashes(truth, secret.files | {SECRET: digest_plain(truth / SECRET)}, _TRUTH_REMEDY)
    return cell


def _hand_in(folder: Path, manifest: Bundle, cell: StoredCell, task: Task, guesses: Path) -> None:
    """Put the guesses where scoring looks for them; nothing else that was submitted is believed.

    Certificates, statuses and objectives are the participant's words: a victim that is called
    skipped would leave the mean. A capture without a guess counts as a blank one.
    """
    place = guesses / LABEL
    for name in manifest.rules.answers:
        path, sha256 = folder / "guesses" / f"{name}.safetensors", None
        if path.exists():
            tensors = check_answer(name, load_tensors(path), manifest.rules, task)
            sha256 = save_tensors(place / path.name, tensors, sync=False)
        record = JobRecord(
            key=CaptureKey.parse(name),
            attack=LABEL,
            status="done" if sha256 else "failed",
            sha256=sha256,
        )
        write_json(place / f"{name}.json", record, sync=False)
    copy_files(cell.guess_folder(PRIOR_ONLY), guesses / PRIOR_ONLY)


def _grade(
    rows: list[ScoreRow],
    modality: Modality,
    manifest: Bundle,
    submitted: Submission,
    submission: str,
) -> Grade:
    rules = manifest.rules
    values = values_of(rows, rules.metric)
    reached = values[LABEL, "none"]
    nulls = _nulls(values)
    verdict = None if rules.asked == "membership" else verdict_of(rows, modality)
    return Grade(
        track=rules.track,
        name=submitted.name,
        metric=rules.metric,
        n=len(reached),
        clients=len({victim.owner for victim in reached}),
        word="" if verdict is None else " ".join(filter(None, (verdict.word, verdict.grade))),
        exact=None if verdict is None else verdict.exact.examples,
        score=_number(estimate(reached)),
        nulls={name: _number(estimate(null)) for name, null in nulls.items()},
        lead={name: _number(difference(reached, null)) for name, null in nulls.items()},
        cpu_seconds=submitted.cpu_seconds,
        measured=submitted.measured,
        code=submitted.code,
        bundle=submitted.bundle,
        submission=submission,
        grader=__version__,
    )


def _nulls(values: Mapping[tuple[str, str], Values]) -> dict[str, Values]:
    """Guesses that never saw the victim, on the victims of the submission."""
    wanted = {
        PRIOR_ONLY: (PRIOR_ONLY, "none"),
        OTHER_CLIENT: (LABEL, OTHER_CLIENT),
        FRESH_ROW: (LABEL, FRESH_ROW),
    }
    return {name: values[key] for name, key in wanted.items() if key in values}


def _number(value: Estimate | None) -> GradedNumber:
    assert value is not None  # nulls are of the same victims
    return GradedNumber(mean=value.mean, low=value.low, high=value.high)
