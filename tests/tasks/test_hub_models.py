import os
from pathlib import Path

import pytest
import torch

from fedsim.config.cell import TaskConfig
from fedsim.models.embeddings import embedding_names
from fedsim.tasks import initial_weights, load_task, make_task, save_task, task_kind
from fedsim.types import Rows

pytestmark = pytest.mark.skipif(
    "FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB does not name a folder of hub models"
)
MINILM, GPT2 = "sentence-transformers/all-MiniLM-L6-v2", "fedsim/gpt2-8k"
KIND = "masked-language-modelling"
TEXTS = Rows(
    ("A man is riding a bicycle down the street.", "The dog sleeps."), torch.tensor([0, 1]), (0, 1)
)


def test_minilm_is_a_classifier_with_a_seeded_head() -> None:
    config = TaskConfig.model_validate({"model": MINILM, "dataset": "here"})
    assert task_kind(config) == "text-classification"
    task = make_task(config, TEXTS)
    first, again, other = (initial_weights(task, config, seed) for seed in (1, 1, 2))
    assert sum(value.numel() for value in first.values()) == 22_713_216 + 2 * 385
    assert {value.dtype for value in first.values()} == {torch.float32}
    changed = {name for name in first if not torch.equal(first[name], other[name])}
    assert changed == {"classifier.weight"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    batch = task.encode(TEXTS)
    assert (batch.inputs[:, 0] == 101).all()
    assert task.spec.special_ids == (0, 101, 102, 103)
    assert task.examples(batch).words[1] == "the dog sleeps."
    names = embedding_names(task.model(first))
    assert names.word == "bert.embeddings.word_embeddings.weight"


def test_minilm_is_a_masked_language_model_with_a_seeded_head() -> None:
    config = TaskConfig.model_validate({"model": MINILM, "dataset": "here", "kind": KIND})
    task = make_task(config, TEXTS)
    first, again, other = (initial_weights(task, config, seed) for seed in (1, 1, 2))
    # Without the pooler; the head is a square layer, a norm and a bias for each word.
    pooler, head = 384 * 385, 384 * 385 + 2 * 384 + 30522
    assert sum(value.numel() for value in first.values()) == 22_713_216 - pooler + head
    changed = {name for name in first if not torch.equal(first[name], other[name])}
    assert changed == {"cls.predictions.transform.dense.weight"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    classifier = TaskConfig.model_validate({"model": MINILM, "dataset": "here"})
    body = initial_weights(make_task(classifier, TEXTS), classifier, 1)
    shared = first.keys() & body.keys()
    assert shared == {name for name in first if name.startswith("bert.")}
    assert all(torch.equal(first[name], body[name]) for name in shared)
    batch = task.encode(TEXTS)
    assert task.examples(batch).words[1] == "the dog sleeps."
    assert task.loss(task.model(first), batch).isfinite()


def test_gpt2_without_a_padding_token_predicts_english(tmp_path: Path) -> None:
    config = TaskConfig.model_validate({"model": GPT2, "dataset": "here"})
    task = make_task(config, TEXTS)
    weights = initial_weights(task, config, 0)
    assert "lm_head.weight" not in weights
    save_task(task, tmp_path)
    loaded = load_task(tmp_path)
    batch = loaded.encode(TEXTS)
    assert loaded.examples(batch).words == TEXTS.inputs
    network = loaded.model(weights)
    english = loaded.evaluate(network, [batch])["perplexity"]
    backwards = Rows(
        tuple(" ".join(reversed(text.split())) for text in TEXTS.inputs),
        TEXTS.labels,
        TEXTS.numbers,
    )
    assert english < 60
    assert loaded.evaluate(network, [loaded.encode(backwards)])["perplexity"] > 5 * english
