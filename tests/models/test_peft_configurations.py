"""What users give peft: each network is rebuilt with the gradient of its own, or truly refused."""

import warnings
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedsim
from fedsim.config.cell import TaskConfig
from fedsim.errors import ConfigError
from fedsim.models import transformer
from fedsim.tasks import make_task
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors
from tests.tasks.cases import TEXTS

pytest.importorskip("peft", minversion="0.12", reason="older ones lack some of these")
GPT, BERT = "tiny-gpt2", "tiny-bert"


def lora(*, task_type: str | None = "CAUSAL_LM", **options: Any) -> Callable[[], Any]:
    return lambda: peft.LoraConfig(task_type=task_type, r=4, **options)


READ: dict[str, tuple[str, Callable[[], Any]]] = {
    "one layer": (GPT, lora(target_modules=["c_attn"])),
    "regex": (GPT, lora(target_modules=r".*\.0\.attn\.c_attn")),
    "all linear": (BERT, lora(task_type="SEQ_CLS", target_modules="all-linear")),
    "targets of peft": (BERT, lora(task_type="SEQ_CLS")),
    "saved modules": (BERT, lora(task_type="SEQ_CLS", modules_to_save=["classifier", "pooler"])),
    "ranks by layer": (GPT, lora(target_modules=["c_attn"], rank_pattern={"h.0.attn.c_attn": 2})),
    "alphas by layer": (GPT, lora(target_modules=["c_attn"], alpha_pattern={"h.0.attn.c_attn": 2})),
    "one block": (GPT, lora(target_modules=["c_attn"], layers_to_transform=[0])),
    "rsLoRA": (GPT, lora(target_modules=["c_attn"], use_rslora=True)),
    "DoRA": (GPT, lora(target_modules=["c_attn"], use_dora=True)),
    "all biases": (GPT, lora(target_modules=["c_attn"], bias="all")),
    "biases of adapters": (GPT, lora(target_modules=["c_attn"], bias="lora_only")),
    "no task": (GPT, lora(task_type=None, target_modules=["c_attn"])),
    "tied head": (GPT, lora(target_modules=["c_attn"], modules_to_save=["lm_head"])),
    "table of words": (GPT, lora(target_modules=["wte", "c_attn"])),
    "IA3": (GPT, lambda: peft.IA3Config(task_type="CAUSAL_LM")),
    "IA3 of a classifier": (BERT, lambda: peft.IA3Config(task_type="SEQ_CLS")),
}
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "PROMPT_TUNING": (GPT, lambda: peft.PromptTuningConfig("CAUSAL_LM", num_virtual_tokens=4)),
    "PREFIX_TUNING": (GPT, lambda: peft.PrefixTuningConfig("CAUSAL_LM", num_virtual_tokens=4)),
    "P_TUNING": (BERT, lambda: peft.PromptEncoderConfig("SEQ_CLS", num_virtual_tokens=4)),
    "LOHA": (BERT, lambda: peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"])),
    "VERA": (BERT, lambda: peft.VeraConfig(task_type="SEQ_CLS", target_modules=["query"])),
}


def wrapped(name: str, config: Any) -> tuple[Any, TextTask]:
    table = {"model": name, "dataset": "here"}
    task = make_task(TaskConfig.model_validate(table), TEXTS)
    assert isinstance(task, TextTask)
    with warnings.catch_warnings(action="ignore"):  # of GPT-2's transposed layers and tied head
        bare = transformer.build(task.spec.architecture, task.spec.kind)
        network: Any = peft.get_peft_model(bare, config)
    rng = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=rng)
    return network.eval(), task


def gradient(network: Any, task: TextTask) -> Tensors:
    batch = task.encode(TEXTS.take([0]))
    logits = network(input_ids=batch.inputs, attention_mask=batch.mask).logits.float()
    writes = task.spec.kind == "language-modelling"
    outputs, wanted = (logits[0, :-1], batch.inputs[0, 1:]) if writes else (logits, batch.labels)
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(cross_entropy(outputs, wanted), [*trained.values()])
    return dict(zip(trained, slopes, strict=True))


def read(network: Any, task: TextTask) -> fedsim.Update:
    sent = gradient(network, task)
    return fedsim.Update.of(network, gradients=sent, tokenizer=task.tokenizer, num_examples=1)


@pytest.mark.some(8)
@pytest.mark.parametrize("name", READ)
def test_a_network_is_rebuilt_with_its_own_gradient(name: str) -> None:
    network, task = wrapped(READ[name][0], READ[name][1]())
    victim = read(network, task)
    seen = victim.observation
    made = victim.task.gradient(victim.task.model(seen.sent), task.encode(TEXTS.take([0])))
    assert made.keys() == seen.received.keys()
    for key, value in seen.received.items():
        assert torch.allclose(made[key], value, atol=1e-6)


def test_half_precision_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    network, task = wrapped(GPT, READ["one layer"][1]())
    victim = read(network.bfloat16(), task)
    assert len(victim.observation.received) == 4
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_read_is_refused_by_its_name(kind: str) -> None:
    network, task = wrapped(REFUSED[kind][0], REFUSED[kind][1]())
    with pytest.raises(ConfigError, match=f"peft's {kind} is not read"):
        fedsim.Update.of(network, gradients={}, tokenizer=task.tokenizer)


def test_of_several_adapters_one_is_asked_for() -> None:
    network, task = wrapped(GPT, READ["one layer"][1]())
    with warnings.catch_warnings(action="ignore"):
        network.add_adapter("other", READ["one layer"][1]())
    with pytest.raises(ConfigError, match=r"holds 2 adapters \('default', 'other'\)"):
        fedsim.Update.of(network, gradients={}, tokenizer=task.tokenizer)
