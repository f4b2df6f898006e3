"""What the attacker owns is no private text, also once both are cut."""

import os
import re
from typing import Any

import pytest
import torch

from fedsim.config.cell import AuxiliaryConfig, CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.setting import Setting, _apart, load_setting, make_filter
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, transformer
from fedsim.tasks.text import TextTask, texts_of
from fedsim.types import Rows


def loaded(max_length: int) -> Setting:
    task = TaskConfig(
        model="tiny-gpt2", dataset="sentences", heldout_split="test", max_length=max_length
    )
    return load_setting(
        CellConfig(
            seed=0,
            task=task,
            auxiliary=AuxiliaryConfig(split="public"),
            federation=FederationConfig(clients=2),
            capture=CaptureConfig(),
            server_knows=ServerKnows(),
            defense=(),
        )
    )


def test_no_auxiliary_text_is_private_after_the_cut() -> None:
    setting = loaded(6)
    task, auxiliary = setting.task, setting.holdings.auxiliary
    assert isinstance(task, TextTask)
    assert auxiliary is not None

    def lines(rows: Rows) -> set[tuple[int, ...]]:
        return set(map(tuple, task.tokens(texts_of(rows, "tiny-gpt2"))))

    assert lines(auxiliary).isdisjoint(lines(setting.holdings.private))
    assert 900 < len(auxiliary) < 1000  # some of a thousand begin like private ones


def test_a_cut_that_leaves_nothing_is_one_line() -> None:
    setting = loaded(6)
    private = setting.holdings.private
    assert isinstance(setting.task, TextTask)
    with pytest.raises(ConfigError, match=r"^auxiliary: of 6 tokens every text is a private one"):
        _apart(setting.task, private, private)


TEXTS = (
    "We saw Ann Lee in Rome. It was late on Monday. She said that Bob and Eve and Ann had left.",
    "He met <unk> and <unk> in Paris. Rome was quiet.",
    "Total 27",
)


def kept(model: str, texts: tuple[str, ...] = TEXTS, **options: object) -> tuple[str, ...]:
    task = TaskConfig.model_validate({"model": model, "dataset": "d", "filter": options})
    rows = Rows(texts, torch.zeros(len(texts), dtype=torch.int64), tuple(range(len(texts))))
    filtered = make_filter(task).apply(rows, "d")
    assert isinstance(filtered.inputs, tuple)
    return filtered.inputs


def test_no_option_is_no_filter() -> None:
    assert kept("tiny-gpt2") == TEXTS
    assert kept("tiny-gpt2", tokens_below=0) == TEXTS


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
    films = {"sentences": True, "tokens_below": 40, "unknown_below": 5}
    chosen = {"split": "train[:300]", "heldout_split": "validation[:100]"}
    cell = _cell(
        "fedsim/gpt2-8k",
        wikitext,
        public="train[300:400]",
        filter=films,
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
