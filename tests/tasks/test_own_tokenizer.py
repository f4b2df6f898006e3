"""A tokenizer that may be another model's is named."""

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fedsim
from fedsim.models import TEXT_MODELS, transformer
from fedsim.tasks.given import task_of
from fedsim.tasks.own_tokenizer import doubt

WORDS = transformer.tokenizer(str(TEXT_MODELS["tiny-gpt2"]))
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"vocab_size": 2127}, ""),
    ({"vocab_size": 2128}, "has 2000 tokens for 2128 rows"),
    ({"eos_token_id": [5, 0]}, ""),
    ({"eos_token_id": None}, ""),
    ({"eos_token_id": 50256}, ""),
    ({"eos_token_id": 2}, "has the eos token 0, the model 2"),
    ({"bos_token_id": 1, "eos_token_id": 2}, "bos token 0, the model 1 and has the eos token"),
]


def network(**changes: Any) -> Any:
    given = {"vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 0, **changes}
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, n_positions=16, **given))


@pytest.mark.parametrize(("changes", "said"), CASES)
def test_what_speaks_for_another_model_is_said(changes: dict[str, Any], said: str) -> None:
    found = doubt(task_of(network(**changes), tokenizer=WORDS))
    assert said in found
    assert bool(said) == bool(found)


def test_an_update_and_each_guess_say_so() -> None:
    net = network(eos_token_id=2)
    gradients = [torch.ones_like(parameter) for parameter in net.parameters()]
    victim = fedsim.Update.of(net, gradients=gradients, tokenizer=WORDS, lengths=[4])
    assert "Note: the tokenizer has the eos token" in str(victim)
    assert "the tokenizer has the eos token" in fedsim.attack(victim, "prior_only", quiet=True).note
