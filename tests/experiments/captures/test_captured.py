"""From another Flower app to scores: captured, matched, attacked, and compared by its own mod."""

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsim
from attacks import ATTACKS
from experiments import cli
from experiments.captures.guess import NO_SCORE, Guess
from experiments.captures.score_stage import score_captures
from experiments.wording.catalogue import sentence
from fedsim.config.named_code import options_of_code
from fedsim.errors import ConfigError, StoreError
from fedsim.models.adapters import Adapters, adapt
from fedsim.store.capture import CaptureStore
from fedsim.store.files import Sealed, read_record, write_json
from fedsim.store.truth import TruthStore
from fedsim.tasks.given import task_of
from fedsim.types import Batch
from tests.experiments.captures.cases import adapters, broken, by_name, federate, numbered
from tests.experiments.captures.conftest import SENTENCE, Held, Net, loss


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["fedsim", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        return capsys.readouterr().out

    return run


def test_a_state_dict_is_attacked_and_scored_by_commands(
    held: Held,
    tmp_path: Path,
    said: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    federate(held, held.model, by_name, tmp_path, model=held.model, tokenizer=held.tokenizer)
    captures, private_at = tmp_path / "captures", tmp_path / "private"
    store = CaptureStore(captures)
    assert [key.client for key in store.keys()] == [1000, 1001]
    assert store.load("round-0001-client-1001").knowledge.num_examples is None
    monkeypatch.setattr(ATTACKS["tag"], "reconstruct", broken)
    text = said("attack", captures, "--attacks", "span,tag,lti")
    assert "-1000: tag: IndexError: " in text
    assert "-1001: lti: refuses: " in text
    assert f"certified           {SENTENCE}" in text
    assert "tied to transformer.wte.weight" in text
    assert ": span 2, tag 0, lti 0; " in text
    assert NO_SCORE in text
    assert SENTENCE in (captures / "run" / "report" / "index.html").read_text()
    scored = json.loads(said("score", captures, "--truth", private_at, "--json"))
    (row,) = [row for row in scored if row["attack"] == "span"]
    assert (row["exact_match"], row["exact_match (null)"], row["examples"]) == (1, 0, 2)
    assert row["rouge1"] == 1 > row["rouge1 (null)"]
    assert " 1.00 with this update" in text
    reported = json.loads(said("report", captures, "--json"))
    assert [row["attack"] for row in reported] == ["lti", "span", "tag"]
    assert (reported[1]["certified"], reported[1]["exact_match"]) == (2, 1)
    assert reported[1]["cosine"] > 0.99 > reported[1]["cosine (null)"]
    private = TruthStore(private_at)
    assert private.record(store.keys()[0]).steps == ((0,),)
    first, second = store.keys()
    batches = {first: private.load(second), second: private.load(first)}
    for key, batch in batches.items():
        private.save(key, batch, (0,), ((0,),))
    score_captures(captures, private_at)
    assert sentence("truth.unlike", count=2, first=first) in capsys.readouterr().err


EDITS = {
    '"num_examples":null': '"num_examples":1',
    '"cohort":1': '"cohort":2',
    '"claimed_examples":7': '"claimed_examples":1',
    '"kind":"weights"': '"kind":"difference"',
    '"sign_open":false': '"sign_open":true',
}


def test_an_edited_record_of_a_capture_is_refused(held: Held, tmp_path: Path) -> None:
    federate(held, held.model, by_name, tmp_path, model=held.model, tokenizer=held.tokenizer)
    store = CaptureStore(tmp_path / "captures")
    path = store.tensors_path(store.keys()[0]).with_suffix(".json")
    text = path.read_text()
    named = re.escape(f"{path}: not a valid CaptureRecord")
    for before, after in EDITS.items():
        assert before in text
        path.write_text(text.replace(before, after))
        with pytest.raises(StoreError, match=rf"^{named}.* its seal"):
            list(fedsim.captured(store.root))
    older = json.loads(text)
    del older["seal"]
    path.write_text(json.dumps(older))
    assert len(list(fedsim.captured(store.root))) == 2
    whole = json.dumps({name: value for name, value in older.items() if name != "kind"})
    path.write_text(whole)
    with pytest.raises(StoreError, match=rf"^{named}.*that wrote"):
        list(fedsim.captured(store.root))


def test_a_seal_without_the_fields_of_later_versions_holds(tmp_path: Path) -> None:
    class Older(Sealed):
        first: int

    class Newer(Older):
        second: int = 2

    write_json(tmp_path / "older.json", Older(first=1))
    assert read_record(tmp_path / "older.json", Newer) == Newer(
        first=1, seal=Older(first=1).sealed().seal
    )
    write_json(tmp_path / "newer.json", Newer(first=1, second=3))
    text = (tmp_path / "newer.json").read_text()
    cut = json.loads(text)
    del cut["second"]
    (tmp_path / "newer.json").write_text(json.dumps(cut))
    with pytest.raises(StoreError, match="its seal"):
        read_record(tmp_path / "newer.json", Newer)


def test_numbered_arrays_and_a_second_run_in_a_folder_of_its_own(
    held: Held, tmp_path: Path
) -> None:
    for _ in range(2):
        federate(held, held.model, numbered, tmp_path)
    assert (
        CaptureStore(tmp_path / "captures-2").keys() == CaptureStore(tmp_path / "captures").keys()
    )
    with pytest.raises(ConfigError, match="which model"):
        fedsim.captured(tmp_path / "captures-2")
    captures = fedsim.captured(tmp_path / "captures-2", held.model, tokenizer=held.tokenizer)
    first = next(iter(captures))
    assert len(captures) == 2
    assert "matched" in first.reading.codes
    assert first.claimed_examples == 7
    assert fedsim.attack(first, "span", quiet=True).texts == (SENTENCE,)


def test_adapters_need_their_base(held: Held, tmp_path: Path) -> None:
    lora = Adapters(rank=32, alpha=32.0, targets=("c_attn",), head=False)
    model = adapt(copy.deepcopy(held.model), lora)
    federate(held, model, adapters, tmp_path, model=model, tokenizer=held.tokenizer)
    captures = fedsim.captured(tmp_path / "captures")
    read = captures.task.spec.adapters
    assert read is not None
    assert (read.rank, read.alpha, read.config["target_modules"]) == (32, 32.0, ["c_attn"])
    (victim, _) = captures
    assert "28 tensors " in victim.match
    assert fedsim.attack(victim, "span", quiet=True).texts == (SENTENCE,)
    (tmp_path / "captures" / CaptureStore.BASE).unlink()
    with pytest.raises(ConfigError, match=r"28 of .* the wire"):
        list(fedsim.captured(tmp_path / "captures"))


def test_a_model_that_does_not_fit_never_stops_the_training(held: Held, tmp_path: Path) -> None:
    other = {"model": "tiny-bert", "task": "classification"}
    federate(held, held.model, by_name, tmp_path, **other)
    assert len(CaptureStore(tmp_path / "captures").keys()) == 2
    with pytest.raises(ConfigError, match="Pass the model"):
        list(fedsim.captured(tmp_path / "captures"))
    with pytest.raises(StoreError, match="no examples of"):
        score_captures(tmp_path / "captures", tmp_path / "nowhere")


def test_images_of_one_class_are_printed_in_one_line() -> None:
    batch = Batch(torch.rand(3, 1, 8, 8), torch.tensor([3, 3, 1]))
    task = task_of(Net(), loss=loss, image_shape=(1, 8, 8))
    guess = Guess("inverting", {}, task.examples(batch), (), 0.5, 1.0, "", task)
    assert str(guess).splitlines()[1:] == [
        "  guess      class 3  (2 images)",
        "  guess      class 1  (image)",
    ]


def test_a_class_of_torch_is_not_named_as_what_makes_a_network() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5))
    spec = task_of(network, loss=loss, image_shape=(1, 8, 8)).spec
    assert (
        options_of_code(spec.factory, spec.loss)
        == f"--model MODULE:FUNCTION --loss {loss.__module__}:loss"
    )
