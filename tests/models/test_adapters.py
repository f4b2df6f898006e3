"""Adapters beside frozen layers: what is trained, what they start from, what they compute."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from packaging.version import Version
from torch import Tensor

from fedsim.config.cell import TaskConfig
from fedsim.errors import ConfigError
from fedsim.models import transformer
from fedsim.models.adapters import DEFAULT_TARGETS, adapt, is_adapter, second_factor
from fedsim.tasks import initial_weights, load_task, make_task, save_task
from fedsim.tasks.base import Task, state
from fedsim.types import Rows, Tensors
from tests.tasks.cases import IMAGES, TEXTS, capture

TINY = ["tiny-bert", "tiny-gpt2", "transformer3"]


def config(model: str, **options: Any) -> TaskConfig:
    table = {"model": model, "dataset": "here", "lora_rank": 4, **options}
    return TaskConfig.model_validate(table)


def make(model: str, rows: Rows = TEXTS, **options: Any) -> tuple[Task, TaskConfig]:
    task_config = config(model, **options)
    return make_task(task_config, rows), task_config


def adapted(model: str, **options: Any) -> tuple[Task, Tensors]:
    """A task whose ``B`` are not 0."""
    task, made = make(model, **options)
    rng = torch.Generator().manual_seed(0)
    weights = initial_weights(task, made, 0)
    for name, value in weights.items():
        if is_adapter(name):
            value.add_(0.3 * torch.randn(value.shape, generator=rng))
    return task, weights


def output(task: Task, weights: Tensors) -> Tensor:
    batch = task.encode(TEXTS)
    network = task.model(weights)
    logits: Tensor = network(input_ids=batch.inputs, attention_mask=batch.mask).logits
    return logits.detach()


def without(task: Task) -> Task:
    return type(task)(task.spec.model_copy(update={"adapters": None}), task.tokenizer)  # type: ignore[attr-defined,call-arg]


def merged(task: Task, weights: Tensors) -> Tensors:
    """``W + (alpha / rank) B A`` under the names of the plain model."""
    lora = task.spec.adapters
    assert lora is not None
    plain = {name.replace(".base_layer", ""): v for name, v in weights.items()}
    for name, a in weights.items():
        if second_factor(name) == name or not is_adapter(name):
            continue
        change = lora.alpha / lora.rank * weights[second_factor(name)] @ a
        layer = name.split(".lora_A")[0] + ".weight"
        plain[layer] = plain[layer] + (change.T if "c_attn" in name else change)
    return {name: value for name, value in plain.items() if not is_adapter(name)}


@pytest.mark.some(2)
@pytest.mark.parametrize("model", TINY)
def test_only_adapters_are_trained_and_a_head(model: str) -> None:
    for head in (True, False):
        task, made = make(model, lora_head=head)
        network = task.model(initial_weights(task, made, 0))
        trained = {name for name, own in network.named_parameters() if own.requires_grad}
        heads = {"classifier.weight", "classifier.bias"} if model == "tiny-bert" and head else set()
        assert {name for name in trained if not is_adapter(name)} == heads
        targets = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in trained - heads}
        assert targets == set(DEFAULT_TARGETS[str(task.spec.architecture["model_type"])])
        shapes = {tuple(network.get_parameter(name).shape) for name in trained if "lora_A" in name}
        assert {shape[0] for shape in shapes} == {4}


@pytest.mark.parametrize("model", TINY)
def test_adapters_change_nothing_at_first_and_depend_on_the_seed_alone(model: str) -> None:
    task, made = make(model)
    before = torch.get_rng_state()
    first, other = (initial_weights(task, made, seed) for seed in (3, 4))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    again = initial_weights(task, made, 3)
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    factors = [name for name in first if is_adapter(name)]
    assert all(("lora_B" in name) == torch.equal(first[name], other[name]) for name in factors)
    assert not any(first[name].any() for name in factors if "lora_B" in name)
    plain = without(task)
    bare = initial_weights(plain, made.model_copy(update={"lora_rank": 0}), 3)
    assert torch.equal(output(task, first), output(plain, bare))


@pytest.mark.parametrize("model", TINY)
def test_adapters_are_a_change_of_the_weights(model: str) -> None:
    task, weights = adapted(model, lora_alpha=6.0)
    whole = output(without(task), merged(task, weights))
    torch.testing.assert_close(output(task, weights), whole, atol=1e-4, rtol=1e-4)
    start = output(without(task), merged(task, {**weights, **zeros(weights)}))
    assert float((whole - start).abs().max()) > 1e-2


def test_options_of_peft() -> None:
    if Version(peft.__version__) < Version("0.12"):
        with pytest.raises(ConfigError, match=r"needs peft 0\.12, and"):
            make("tiny-gpt2", adapters="dora")[0].build()
        pytest.skip("peft before 0.12 has no such options")
    plain, weights = adapted("tiny-gpt2")
    stable = make("tiny-gpt2", adapters="rslora", lora_alpha=8.0)[0]
    torch.testing.assert_close(output(stable, weights), output(plain, weights))  # 8/2 = 16/4
    whole = make("tiny-bert", lora_saved=("word_embeddings", "pooler"), lora_head=False)[0].build()
    sent = {name for name, own in whole.named_parameters() if own.requires_grad}
    assert {name for name in sent if not is_adapter(name)} == {
        "bert.embeddings.word_embeddings.weight",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }
    task, made = make("tiny-gpt2", adapters="dora")
    start = initial_weights(task, made, 0)
    bare = initial_weights(without(task), made.model_copy(update={"lora_rank": 0}), 0)
    torch.testing.assert_close(output(task, start), output(without(task), bare))
    assert sum("magnitude" in name for name in start) == 2
    dropped = make("tiny-gpt2", lora_dropout=0.5)[0].model(weights).train()
    batch = plain.encode(TEXTS)
    ids = {"input_ids": batch.inputs, "attention_mask": batch.mask}
    first, second = (dropped(**ids).logits for _ in range(2))
    assert not torch.equal(first, second)


def zeros(weights: Tensors) -> Tensors:
    return {name: torch.zeros_like(v) for name, v in weights.items() if "lora_B" in name}


@pytest.mark.parametrize("model", TINY)
def test_the_gradient_of_a_is_zero_while_b_is(model: str) -> None:
    task, made = make(model)
    weights = initial_weights(task, made, 0)
    batch = task.encode(TEXTS)
    first = task.gradient(task.model(weights), batch)
    assert all("lora_A" not in name or not value.any() for name, value in first.items())
    assert all(value.any() for name, value in first.items() if "lora_B" in name)
    task, weights = adapted(model)
    later = task.gradient(task.model(weights), batch)
    assert list(later) == list(first)
    assert all(value.any() for value in later.values())


def test_a_task_is_read_back_with_its_adapters(tmp_path: Path) -> None:
    task, weights = adapted("tiny-bert", lora_targets=("dense",), lora_head=False)
    save_task(task, tmp_path)
    again = load_task(tmp_path)
    assert again.spec == task.spec
    assert torch.equal(output(again, weights), output(task, weights))


def test_adapters_beside_a_model_that_was_trained_without(tmp_path: Path) -> None:
    task, made = make("tiny-bert")
    plain = without(task)
    trained = {k: v + 0.01 for k, v in initial_weights(plain, config("tiny-bert"), 5).items()}
    capture(tmp_path, 2, trained)
    source = made.model_copy(update={"weights": f"{tmp_path}@2"})
    tensors = initial_weights(task, source, 0)
    assert torch.equal(output(task, tensors), output(plain, trained))
    capture(tmp_path, 3, {k: v + 0.01 for k, v in tensors.items()})
    again = initial_weights(task, source.model_copy(update={"weights": f"{tmp_path}@3"}), 0)
    assert all(torch.equal(again[name], tensors[name] + 0.01) for name in tensors)


def test_wrong_targets_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        make("tiny-bert", lora_targets=("qery",))[0].build()
    assert str(error.value) == (
        "task.lora_targets: 'qery' is not a linear layer of BertForSequenceClassification. "
        "Choose from dense, key, query, value."
    )
    for option, value in (("targets", ("query",)), ("dropout", 0.1)):
        options: dict[str, Any] = {f"lora_{option}": value}
        with pytest.raises(ConfigError, match=f"task.lora_{option}: .* needs adapters"):
            make("tiny-bert", lora_rank=0, **options)
    with pytest.raises(ConfigError, match=r"task.lora_rank: 4 needs .* but 'ia3' has none"):
        make("tiny-bert", adapters="ia3")
    with pytest.raises(ConfigError, match=r"no module 'embed'\. Did you mean"):
        make("tiny-bert", lora_saved=("embed",))[0].build()
    with pytest.raises(ConfigError, match=r"'resnet20' is an image model"):
        make("resnet20", IMAGES)


def test_a_family_without_defaults_has_to_name_its_layers(tmp_path: Path) -> None:
    sizes = {"vocab_size": 2000, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
    table = {"model_type": "gpt_neo", **sizes, "attention_types": [[["global"], 1]]}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps({**table, **ends}))
    own: dict[str, Any] = {
        "tokenizer": "tiny-gpt2",
        "kind": "language-modelling",
        "weights": "random",
        "unchecked": True,
    }
    with pytest.raises(ConfigError, match="there is no default for a model of the type 'gpt_neo'"):
        make(str(tmp_path), **own)
    task, made = make(str(tmp_path), **own, lora_targets=("q_proj",))
    assert any(map(is_adapter, initial_weights(task, made, 0)))


def test_layers_of_both_kinds_get_adapters() -> None:
    network = transformer.build(make("tiny-gpt2")[0].spec.architecture, "language-modelling")
    lora = make("tiny-gpt2", lora_targets=("c_attn", "lm_head"))[0].spec.adapters
    assert lora is not None
    shapes = {k: tuple(v.shape) for k, v in state(adapt(network, lora)).items() if is_adapter(k)}
    assert shapes["transformer.h.0.attn.c_attn.lora_B.default.weight"] == (384, 4)
    assert shapes["lm_head.lora_B.default.weight"] == (2000, 4)
