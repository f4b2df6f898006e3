"""``fedsim evidence``: what its folder says, its checks, and that it holds nothing private."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from scipy.stats import beta

from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.audit import AuditRow
from experiments.cli import main
from experiments.extras.evidence.folder import MANIFEST, PAGE, RECORD, EvidenceRecord
from experiments.pipeline import execute
from experiments.plan.folder import STAGES, Run
from experiments.report.assessment import _audited
from experiments.wording.epsilons import Epsilons
from fedsim.api.guesses import read_guess
from fedsim.api.victims import Victims
from fedsim.store.files import read_record
from tests.apps.cases import TEXT, Make
from tests.experiments.conftest import Said


@pytest.fixture(scope="module")
def once(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of a copy of the finished run; tests leave it as it is."""
    run = tmp_path_factory.mktemp("once") / "copied"
    shutil.copytree(finished, run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedsim", "evidence", str(run), "--review", "2030-01-31"])
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
    return run / "evidence"


@pytest.fixture
def written(copied: Path, once: Path) -> Path:
    return Path(shutil.copytree(once, copied / "evidence"))


def private_texts(run: Path) -> set[str]:
    """Every private example and every guess, as text."""
    found = set()
    for cell in Run.open(run).cells:
        victims = Victims(cell)
        for key in victims.keys:
            found |= set(victims.examples(key).words)
            for label in (path.name for path in (cell.folder / "guesses").iterdir()):
                guess = read_guess(victims, label, key)
                found |= set(guess.examples.all_words if guess.examples else ())
    return {text for text in found if len(text.split()) > 1}


def test_no_private_row_and_no_guess_is_in_the_folder(copied: Path, written: Path) -> None:
    texts = private_texts(copied)
    assert len(texts) >= 3
    parts = {
        " ".join(words[i : i + 3])
        for t in texts
        for words in [t.split()]
        for i in range(len(words) - 2)
    }
    assert len(parts) > 10
    assert {path.name for path in written.iterdir()} == {RECORD, PAGE, MANIFEST}
    for path in written.iterdir():
        content = path.read_text().casefold()
        assert not [part for part in texts | parts if part.casefold() in content], path
        assert str(Path.home()) not in content
    page = (copied / "report" / "index.html").read_text()
    assert any(text.split()[0] in page for text in texts)  # the report does show them


def test_what_an_assessment_asks_for(copied: Path, written: Path) -> None:
    record = read_record(written / RECORD, EvidenceRecord)
    assert record.review == "2030-01-31"
    (tested,) = record.attacks
    assert (tested.objective, tested.attack) == ("data reconstruction", "embedding rows")
    assert tested.jobs["done"] == 3
    assert "a blind guess" in tested.outcome
    assert "membership inference: not tried" in record.untried
    assert {(site["claimed"], site["guarded"]) for site in record.sites} == {
        ("nothing", "no guard")
    }
    assert len(record.sites) == 3
    assert any("span" in line for line in record.untried)
    worst = next(one for one in record.persons if one.kind == "verbatim")
    assert worst.of == 3
    hit, of = worst.hit, worst.of
    assert worst.high == pytest.approx(1.0 if hit == of else beta.ppf(0.95, hit + 1, of - hit))
    assert worst.low == pytest.approx(0.0 if not hit else beta.ppf(0.05, hit, of - hit + 1))
    head = (written / "index.html").read_text("utf-8").partition("<main>")[0]
    for kind, word in (("verbatim", "exactly"), ("recognisable", "recognisably")):
        (person,) = (person for person in record.persons if person.kind == kind)
        assert f"{person.hit} of {person.of} clients with an example that came back {word}" in head
    assert record.privacy == ()
    assert {one.measure for one in record.utility}
    assert record.risks
    assert record.systems[0].level == "L1"
    assert "scores.parquet" in record.sources
    assert any(name.endswith("simulation.json") for name in record.sources)


def test_the_page_says_it_and_scores_no_harm(written: Path) -> None:
    page = (written / PAGE).read_text()
    for word in ("data reconstruction", "Clopper and Pearson", "Review by", "controller", "L1"):
        assert word in page
    assert "<script" not in page


def test_a_folder_is_checked(copied: Path, written: Path, said: Said, tmp_path: Path) -> None:
    code, text, _ = said("evidence", "--verify", written)
    assert code == 0
    assert "the run's" in text
    alone = shutil.copytree(written, tmp_path / "alone")
    code, text, _ = said("evidence", "--verify", alone)
    assert code == 0
    assert "the run is not here" in text
    code, text, _ = said("evidence", copied, "--verify", alone)
    assert "the run's" in text


@pytest.mark.parametrize("name", [RECORD, PAGE, MANIFEST])
def test_an_altered_file_is_found(name: str, written: Path, said: Said) -> None:
    path = written / name
    path.write_text(path.read_text().replace("0", "1", 1))
    code, _, error = said("evidence", "--verify", written)
    assert code == 2
    assert error.count("\n") == 1


def test_an_altered_run_is_found(copied: Path, written: Path, said: Said) -> None:
    with (copied / "scores.parquet").open("ab") as file:
        file.write(b" ")
    code, _, error = said("evidence", "--verify", written)
    assert code == 2
    assert "scores.parquet" in error


def test_an_added_file_is_found(written: Path, said: Said) -> None:
    (written / "more.html").write_text("more")
    code, _, error = said("evidence", "--verify", written)
    assert code == 2
    assert "does not list it" in error


def test_wrong_calls(copied: Path, tmp_path: Path, said: Said) -> None:
    assert "no run is named" in said("evidence")[2]
    assert "is no date" in said("evidence", copied, "--review", "soon")[2]
    assert "holds no manifest.json" in said("evidence", "--verify", tmp_path)[2]
    (copied / "findings.json").unlink()
    assert "not reported" in said("evidence", copied)[2]


def test_written_twice_and_never_over_files_of_others(
    copied: Path, written: Path, said: Said
) -> None:
    (written / f".{RECORD}.123.tmp").write_text("{")  # of a writer that was killed
    code, text, _ = said("evidence", copied)
    assert (code, "manifest" in text) == (0, True)
    assert {path.name for path in written.iterdir()} == {RECORD, PAGE, MANIFEST}
    (written / "notes.txt").write_text("the controller's")
    code, _, error = said("evidence", copied)
    assert code == 2
    assert "is no evidence" in error
    assert (written / "notes.txt").exists()


@pytest.mark.slow
def test_as_json(copied: Path, said: Said) -> None:
    table = json.loads(said("evidence", copied, "--json")[1])
    assert table["attacks"][0]["objective"] == "data reconstruction"


@pytest.mark.slow
def test_a_card_of_differential_privacy(make_run: Make, said: Said) -> None:
    private = [
        {"name": "none"},
        {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 2.0},
        {"name": "dp_client", "clip": 1.0, "noise_multiplier": 4.0, "adjacency": "zero_out"},
    ]
    run = make_run(TEXT, defenses=private, federation={"rounds": 1, "client_rows": 1})
    assert not execute(run, STAGES, quiet=True).failed
    assert said("evidence", run.root)[0] == 0
    cards = read_record(run.root / "evidence" / RECORD, EvidenceRecord).privacy
    update, example = sorted(cards, key=lambda card: card.unit)
    assert "one example" in example.unit
    assert "added or removed" in example.neighbours
    assert "Poisson sampling" in example.by_relation
    assert "everything" in update.unit
    assert "no update" in update.neighbours
    for card in cards:
        assert 0 < card.claimed < 10
        assert card.delta == 1e-5
        assert card.rounds == 1
        assert card.by_relation.startswith(f"epsilon {card.claimed:.3g} (add or remove one) and ")
        assert "(replace one) at delta 1e-05, " in card.by_relation
        assert card.by_relation.endswith(" of one run")
        assert card.audited is None
    code, _, error = said("audit", run.root, "--canaries", "200")
    assert code == 0, error
    assert said("evidence", run.root)[0] == 0
    audited = read_record(run.root / "evidence" / RECORD, EvidenceRecord).privacy
    assert all(0 <= (card.audited or 0) <= card.claimed for card in audited)
    assert any(card.audited is not None for card in audited)


def test_a_card_has_the_audits_of_its_own_setting() -> None:
    audit = AuditRow(
        run="r",
        cell="c0",
        defense="dp_sgd",
        defense_options="{}",
        unit="example",
        round=1,
        canaries=9,
        epsilon=2.0,
        accounted=Epsilons(epsilon=2.0),
        lower=0.5,
        any_mechanism=0.4,
        shift=1.0,
    )
    other = audit.model_copy(update={"cell": "c2", "lower": 5.0})
    place = DefenseInSetting("", "dp_sgd", "{}")
    assert _audited([audit, other], place, ["c0"]) == 0.5
    assert _audited([other], place, ["c0"]) is None
