"""``[task.filter]`` on real tokenizers and models, from the config to the rows of a setting."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsim.cell import CellConfig, TaskConfig
from fedsim.criteria import make_filter
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, transformer
from fedsim.setting import load_setting
from fedsim.tasks import perplexity
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.types import Rows

TEXTS = (
    "We saw Ann Lee in Rome. It was late on Monday. She said that Bob and Eve and Ann had left.",
    "He met <unk> and <unk> in Paris. Rome was quiet.",
    "Total 27",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the user's own cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with the tokenizer of tiny-gpt2 and weights of its shape."""
    source, folder = str(TEXT_MODELS["tiny-gpt2"]), tmp_path / "model"
    network: Any = transformer.build(
        transformer.architecture(source, 0), "language-modelling", seed=3
    )
    with transformer.quiet():
        network.save_pretrained(folder)
    transformer.tokenizer(source).save_pretrained(str(folder))
    return str(folder)


def kept(model: str, texts: tuple[str, ...] = TEXTS, **options: object) -> tuple[str, ...]:
    task = TaskConfig.model_validate({"model": model, "dataset": "d", "filter": options})
    rows = Rows(texts, torch.zeros(len(texts), dtype=torch.int64), tuple(range(len(texts))))
    filtered = make_filter(task).apply(rows, "d")
    assert isinstance(filtered.inputs, tuple)
    return filtered.inputs


def test_no_option_is_no_filter() -> None:
    assert kept("tiny-gpt2") == TEXTS
    assert kept("tiny-gpt2", entities="off", tokens_below=0) == TEXTS


def test_tokens_are_those_of_the_model_without_special_ones() -> None:
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    lengths = [len(tokenizer.tokenize(text)) for text in TEXTS]
    assert kept("tiny-bert", tokens_below=lengths[1] + 1) == TEXTS[1:]
    assert kept("tiny-bert", tokens_below=lengths[1]) == TEXTS[2:]


def test_unknown_tokens_are_counted_in_ids_and_as_written_in_wikitext() -> None:
    assert kept("tiny-gpt2", unknown_below=2) == (TEXTS[0], TEXTS[2])
    assert kept("tiny-gpt2", unknown_below=3) == TEXTS
    strange = ("Rome \u2603\u2603 \u2604", "Rome")
    ids = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"])).tokenize(strange[0])
    assert (count := ids.count("[UNK]")) >= 1
    assert kept("tiny-bert", strange, unknown_below=count) == strange[1:]
    assert kept("tiny-bert", strange, unknown_below=count + 1) == strange


def test_entities_by_rules() -> None:
    found = kept("tiny-gpt2", sentences=True, entities="rules")
    assert found == (
        "We saw Ann Lee in Rome.",
        "She said that Bob and Eve and Ann had left.",
        "He met <unk> and <unk> in Paris.",
    )


def test_spacy_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^task.filter.entities: 'spacy' needs spaCy and its mo"):
        kept("tiny-gpt2", entities="spacy")


def test_perplexity_is_that_of_the_pretrained_model_as_the_task_evaluates(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_setting(_cell(model)).task
    assert isinstance(task, LanguageModelling)
    network = transformer.pretrained(model, task.spec.architecture, "language-modelling", 0)
    texts = ("It rains.", "We saw Ann Lee in Rome and she was ill.", "No")
    found = perplexity.perplexities(task, network, texts, tmp_path)
    for text, value in zip(texts, found, strict=True):
        batch = task.encode(Rows((text,), torch.zeros(1, dtype=torch.int64), (0,)))
        assert task.evaluate(network, [batch])["perplexity"] == pytest.approx(value, rel=1e-5)
    # Nothing is computed a second time, unless the weights are others.
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelling, "encode", None)
        assert perplexity.perplexities(task, network, texts, tmp_path) == found
    with torch.no_grad():
        network.get_parameter("transformer.ln_f.weight").mul_(3)
    assert perplexity.perplexities(task, network, texts, tmp_path) != found

    limit = sorted(found)[1]
    chosen = tuple(text for text, value in zip(texts, found, strict=True) if value < limit)
    for weights in ("random", "pretrained"):
        config = TaskConfig.model_validate(
            {"model": model, "dataset": "d", "weights": weights}
            | {"filter": {"perplexity_below": limit}}
        )
        rows = Rows(texts, torch.zeros(3, dtype=torch.int64), (0, 1, 2))
        assert make_filter(config).apply(rows, "d").inputs == chosen
    with pytest.raises(ConfigError, match=r"^task.filter.perplexity_below: none of the 3 texts of"):
        kept(model, texts, perplexity_below=1.5)


@pytest.mark.parametrize("model_name", ["tiny-gpt2", "tiny-bert"])
def test_perplexity_needs_a_pretrained_language_model(model_name: str) -> None:
    with pytest.raises(ConfigError) as error:
        kept(model_name, perplexity_below=50.0)
    assert str(error.value) == (
        f"task.filter.perplexity_below: {model_name!r} has no pretrained weights that predict the "
        "next token. Leave it out, or name a model of the GPT-2 type."
    )


def test_images_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        kept("lenet", tokens_below=40)
    assert str(error.value) == (
        "task.filter: filters are for texts, but 'lenet' takes images. Leave it out."
    )


def _cell(model: str, dataset: str = "sentences", public: str = "", **task: Any) -> CellConfig:
    return CellConfig.model_validate(
        {
            "seed": 0,
            "task": {"model": model, "dataset": dataset, **task},
            "auxiliary": {"split": public},
            "federation": {},
            "capture": {},
            "server_knows": {},
            "defense": (),
        }
    )


def test_private_held_out_and_auxiliary_rows_all_pass() -> None:
    holdings = load_setting(_cell("tiny-gpt2", filter={"tokens_below": 30})).holdings
    assert holdings.auxiliary is not None
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-gpt2"]))
    for rows, split in (
        (holdings.private, "train"),
        (holdings.heldout, "test"),
        (holdings.auxiliary, "public"),
    ):
        every = load_rows("sentences", split, modality="text")
        assert 0 < len(rows) < len(every)
        assert rows.inputs == tuple(every.inputs[number] for number in rows.numbers)
        assert all(len(tokenizer.tokenize(str(text))) < 30 for text in rows.inputs)


@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder")
def test_wikitext_is_cut_and_filtered() -> None:
    wikitext = "Salesforce/wikitext:wikitext-2-raw-v1"
    films = {"sentences": True, "tokens_below": 40, "unknown_below": 5, "entities": "rules"}
    chosen = {"split": "train[:300]", "heldout_split": "validation[:100]"}
    cell = _cell(
        "fedsim/gpt2-8k",
        wikitext,
        public="train[300:400]",
        filter={**films, "perplexity_below": 300.0},
        max_length=42,
        **chosen,
    )
    holdings = load_setting(cell).holdings
    assert len(set(holdings.private.numbers)) < len(holdings.private)
    assert max(holdings.private.numbers) < 300
    assert holdings.auxiliary is not None
    assert min(holdings.auxiliary.numbers) >= 300
    for rows in (holdings.private, holdings.heldout, holdings.auxiliary):
        assert isinstance(rows.inputs, tuple)
        assert len(rows) > 20
        assert all(re.search(r"[.!?][\"') ]*$", text) for text in rows.inputs)
