"""Virtual tokens: the outputs and gradients of peft's own model, and those of a cache."""

from typing import Any

import peft
import pytest
import torch

from fedsim.config.cell import TaskConfig
from fedsim.models import transformer
from fedsim.models.prompts import NAME, is_prompt
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, state
from fedsim.types import Tensors
from tests.tasks.cases import TEXTS

METHODS = ["prompt", "p-tuning", "prefix"]


def made(model: str, method: str) -> tuple[Task, Tensors]:
    table = {"model": model, "dataset": "here", "adapters": method, "virtual_tokens": 3}
    config = TaskConfig.model_validate(table)
    task = make_task(config, TEXTS)
    return task, initial_weights(task, config, 0)


def of_peft(model: str, method: str, task: Task, weights: Tensors) -> Any:
    configs = {
        "prompt": peft.PromptTuningConfig,
        "p-tuning": peft.PromptEncoderConfig,
        "prefix": peft.PrefixTuningConfig,
    }
    kind = "CAUSAL_LM" if "gpt2" in model else "SEQ_CLS"
    bare = transformer.build(task.spec.architecture, task.spec.kind)
    theirs = peft.get_peft_model(bare, configs[method](task_type=kind, num_virtual_tokens=3))
    named = dict(theirs.named_parameters())
    for name, value in weights.items():
        for theirs_name in (name, f"base_model.{name}", f"base_model.{_saved(name)}"):
            if theirs_name in named:
                named[theirs_name].data.copy_(value)
    return theirs.eval()


def _saved(name: str) -> str:
    return name.replace("classifier.", "classifier.modules_to_save.default.")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-bert"])
def test_a_network_computes_what_that_of_peft_does(model: str, method: str) -> None:
    task, weights = made(model, method)
    network, theirs = task.model(weights), of_peft(model, method, task, weights)
    batch = task.encode(TEXTS)
    with torch.no_grad():
        given = {"input_ids": batch.inputs, "attention_mask": batch.mask}
        mine, other = network(**given).logits, theirs(**given).logits
    if model == "tiny-gpt2":
        other = other[:, -mine.shape[1] :]
    seen = batch.mask.bool() if model == "tiny-gpt2" else slice(None)  # type: ignore[union-attr]
    assert torch.allclose(mine[seen], other[seen], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-bert"])
def test_virtual_tokens_alone_are_trained_and_a_head(model: str, method: str) -> None:
    task, weights = made(model, method)
    network = task.model(weights)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    heads = {"classifier.weight", "classifier.bias"} if model == "tiny-bert" else set()
    assert {name for name in trained if not is_prompt(name)} == heads
    assert any(name.startswith(NAME) for name in trained)
    gradient = task.gradient(network, task.encode(TEXTS))
    assert all(bool(value.any()) for name, value in gradient.items() if is_prompt(name))
    assert state(network).keys() == weights.keys()


@pytest.mark.parametrize("method", METHODS)
def test_a_cache_holds_the_virtual_tokens_once(method: str) -> None:
    task, weights = made("tiny-gpt2", method)
    network: Any = task.model(weights)
    base, ids = network.base_model, torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        whole = base(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        mask = torch.ones_like(ids)
        first = base(input_ids=ids[:, :3], attention_mask=mask[:, :3], use_cache=True)
        last = base(
            input_ids=ids[:, 3:], attention_mask=mask, past_key_values=first.past_key_values
        )
    assert first.last_hidden_state.shape[1] == 3
    assert torch.allclose(last.last_hidden_state, whole[:, 3:], atol=1e-5)
