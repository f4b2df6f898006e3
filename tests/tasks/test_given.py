"""A network that was changed after its configuration made it is rebuilt as it is, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.opt.configuration_opt import OPTConfig
from transformers.models.roberta.configuration_roberta import RobertaConfig

from benchmarks.family_cases import SHAPES
from experiments.captures.update import Update
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, transformer
from fedsim.tasks.given import task_of
from tests.tasks.test_given_transformer import LOADERS, gradient, network, same

TEXTS = "language-modelling"


def rebuilt_alike(model: Any, tokenizer: Any, kind: str) -> None:
    sent, batch = gradient(model, kind)
    update = Update.of(model, gradients=sent, tokenizer=tokenizer, task=kind, num_examples=1)
    received = update.observation.received
    same(update.task.gradient(update.task.model(update.observation.sent), batch), received)


def with_epsilon(model: Any) -> str:
    model.model.norm.variance_epsilon = 0.5
    return "first in 'model.norm'"


def with_activation(model: Any) -> str:
    model.model.layers[1].mlp.act_fn = nn.Softplus()
    return "first in 'model.layers.1.mlp.act_fn'"


def with_rotation(model: Any) -> str:
    model.model.rotary_emb.inv_freq *= 0.5
    return "first in 'model.rotary_emb'"


def with_forward(model: Any) -> str:
    class Cooled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output["logits"] = output.logits / 2
            return output

    Cooled.__name__ = type(model).__name__
    model.__class__ = Cooled
    return "first in 'its own forward'"


def with_another_call(model: Any) -> str:
    class Prompted(type(model)):  # type: ignore[misc]
        def forward(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    Prompted.__name__ = type(model).__name__
    model.__class__ = Prompted
    return "does not take input_ids and attention_mask alone"


def with_fewer_layers(model: Any) -> str:
    model.model.layers = model.model.layers[:1]
    return "has no tensor 'model.layers.1.self_attn.q_proj.weight', which its configuration makes"


@pytest.mark.parametrize(
    "change",
    [
        with_epsilon,
        with_activation,
        with_rotation,
        with_forward,
        with_another_call,
        with_fewer_layers,
    ],
)
def test_what_the_configuration_does_not_say_is_refused(change: Callable[[Any], str]) -> None:
    model, tokenizer = network("llama", TEXTS, None)
    task_of(model, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=change(model)):
        task_of(model, tokenizer=tokenizer)


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "gpt_neox"])
def test_a_head_tied_by_hand(family: str) -> None:
    model, tokenizer = network(family, TEXTS, None)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    table = model.get_input_embeddings().weight
    model.get_output_embeddings().weight = nn.Parameter(table.detach() * 1.5) if tied else table
    rebuilt_alike(model, tokenizer, TEXTS)


def test_a_setting_with_a_private_name() -> None:
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-gpt2"]))
    config = OPTConfig(**SHAPES["opt"], vocab_size=len(tokenizer), _remove_final_layer_norm=True)
    config.pad_token_id = None
    torch.manual_seed(1)
    rebuilt_alike(AutoModelForCausalLM.from_config(config).eval(), tokenizer, TEXTS)


def test_a_padding_counted_from_the_end() -> None:
    kind = "masked-language-modelling"
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    config = RobertaConfig(**SHAPES["roberta"], vocab_size=len(tokenizer), pad_token_id=-1)
    torch.manual_seed(1)
    model = LOADERS[kind].from_config(config).eval()
    rebuilt_alike(model, tokenizer, kind)
    task = task_of(model, tokenizer=tokenizer, task=kind, max_length=40)
    assert task.spec.input_shape == (config.max_position_embeddings,)
