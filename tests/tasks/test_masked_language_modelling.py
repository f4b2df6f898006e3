"""What is hidden, what the model learns from it, and what counts as the private text."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from experiments.checks.capture_check import examine
from experiments.pipeline import execute
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, families, transformer
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import load_state, state
from fedsim.tasks.masked_language_modelling import MaskedLanguageModelling, unmasked
from fedsim.types import Batch, Rows
from tests.apps.cases import TEXT, Make

KIND = "masked-language-modelling"
MASK = 4
SENTENCES = load_rows("sentences", "train", modality="text")
CONFIG = TaskConfig.model_validate({"model": "tiny-bert", "dataset": "sentences", "kind": KIND})
SMALL = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "embedding_size": 6,
    "pad_token_id": 0,
}
DISTILBERT = {"vocab_size": 40, "dim": 8, "hidden_dim": 8, "n_layers": 1, "n_heads": 2}
FAMILIES = [name for name, family in families.FAMILIES.items() if KIND in family.kinds]


@pytest.fixture(scope="module")
def task() -> MaskedLanguageModelling:
    made = make_task(CONFIG, SENTENCES)
    assert isinstance(made, MaskedLanguageModelling)
    return made


@pytest.fixture(scope="module")
def batch(task: MaskedLanguageModelling) -> Batch:
    return task.encode(SENTENCES)


def test_loss_is_the_librarys_own(task: MaskedLanguageModelling, batch: Batch) -> None:
    network = task.model(initial_weights(task, CONFIG, 0))
    some = batch[:5]
    output = network(input_ids=some.inputs, attention_mask=some.mask, labels=some.labels)
    torch.testing.assert_close(task.loss(network, some), output.loss)


def test_no_chosen_token_no_loss(task: MaskedLanguageModelling, batch: Batch) -> None:
    network = task.model(initial_weights(task, CONFIG, 0))
    none = replace(batch[:2], labels=torch.full_like(batch[:2].labels, -100))
    assert task.loss(network, none).item() == 0
    assert max(g.abs().max() for g in task.gradient(network, none).values()) == 0


def test_shares_are_the_papers(task: MaskedLanguageModelling, batch: Batch) -> None:
    chosen, texts = batch.labels != -100, unmasked(batch).inputs
    words = ~torch.isin(texts, torch.tensor([0, 2, 3, MASK]))
    assert not (chosen & ~words).any()
    for own, line in zip(chosen.sum(1).tolist(), words.sum(1).tolist(), strict=True):
        assert own == max(1, round(0.15 * line))
    shown, own = batch.inputs[chosen], batch.labels[chosen]
    assert len(own) > 400
    hidden, kept = shown == MASK, shown == own
    # Three standard errors of 400 draws.
    assert hidden.double().mean().item() == pytest.approx(0.8, abs=0.06)
    assert kept.double().mean().item() == pytest.approx(0.1, abs=0.045)
    other = shown[~hidden & ~kept]
    assert not torch.isin(other, torch.tensor(task.spec.special_ids)).any()
    assert len(set(other.tolist())) > len(other) // 2
    assert torch.equal(batch.inputs[~chosen], texts[~chosen])


def test_every_text_has_a_chosen_token(task: MaskedLanguageModelling) -> None:
    one = task.encode(Rows(("Rain", "."), torch.tensor([0, 0]), (0, 1)))
    assert (one.labels != -100).sum(1).tolist() == [1, 1]


def test_masking_depends_on_the_text_alone(task: MaskedLanguageModelling, batch: Batch) -> None:
    order = [17, 3, 3, 8]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = task.encode(SENTENCES.take(order))
    assert torch.equal(torch.get_rng_state(), before)
    width = again.inputs.shape[1]
    assert torch.equal(again.inputs, batch.inputs[order][:, :width])
    assert torch.equal(again.labels, batch.labels[order][:, :width])
    assert batch.mask is not None
    assert width < batch.inputs.shape[1]  # padding plays no part
    # Places differ from text to text.
    assert len({int(line.nonzero()[0, 0]) for line in batch.labels[:20] != -100}) > 3


def test_the_private_text_is_the_one_before_the_masking(
    task: MaskedLanguageModelling, batch: Batch
) -> None:
    classifier = make_task(CONFIG.model_copy(update={"kind": "text-classification"}), SENTENCES)
    expected = classifier.examples(classifier.encode(SENTENCES))
    found = task.examples(batch)
    assert found.words == expected.words
    assert found.words_special == expected.words_special
    assert found.tokens == expected.tokens


@pytest.mark.parametrize("labels", [torch.full((1,), -1), torch.full((1, 6), -1)])
def test_a_guess_without_labels_is_taken_as_it_is(
    task: MaskedLanguageModelling, labels: torch.Tensor
) -> None:
    ids = torch.tensor([[2, 100, MASK, 101, 3, 0]])
    guess = Batch(ids, labels, torch.tensor([[1, 1, 1, 1, 1, 0]]))
    # The mask token holds a word's place, so that the words behind it stay where they are.
    assert task.examples(guess).tokens == ((100, MASK, 101),)
    assert "[MASK]" in task.examples(guess).words[0]
    filled = replace(guess, labels=torch.tensor([[-100, -100, 77, -1, -1, -100]]))
    assert task.examples(filled).tokens == ((100, 77, 101),)


def test_utility_counts_chosen_tokens_alone(task: MaskedLanguageModelling, batch: Batch) -> None:
    network = task.model(initial_weights(task, CONFIG, 0))
    some = batch[:4]
    chosen = some.labels != -100
    bias = network.get_parameter("cls.predictions.bias")
    favourite = int(some.labels[chosen][0])
    with torch.no_grad():
        bias.fill_(-50.0)[favourite] = 50.0
    share = (some.labels[chosen] == favourite).double().mean().item()
    assert 0 < share < 1
    assert task.evaluate(network, [some])["accuracy"] == pytest.approx(share)


def test_a_tied_head_crosses_once_and_stays_tied(task: MaskedLanguageModelling) -> None:
    network = task.model(initial_weights(task, CONFIG, 0))
    tensors = state(network)
    twice = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert network.state_dict().keys() - tensors.keys() == twice
    tensors["bert.embeddings.word_embeddings.weight"] += 1
    tensors["cls.predictions.bias"] += 2
    load_state(network, tensors)
    weights = network.state_dict()
    assert torch.equal(
        weights["cls.predictions.decoder.weight"], tensors["bert.embeddings.word_embeddings.weight"]
    )
    assert torch.equal(weights["cls.predictions.decoder.bias"], tensors["cls.predictions.bias"])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_tied_head(family: str) -> None:
    small = DISTILBERT if family == "distilbert" else SMALL
    network: Any = transformer.build({"model_type": family, **small}, "masked-language-modelling")
    head, words = network.get_output_embeddings().weight, network.get_input_embeddings().weight
    assert head is words
    named = [name for name, value in network.named_parameters() if value is words]
    assert len(named) == 1
    assert named[0] in state(network)


def test_families() -> None:
    older = {"albert", "bert", "distilbert", "electra", "mpnet", "roberta"}
    assert set(FAMILIES) == older | {"deberta", "deberta-v2"}


def test_pretrained_head(tmp_path: Path) -> None:
    bert = {"model_type": "bert", **SMALL}
    whole: Any = transformer.build(bert, "masked-language-modelling", 5)
    whole.save_pretrained(tmp_path / "whole")
    whole.bert.save_pretrained(tmp_path / "body")
    weights = state(whole)

    def load(name: str, seed: int) -> dict[str, torch.Tensor]:
        folder = str(tmp_path / name)
        return state(transformer.pretrained(folder, bert, "masked-language-modelling", seed))

    loaded = load("whole", 1)
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    first, again, other = (load("body", seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in weights)
    assert all(
        torch.equal(first[name], weights[name]) for name in weights if name.startswith("bert.")
    )
    changed = {name for name in weights if not torch.equal(first[name], other[name])}
    assert changed == {"cls.predictions.transform.dense.weight"}


def test_pretrained_refuses_a_body_that_lacks_a_tensor(tmp_path: Path) -> None:
    bert = {"model_type": "bert", **SMALL}
    body: Any = transformer.build(bert, "masked-language-modelling")
    tensors = {k: v for k, v in body.bert.state_dict().items() if "word_embeddings" not in k}
    body.bert.save_pretrained(tmp_path, state_dict=tensors)
    with pytest.raises(ConfigError) as error:
        transformer.pretrained(str(tmp_path), bert, "masked-language-modelling", 0)
    assert str(error.value) == (
        f"task.weights: {str(tmp_path)!r} has no fitting tensor for "
        "'bert.embeddings.word_embeddings.weight' (1 in all). "
        "Set weights = 'random', or name another model."
    )


def test_tokenizer_without_a_mask_token(tmp_path: Path) -> None:
    for path in TEXT_MODELS["tiny-bert"].iterdir():
        data = json.loads(path.read_text())
        if path.name == "tokenizer_config.json":
            data.pop("mask_token")
            data["tokenizer_class"] = "PreTrainedTokenizerFast"
        (tmp_path / path.name).write_text(json.dumps(data))
    with pytest.raises(ConfigError) as error:
        make_task(CONFIG.model_copy(update={"model": str(tmp_path)}), SENTENCES)
    assert str(error.value) == (
        f"task.kind: the tokenizer of {str(tmp_path)!r} has no mask token. "
        "Choose a model of the BERT type, or another kind."
    )


@pytest.mark.slow
def test_an_experiment_from_the_simulation_to_the_scores(make_run: Make) -> None:
    run = make_run(TEXT, task={"kind": KIND}, server_knows={"labels": True})
    assert execute(run, ("simulate", "attack", "score"), quiet=True).statuses == {"done": 12}
    assert examine(run).faults == 0
    store = run.cells[0].captures
    assert [store.record(key).knowledge.labels for key in store.keys()] == [None] * 6
    rows = pq.read_table(run.root / "scores.parquet").to_pylist()
    assert {row["task"] for row in rows} == {KIND}
    assert "label_accuracy" not in {row["metric"] for row in rows}

    def leaked(attack: str, metric: str) -> list[float]:
        mine = {"attack": attack, "metric": metric, "control": "none"}
        return [row["value"] for row in rows if mine.items() <= row.items()]

    # All but the chosen words can be read, and those are what keeps a text from being whole.
    assert len(leaked("embedding_rows", "token_accuracy")) == 6
    assert min(leaked("embedding_rows", "token_accuracy")) > 0.7
    assert mean(leaked("embedding_rows", "exact_match")) < 1
    assert max(leaked("prior_only", "token_accuracy")) < 0.5
    metrics = {row["metric"] for row in pq.read_table(run.root / "utility.parquet").to_pylist()}
    assert metrics == {"loss", "accuracy", "perplexity"}
