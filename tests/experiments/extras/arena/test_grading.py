"""A submission is graded by who holds the truth, and nobody gains by what was not agreed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.extras.arena.grading import grade
from experiments.extras.arena.records import GRADE, SUBMISSION, Grade, Submission, open_bundle
from experiments.extras.arena.sealing import SealedTrack, seal
from experiments.extras.arena.submitting import submit_attack, submit_guesses
from experiments.operations import SEED_BITS, secret_settings
from experiments.plan.config import Plan, parse_experiment
from fedsim.api import Run
from fedsim.data.rows import Split
from fedsim.errors import StoreError
from fedsim.store.files import hashes, read_record, save_tensors, write_json
from fedsim.types import Tensors
from tests.apps.cases import TEXT, Make, files_of, simulate
from tests.experiments.extras.arena.cases import TEXTS

Refused = Callable[..., str]
FIRST = "round-0001-client-0000"


@pytest.fixture(scope="module")
def submitted(texts: SealedTrack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Guesses of an exact attack."""
    out = tmp_path_factory.mktemp("submitted") / "span"
    away = texts.truth.rename(texts.truth.with_name("away"))  # a participant has no truth
    try:
        submit_attack(open_bundle(texts.bundle), {"name": "span"}, out)
    finally:
        away.rename(texts.truth)
    return out


@pytest.fixture
def copied(submitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(submitted, tmp_path / "submission"))


def guessed(sealed: SealedTrack, tensors: Tensors, folder: Path) -> Path:
    """A submission of such guesses."""
    path = folder / "guesses.safetensors"
    save_tensors(path, tensors)
    submit_guesses(open_bundle(sealed.bundle), path, "theirs", 12.0, folder / "out")
    return folder / "out"


def pictures(count: int = 1, **more: torch.Tensor) -> Tensors:
    """Grey guesses at the first client, and further tensors of it."""
    grey = torch.full((count, 3, 8, 8), 0.5)
    return {f"{FIRST}/inputs": grey} | {f"{FIRST}/{name}": value for name, value in more.items()}


def test_an_exact_attack_is_graded_beside_its_nulls(submitted: Path, texts: SealedTrack) -> None:
    before = files_of(texts.truth)
    graded = grade(submitted, texts.truth)
    assert (graded.n, graded.clients, graded.exact, graded.score.mean) == (6, 6, 6, 1.0)
    assert graded.word == "leaks verbatim"
    assert graded.score.low is not None
    assert graded.score.low > 0.5
    assert set(graded.nulls) == {"prior_only", "other_client"}
    assert all(lead.low is not None and lead.low > 0.3 for lead in graded.lead.values())
    assert graded.measured
    assert graded.cpu_seconds > 0
    assert read_record(submitted / GRADE, Grade) == graded.sealed()
    assert grade(submitted, texts.truth) == graded  # whoever is given the truth finds the same
    assert files_of(texts.truth) == before


def test_a_file_of_texts_is_graded_as_its_tokens(
    texts: SealedTrack, submitted: Path, tmp_path: Path
) -> None:
    (cell,) = Run.open(texts.truth).cells
    task = open_bundle(texts.bundle).task
    words = {
        str(key): list(task.examples(cell.truth.load(key)).words) for key in cell.captures.keys()
    }
    path = tmp_path / "guesses.json"
    path.write_text(json.dumps(words))
    submit_guesses(open_bundle(texts.bundle), path, "theirs", 12.0, tmp_path / "out")
    graded = grade(tmp_path / "out", texts.truth)
    assert (graded.exact, graded.measured, graded.cpu_seconds) == (6, False, 12.0)


def test_a_client_without_a_guess_counts_as_a_blank(images: SealedTrack, tmp_path: Path) -> None:
    alone = grade(guessed(images, pictures(), tmp_path), images.truth)
    assert alone.n == 6
    assert alone.score.mean == pytest.approx(alone.nulls["prior_only"].mean)


def test_membership_is_ranked_among_fresh_rows(members: SealedTrack, tmp_path: Path) -> None:
    submit_attack(open_bundle(members.bundle), {"name": "membership"}, tmp_path / "out")
    graded = grade(tmp_path / "out", members.truth)
    assert graded.metric == "membership_auc"
    assert graded.exact is None
    assert {"other_client", "fresh_row"} <= set(graded.nulls)
    assert 0 <= graded.score.mean <= 1


def test_stated_certificates_and_statuses_are_not_believed(
    copied: Path, submitted: Path, texts: SealedTrack
) -> None:
    """A victim called skipped would leave the mean, and a certificate counts by itself."""
    extra = {"status": "skipped", "confidence": ["certified"]}
    (copied / "guesses" / f"{FIRST}.json").write_text(json.dumps(extra))
    old = read_record(copied / SUBMISSION, Submission)
    listed = old.model_copy(update={"files": hashes(copied / "guesses")})
    write_json(copied / SUBMISSION, listed)
    assert grade(copied, texts.truth).score == grade(submitted, texts.truth).score


@pytest.mark.parametrize(
    ("changed", "said_of_it"),
    [
        ("bundle.json", "not the bundle that was attacked"),
        (f"guesses/{FIRST}.safetensors", "cut or altered"),
        (SUBMISSION, "differs from its seal"),
    ],
)
def test_a_changed_submission_is_refused(
    changed: str, said_of_it: str, copied: Path, texts: SealedTrack, refused: Refused
) -> None:
    path = copied / changed
    content = bytearray(path.read_bytes())
    place = content.rfind(b"1")
    content[place : place + 1] = b"2"
    path.write_bytes(bytes(content))
    assert said_of_it in refused("grade", copied, "--truth", texts.truth)


@pytest.mark.parametrize("name", ["round-0001/client-0003.safetensors", "models/*.safetensors"])
def test_a_changed_tensor_is_refused(
    name: str, texts: SealedTrack, tmp_path: Path, refused: Refused
) -> None:
    bundle = Path(shutil.copytree(texts.bundle, tmp_path / "bundle"))
    (path,) = (bundle / "captures").glob(name)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    line = refused("submit", bundle, tmp_path / "out", "--attack", "span")
    assert f"{path}: the file is cut or altered" in line
    assert not (tmp_path / "out").exists()


def test_a_changed_bundle_is_refused(texts: SealedTrack, tmp_path: Path, refused: Refused) -> None:
    bundle = Path(shutil.copytree(texts.bundle, tmp_path / "bundle"))
    path = bundle / "captures" / "task.json"
    path.write_text(path.read_text().replace("0.1", "0.2"))
    line = refused("submit", bundle, tmp_path / "out", "--attack", "span")
    assert "task.json: the file is cut or altered. Get the bundle again" in line


def test_a_changed_truth_is_refused(
    copied: Path, texts: SealedTrack, images: SealedTrack, tmp_path: Path, refused: Refused
) -> None:
    """The owner cannot swap a row afterwards, nor the participant name another truth."""
    assert "of another bundle" in refused("grade", copied, "--truth", images.truth)
    truth = Path(shutil.copytree(texts.truth, tmp_path / "truth"))
    store = Run.open(truth).cells[0].truth
    record, other = store.clients()[:2]
    store.save(record.key, store.batch(other), record.rows, record.steps)
    assert "do not open the commitments" in refused("grade", copied, "--truth", truth)


def test_over_the_limit_is_refused(copied: Path, texts: SealedTrack, refused: Refused) -> None:
    old = read_record(copied / SUBMISSION, Submission)
    write_json(copied / SUBMISSION, old.model_copy(update={"cpu_seconds": 1900.0}))
    assert "31.7 CPU minutes, and toy-texts allows 30" in refused(
        "grade", copied, "--truth", texts.truth
    )


@pytest.mark.parametrize(
    ("tensors", "said_of_it"),
    [
        (pictures(3000), "3000 guesses, and the track takes 1 to 1"),
        (pictures(0), "0 guesses"),
        ({f"{FIRST}/inputs": torch.zeros(1, 3, 8, 9)}, "of shape (3, 8, 9), not (3, 8, 8)"),
        ({f"{FIRST}/inputs": torch.tensor(0.5)}, "and a guess of this track is inputs, labels"),
        ({f"{FIRST}/inputs": torch.full((1, 3, 8, 8), float("nan"))}, "holds NaN"),
        (pictures(more=torch.ones(1)), "holds inputs, labels, more"),
        (pictures(labels=torch.ones(2)), "labels: (2,) for 1 guesses"),
        ({"round-0009-client-0000/inputs": torch.zeros(1, 3, 8, 8)}, "no capture of this track"),
        ({"../../truth/inputs": torch.zeros(1, 3, 8, 8)}, "no capture of this track"),
    ],
)
def test_guesses_against_the_rules_are_refused(
    tensors: Tensors, said_of_it: str, images: SealedTrack, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "guesses.safetensors"
    save_tensors(path, tensors)
    line = refused(
        *("submit", images.bundle, tmp_path / "out", "--guesses", path),
        *("--name", "theirs", "--cpu-seconds", 1),
    )
    assert said_of_it in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "said_of_it"),
    [
        ('{"round-0001-client-0000": ["a", "b"]}', "2 guesses"),
        ('{"round-0001-client-0000": "a"}', "is no list of texts"),
        ('{"round-0001-client-0000": []}', "no guess"),
        ("{}", "holds no guess"),
        ("[1]", "not a table"),
    ],
)
def test_texts_against_the_rules_are_refused(
    content: str, said_of_it: str, texts: SealedTrack, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "guesses.json"
    path.write_text(content)
    line = refused(
        *("submit", texts.bundle, tmp_path / "out", "--guesses", path),
        *("--name", "theirs", "--cpu-seconds", 1),
    )
    assert said_of_it in line


@pytest.mark.parametrize(
    ("name", "seconds", "said_of_it"),
    [
        ("", 1, "submit."),
        ("x" * 81, 1, "submit."),
        ("\x1b[31m", 1, "submit."),
        ("a", "nan", "'--cpu-seconds': nan is no finite number"),
        ("a", "inf", "'--cpu-seconds': inf is no finite number"),
    ],
)
def test_names_and_costs_are_held_to_their_form(
    name: str,
    seconds: object,
    said_of_it: str,
    images: SealedTrack,
    tmp_path: Path,
    refused: Refused,
) -> None:
    path = tmp_path / "guesses.safetensors"
    save_tensors(path, pictures())
    out = tmp_path / "out"
    stated = ("--name", name, "--cpu-seconds", seconds)
    assert said_of_it in refused("submit", images.bundle, out, "--guesses", path, *stated)
    assert not out.exists()


def test_a_submission_written_by_hand_is_held_to_the_rules(
    copied: Path, texts: SealedTrack, refused: Refused
) -> None:
    """Its hashes are right, and it lists every text of a thousand."""
    ids = torch.ones(1000, 5, dtype=torch.int64)
    path = copied / "guesses" / f"{FIRST}.safetensors"
    save_tensors(path, {"inputs": ids, "mask": ids.clone(), "labels": torch.full((1000,), -1)})
    old = read_record(copied / SUBMISSION, Submission)
    listed = old.model_copy(update={"files": hashes(copied / "guesses")})
    write_json(copied / SUBMISSION, listed)
    assert "1000 guesses" in refused("grade", copied, "--truth", texts.truth)


def test_what_would_give_rows_away_is_not_sealed(
    make_run: Make, tmp_path: Path, refused: Refused
) -> None:
    run = make_run(TEXT, federation={"rounds": 1}, attacks=[])
    assert "not simulated" in refused("seal", run.root, tmp_path / "out")
    simulate(run)
    assert "seeds: 0 can be guessed" in refused("seal", run.root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_seed_and_a_key_are_drawn_anew_each_time() -> None:
    plan = Plan(name="toy", experiments=(parse_experiment(TEXTS),))
    first, second = secret_settings(plan), secret_settings(plan)
    for one, other in zip(first, second, strict=True):
        assert one != other
    seed, split = first
    assert int(seed[7:-1]).bit_length() == SEED_BITS
    assert (key := Split.parse(split.removeprefix("task.split="), "sentences").key) is not None
    assert key.bit_length() == SEED_BITS
    assert split.endswith("[:60]")


def test_nothing_is_sealed_over(texts: SealedTrack) -> None:
    run = Run.open(texts.truth.parent / "run")
    with pytest.raises(Exception, match="sealed there already"):
        seal(run, texts.truth.parent)


def test_missing_folders_are_named(texts: SealedTrack, tmp_path: Path, refused: Refused) -> None:
    assert "no bundle" in refused("submit", tmp_path, tmp_path / "out", "--attack", "span")
    assert "no submission" in refused("grade", tmp_path, "--truth", texts.truth)
    assert "name an attack" in refused("submit", texts.bundle, tmp_path / "out")
    assert "infers membership" in refused(
        "submit", texts.bundle, tmp_path / "out", "--attack", "membership"
    )


def test_truth_of_older_bytes_is_found(texts: SealedTrack, copied: Path, tmp_path: Path) -> None:
    truth = Path(shutil.copytree(texts.truth, tmp_path / "truth"))
    cell = Run.open(truth).cells[0]
    (cell.folder / "guesses" / "prior_only" / f"{FIRST}.json").unlink()
    with pytest.raises(StoreError, match=r"the file is missing\. Restore the truth"):
        grade(copied, truth)
