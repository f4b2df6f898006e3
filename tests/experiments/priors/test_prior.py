"""The command that trains a prior: what it learns from, what it writes, and what it refuses."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from attacks.texts.language_prior import load_prior
from experiments import cli
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.priors import prior
from experiments.priors.prior import TrainedPrior, train_prior
from fedsim.config.setting import load_setting
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.tasks.text import TextTask, texts_of
from fedsim.types import Rows
from tests.apps.cases import IMAGES, TEXT, files_of, merge

Train = Callable[..., TrainedPrior]
OWNED: dict[str, Any] = merge(TEXT, {"auxiliary": {"split": "public", "rows": 40}})


def plan_of(*tables: dict[str, Any]) -> Plan:
    return Plan(name="some", experiments=tuple(map(parse_experiment, tables)))


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """``train(table, ..., folder="a", epochs=2)``: a narrow prior, trained for an epoch."""

    def call(*tables: dict[str, Any], folder: str = "prior", **options: int) -> TrainedPrior:
        sizes = {"width": 32, "layers": 1, "epochs": 1, **options}
        return train_prior(plan_of(*tables), tmp_path / folder, quiet=True, **sizes)

    return call


@pytest.mark.slow
def test_it_prefers_the_order_of_sentences_that_it_never_saw(tmp_path: Path, train: Train) -> None:
    table = merge(OWNED, {"auxiliary": {"rows": 400}})
    trained = train(table, width=64, epochs=4)
    assert (trained.texts, trained.heldout) == (380, 20)
    assert trained.perplexity < 200  # 1900 by chance
    task = task_of(table)
    language_prior = load_prior(str(tmp_path / "prior"), task, torch.device("cpu"))
    rng = torch.Generator().manual_seed(0)
    texts = load_rows("sentences", "test", modality="text").inputs
    assert isinstance(texts, tuple)
    lines, mixed = [], []
    for line in map(torch.tensor, task.tokens(texts)):
        lines.append(line)
        places = 1 + torch.randperm(len(line) - 2, generator=rng)
        mixed.append(torch.cat([line[:1], line[places], line[-1:]]))
    ids = pad_sequence(lines + mixed, batch_first=True)
    mask = pad_sequence(list(map(torch.ones_like, lines + mixed)), batch_first=True)
    true, shuffled = language_prior.loss(ids, mask).split(len(lines))
    assert (true < shuffled).double().mean() > 0.9


def task_of(table: dict[str, Any]) -> TextTask:
    task = load_setting(make_cells(plan_of(table), Path("runs"))[0].config).task
    assert isinstance(task, TextTask)
    return task


def test_it_learns_from_no_private_text(monkeypatch: pytest.MonkeyPatch, train: Train) -> None:
    seen: list[str] = []

    def watch(rows: Rows, model: str) -> Sequence[str]:
        seen.extend(texts_of(rows, model))
        return texts_of(rows, model)

    monkeypatch.setattr("experiments.priors.prior.texts_of", watch)
    train(OWNED)
    assert len(seen) == 40
    assert set(seen) <= set(load_rows("sentences", "public", modality="text").inputs)
    assert not set(seen) & set(load_rows("sentences", "train", modality="text").inputs)


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, train: Train) -> None:
    state = torch.get_rng_state()
    trained = [train(OWNED, folder=folder) for folder in ("a", "b")]
    assert torch.equal(torch.get_rng_state(), state)
    assert trained[0] == trained[1]
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    other = train(merge(OWNED, {"seeds": [1]}), folder="c")
    assert other.sha256 != trained[0].sha256


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch, train: Train) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.5, 2.5])
    monkeypatch.setattr(prior, "_loss", lambda *_: next(losses))
    trained = train(OWNED, epochs=9, folder="stopped")
    assert trained.epochs == 2
    assert trained.perplexity == pytest.approx(7.389, abs=1e-3)
    assert next(losses, None) is None
    monkeypatch.undo()
    two = train(OWNED, epochs=2)
    assert two.epochs == 2
    assert trained.sha256 == two.sha256


def test_a_finished_prior_is_kept_and_another_one_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Train
) -> None:
    trained = train(OWNED)
    before = files_of(tmp_path / "prior")
    with monkeypatch.context() as patch:
        patch.setattr(prior, "load_setting", None)
        assert train(OWNED) == trained
    with pytest.raises(ConfigError, match=r"prior: the prior there has another width\. Name an"):
        train(OWNED, width=64)
    with pytest.raises(ConfigError, match=r"prior: the prior there has another auxiliary\. Name"):
        train(merge(OWNED, {"auxiliary": {"rows": 50}}))
    assert files_of(tmp_path / "prior") == before
    (tmp_path / "prior" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"prior: the weights there are altered\. Remove the"):
        train(OWNED)
    (tmp_path / "prior" / "prior.json").write_text("{")
    with pytest.raises(ConfigError, match=r"--out: .*prior\.json: not a valid TrainedPrior"):
        train(OWNED)
    (tmp_path / "prior" / "prior.json").unlink()
    with pytest.raises(ConfigError, match=r"it is there and no prior of fedsim's\. Name another"):
        train(OWNED)


def test_a_training_that_was_stopped_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Train
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prior, "write_json", stop)
    with pytest.raises(KeyboardInterrupt):
        train(OWNED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (IMAGES, r"task\.model: 'lenet' takes images, and a language prior is for texts\. Name an"),
        (TEXT, r"auxiliary: is missing.* Add \[auxiliary\] with dataset = \"\.\.\.\" or split"),
        (
            merge(OWNED, {"server_knows": {"auxiliary": False}}),
            r"server_knows\.auxiliary: it is off, .* Turn it on\.",
        ),
        (
            merge(OWNED, {"auxiliary": {"rows": 19}}),
            r"auxiliary: 19 rows are too few to learn a language from\. Name 20 or more",
        ),
        (
            merge(OWNED, {"sweep": {"task.model": ["tiny-bert", "tiny-gpt2"]}}),
            r"task\.model: it is 'tiny-bert' in one cell of some and 'tiny-gpt2' in another",
        ),
        (
            merge(OWNED, {"sweep": {"auxiliary.rows": [40, 50]}}),
            r"auxiliary: it is 'split=public rows=40' in one cell .* 'split=public rows=50' in an",
        ),
    ],
)
def test_what_gives_no_prior_is_refused(table: dict[str, Any], fault: str, train: Train) -> None:
    with pytest.raises(ConfigError, match=fault):
        train(table)


def test_experiments_of_a_suite_must_agree(tmp_path: Path, train: Train) -> None:
    more = merge(OWNED, {"name": "more", "federation": {"rounds": 1}, "seeds": [3]})
    assert train(OWNED, more).recipe.seed == 0
    private = merge(OWNED, {"name": "other", "task": {"split": "train[:50%]"}})
    with pytest.raises(ConfigError, match=r"task\.split: it is 'train' in one .* 'train\[:50%\]'"):
        train(OWNED, private)
    with pytest.raises(ConfigError, match=r"auxiliary: it is 'split=public rows=40' .* None in an"):
        train(OWNED, merge(TEXT, {"name": "bare"}))


def test_a_width_that_heads_do_not_fill_is_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"--width 40: it is no multiple of 32\. Write one that"):
        train(OWNED, width=40)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, train: Train) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/prior: cannot be made \(.*\)\. Name another"):
        train(OWNED, folder="file/prior")


def test_gpt2_gets_its_own_start_and_end(tmp_path: Path, train: Train) -> None:
    table = merge(OWNED, {"task": {"model": "tiny-gpt2"}})
    train(table)
    task = task_of(table)
    config = json.loads((tmp_path / "prior" / "config.json").read_text())
    ids = task.tokens(["Rain."])[0]
    assert (config["bos_token_id"], config["eos_token_id"]) == (ids[0], ids[-1])
    assert config["n_positions"] == 24
    load_prior(str(tmp_path / "prior"), task, torch.device("cpu"))


def test_the_command_says_where_it_lies_and_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--width", "32", "--layers", "1", "--epochs", "1", "--seed", "5"]
    sets = ["--set", "auxiliary.rows=40", "--set", "task.max_length=16"]
    monkeypatch.setattr(sys, "argv", ["fedsim", "prior", "quickstart-text", *sizes, *sets])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    out, progress = capsys.readouterr()
    assert out.startswith("prior for tiny-gpt2: 38 texts, 1 epochs, perplexity ")
    assert out.endswith('on 2 held out; set prior = "priors/quickstart-text" under [[attacks]]\n')
    assert "prior: 3/3" in progress
    record = json.loads((tmp_path / "priors" / "quickstart-text" / "prior.json").read_text())
    assert (record["recipe"]["seed"], record["recipe"]["task"]["max_length"]) == (5, 16)
    monkeypatch.setattr(sys, "argv", ["fedsim", "prior", "quickstart-images", "--quiet"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("fedsim: task.model: 'mlp' takes images")
