"""Attacks on another application's captures make a run folder: kept, sealed, scored, shown."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from torch.nn import functional as F

import fedsim
from attacks import ATTACKS
from experiments.captures.captured import captured
from experiments.captures.disclosures import Disclosure, disclosed
from experiments.captures.run import open_run, read_intake
from experiments.plan.folder import write_experiment
from experiments.wording.catalogue import sentence
from experiments.wording.threat import fact_words
from fedsim.api.ledger import read_ledger
from fedsim.errors import ConfigError, StoreError
from fedsim.store.truth import TruthStore
from fedsim.types import Batch
from tests.experiments.captures.cases import broken, by_name, federate
from tests.experiments.captures.conftest import SENTENCE, Held
from tests.experiments.captures.conftest import Net as Images
from tests.experiments.captures.conftest import loss as image_loss
from tests.experiments.conftest import Said


@pytest.fixture
def captures(held: Held, tmp_path: Path) -> Path:
    federate(held, held.model, by_name, tmp_path, model=held.model, tokenizer=held.tokenizer)
    return tmp_path / "captures"


@pytest.mark.slow
def test_a_finished_attack_is_not_run_again(
    captures: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said("attack", captures, "--attacks", "span")[0] == 0
    first = open_run(captures)
    assert [row.state for row in read_ledger(first.root / "jobs.sqlite")] == ["done"] * 2
    monkeypatch.setattr(ATTACKS["span"], "reconstruct", broken)
    code, text, _ = said("attack", captures, "--attacks", "span")
    assert (code, text.count(f"certified           {SENTENCE}")) == (0, 1)
    # Other facts make other guesses, and the old ones stay.
    code, text, _ = said("attack", captures, "--attacks", "span", "--knows", "num_examples=1")
    assert (code, "IndexError: out of range" in text) == (1, True)
    other = open_run(captures)
    assert other.cells[0].name != first.cells[0].name
    assert first.cells[0].captures.keys() == other.cells[0].captures.keys()


@pytest.mark.slow
@pytest.mark.parametrize("attack", list(ATTACKS))
def test_every_attack_ends_with_a_guess_or_a_sentence(
    attack: str, captures: Path, said: Said
) -> None:
    """A guess of no word has no gradient to weigh."""
    code, text, error = said("attack", captures, "--attacks", attack, "--budget", ".5")
    assert code in (0, 1), error
    assert f"{attack}: " in text


def test_the_page_says_what_came_back_and_what_was_refused(captures: Path, said: Said) -> None:
    assert said("attack", captures, "--attacks", "span,lti")[0] == 0
    page = captures / "run" / "report" / "index.html"
    text = page.read_text("utf-8")
    assert SENTENCE in text
    counts = {"examples": "2 examples", "captures": "2 captures"}
    assert sentence("guess.proven", attack="Span", proven=2, **counts) in text
    refused = sentence("guess.refused", attack="LTI", captures="2 captures", known="")
    assert refused in text
    assert "learns from public rows" in text
    for reason in ("captured.unscored", "level.certified"):
        assert escape(sentence(reason)) in text
    assert escape(sentence("captured.uncounted")) not in text  # the clients state it
    assert escape(sentence("captured.classes")) not in text
    assert "fedsim init" in text
    assert "Content-Security-Policy" in text
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700


def test_with_the_truth_the_page_has_a_verdict(captures: Path, said: Said) -> None:
    said("attack", captures, "--attacks", "span,lti")
    assert said("score", captures, "--truth", captures.parent / "private")[0] == 0
    text = (captures / "run" / "report" / "index.html").read_text("utf-8")
    assert "recovers 2 of 2 texts" in text
    assert "<title>captures: " in text
    for fact in ("labels", "num_examples"):
        assert f" {escape(fact_words(fact))}" in text
    assert ("realism" in text, "Simulated" in text) == (False, False)
    assert "at most 2 captured" in text
    assert "local training" not in text  # of which nothing is known
    beside = (captures / "run" / "report" / "captures.html").read_text("utf-8")
    assert sentence("captured.scored") in beside
    scores = fedsim.load(captures / "run").scores
    (cause,) = set(scores[scores.attack == "lti"].cause)
    assert "public rows" in cause
    exact = scores[(scores.metric == "exact_match") & (scores.attack == "span")]
    assert set(exact.value) == {1.0}
    assert set(scores.level) == {""}  # a level is of options that nobody has set


def test_a_part_of_the_truth_is_scored_and_what_the_model_does_not_take_is_left_out(
    captures: Path, said: Said
) -> None:
    """As where one client alone has the mod, or trains another network in the same round."""
    said("attack", captures, "--attacks", "span")
    private = captures.parent / "private"
    first, second = (record.key for record in TruthStore(private).clients())
    (private / f"{second}.json").unlink()
    assert said("score", captures, "--truth", private)[0] == 0
    TruthStore(private).save(second, Batch(torch.rand(1, 5), torch.zeros(1).long()), (0,), ((0,),))
    code, _, error = said("score", captures, "--truth", private)
    assert (code, sentence("truth.shape", key=second, shape=(5,)) in error) == (0, True)
    assert {row.client for row in open_run(captures).scores} == {first.client}


@pytest.mark.slow
def test_the_stages_take_the_run_folder_as_any_other(captures: Path, said: Said) -> None:
    said("attack", captures, "--attacks", "span")
    run = captures / "run"
    code, _, line = said("report", run)
    assert (code, line.count("\n")) == (2, 1)
    assert "nothing is scored" in line
    assert said("attack", run)[0] == 0
    said("score", captures, "--truth", captures.parent / "private")
    assert said("score", run)[0] == said("report", run)[0] == 0
    code, broken_limits, _ = said("check", run, "--max", "exact_match=0.5")
    assert (code, "exact_match" in broken_limits) == (1, True)
    assert said("check", run, "--max-verbatim", "2")[0] == 0
    path = run / "experiment.toml"
    whole = path.read_text("utf-8")
    path.write_text(whole.replace("time_budget = 60", "time_budget = 61"))
    with pytest.raises(StoreError, match="cut or altered"):
        open_run(captures)
    path.write_text(whole)
    assert said("rm", run, "--yes")[0] == 0
    assert not run.exists()
    assert len(captured(captures)) == 2


def test_an_experiment_of_somebody_else_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    table: dict[str, Any] = {"name": "captures", "experiments": [{"name": "../../elsewhere"}]}
    write_experiment(tmp_path / "run", table)
    with pytest.raises(ConfigError, match="names a folder"):
        open_run(tmp_path)


def test_a_hostile_text_stays_a_text(captures: Path, said: Said) -> None:
    said("attack", captures, "--attacks", "span")
    path = captures / "run" / open_run(captures).cells[0].name / "intake.json"
    text = path.read_text("utf-8").replace("by name", "<script>alert(1)</script>")
    path.write_text(re.sub(r'"seal": "\w+"', '"seal": null', text))
    assert said("report", captures)[0] == 0
    text = (captures / "run" / "report" / "index.html").read_text("utf-8")
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert len(read_intake(open_run(captures)).given) == 2


@pytest.mark.slow
def test_a_digit_of_what_a_page_shows_is_refused(captures: Path, said: Said) -> None:
    said("attack", captures, "--attacks", "span")
    cell = captures / "run" / open_run(captures).cells[0].name
    for path in (cell / "intake.json", cell / "fits.json", cell / "captures" / "task.json"):
        whole = path.read_text("utf-8")
        path.write_text(re.sub(r"[1-8]", lambda digit: str(int(digit[0]) + 1), whole, count=1))
        code, _, error = said("report", captures)
        assert (code, f"{path}: " in error) == (2, True), error
        path.write_text(whole)
    (cell / "intake.json").unlink()
    assert "an earlier version" in said("report", captures)[2]
    assert said("attack", captures, "--attacks", "span")[0] == 0
    assert said("report", captures)[0] == 0


def images(net: Any, count: int | None, classes: list[int], noise: float = 0.0) -> Disclosure:
    inputs = torch.rand(len(classes), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    value = F.cross_entropy(net(inputs), torch.tensor(classes))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    torch.manual_seed(0)
    gradients = tuple(value + noise * torch.randn_like(value) for value in gradients)
    known: Any = {"image_shape": (1, 8, 8), "num_examples": count}
    return disclosed(fedsim.Update.of(net, gradients=gradients, loss=image_loss, **known))


def test_class_counts_need_the_number_of_examples() -> None:
    unknown = images(Images(), None, [1, 2])
    assert (unknown.labels, "--knows num_examples=N" in unknown.no_labels) == ({}, True)


def test_class_counts_under_noise_are_not_told() -> None:
    assert images(Images(), 4, [1, 1, 3, 4], noise=1e-3).labels == {"1": 2, "3": 1, "4": 1}
    blurred = images(Images(), 4, [1, 1, 3, 4], noise=1.0)
    assert (blurred.labels, "noise hides" in blurred.no_labels) == ({}, True)


def test_nothing_is_written_for_an_attack_that_does_not_exist(captures: Path) -> None:
    from experiments.captures.attack_stage import attack_captures

    with pytest.raises(ConfigError, match="mean 'span'"):
        attack_captures(captured(captures), ["spam"], 1.0, quiet=True)
    assert not (captures / "run").exists()


@pytest.mark.slow
def test_some_captures_are_attacked_alone_and_a_note_is_said_once(
    captures: Path, said: Said
) -> None:
    first = captured(captures).store.keys()[0]
    chosen = ("--rounds", first.round, "--clients", first.client)
    code, text, _ = said("attack", captures, "--attacks", "span", *chosen)
    assert (code, text.count(": span: ")) == (0, 1)
    assert "holds no such capture" in said("attack", captures, "--clients", "77")[2]
    code, text, _ = said("attack", captures, "--attacks", "embedding_rows")
    notes = [line for line in text.splitlines() if line.startswith("of client")]
    assert len(notes) == len(set(notes))
