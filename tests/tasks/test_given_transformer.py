"""The network that a spec rebuilds has the client's gradients, whatever its family and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from benchmarks.family_cases import SHAPES
from experiments.captures.update import Update
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.models import TEXT_MODELS, transformer
from fedsim.models.families import FAMILIES
from fedsim.models.post_norm import register
from fedsim.tasks import initial_weights, make_task
from fedsim.types import Batch, Tensors

LOADERS: Mapping[str, Any] = {
    "language-modelling": AutoModelForCausalLM,
    "masked-language-modelling": AutoModelForMaskedLM,
    "text-classification": AutoModelForSequenceClassification,
}
CASES = [
    (family, kind)
    for family in SHAPES
    for kind in FAMILIES[family].kinds
    if family != "transformer3"  # fedsim's own, which no other program trains
]
END = 0
"""End token of the tiny tokenizer of decoders, and the padding of that of encoders."""
VERSION = Version(transformers.__version__)
COUNTING = {"roberta", "mpnet"}
SETTINGS = {
    "layer_norm_eps": 1e-3,
    "layer_norm_epsilon": 1e-3,
    "rms_norm_eps": 1e-3,
    "hidden_act": "relu",
    "activation_function": "relu",
    "activation": "relu",
    "hidden_dropout_prob": 0.3,
    "resid_pdrop": 0.3,
    "tie_word_embeddings": True,
}
"""Other values than transformers', where the family knows the name."""


def network(family: str, kind: str, padding: int | str | None) -> tuple[Any, Any]:
    """A random model; ``padding`` may be set ``later``, as batches of a decoder's classes need."""
    register()
    encoder = FAMILIES[family].kinds[0] == "text-classification"
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert" if encoder else "tiny-gpt2"]))
    config = AutoConfig.for_model(**SHAPES[family] | {"model_type": family})
    config.vocab_size, config.num_labels = len(tokenizer), 3
    config.pad_token_id = END if padding == "later" else padding
    for name, value in SETTINGS.items():
        if hasattr(config, name):
            setattr(config, name, value)
    if "rope_theta" in (getattr(config, "rope_parameters", None) or {}):  # Gemma 3 has two
        config.rope_parameters["rope_theta"] = 77.0
    if padding == "later":
        config.pad_token_id = None
    torch.manual_seed(1)
    model = LOADERS[kind].from_config(config).float().eval()
    if padding == "later":
        model.config.pad_token_id = END
    return model, tokenizer


def gradient(model: Any, kind: str) -> tuple[Tensors, Batch]:
    """By the loss of transformers, of a text with the padding's token inside."""
    ids = torch.tensor([[5, 9, END, 7, 5, END, 11, 30, 8]])
    labels = torch.tensor([1]) if kind == "text-classification" else ids
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    named = dict(model.named_parameters())
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    pairs = zip(named.items(), parts, strict=True)
    found = {name: torch.zeros_like(p) if part is None else part for (name, p), part in pairs}
    return found, Batch(ids, labels, torch.ones_like(ids))


def need_soft_caps(family: str) -> None:
    """Skip versions of transformers whose models train without the soft caps of their config."""
    if family.startswith(("gemma2", "gemma3")) and Version("4.57") > VERSION:
        pytest.skip(f"{family} of transformers before 4.57 leaves them out under sdpa")


@pytest.mark.some(7)
@pytest.mark.parametrize("padding", [None, pytest.param(END, marks=pytest.mark.slow), "later"])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_every_family(family: str, kind: str, padding: int | str | None) -> None:
    if padding != END and family in COUNTING:
        pytest.skip("counts positions from its padding")
    need_soft_caps(family)
    model, tokenizer = network(family, kind, padding)
    sent, batch = gradient(model, kind)
    update = Update.of(model, gradients=sent, tokenizer=tokenizer, task=kind, num_examples=1)
    rebuilt = update.task.model(update.observation.sent)
    same(update.task.gradient(rebuilt, batch), update.observation.received)


@pytest.mark.some(15)
@pytest.mark.parametrize("padding", [None, END])
@pytest.mark.parametrize("family", [family for family, kind in CASES if "language" in kind])
def test_runs_of_fedsim(family: str, padding: int | None, tmp_path: Path) -> None:
    if padding is None and family in COUNTING:
        pytest.skip("counts positions from its padding")
    need_soft_caps(family)
    kind = next(kind for kind in FAMILIES[family].kinds if "language" in kind)
    model, tokenizer = network(family, kind, padding)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = TaskConfig(model=str(tmp_path), dataset="sentences", kind=kind, max_length=16)
    task = make_task(config, load_rows("sentences", "train[:4]", modality="text"))
    rebuilt = task.model(initial_weights(task, config, 0))
    sent, batch = gradient(model, kind)
    same(task.gradient(rebuilt, batch), sent)


def same(found: Tensors, sent: Tensors) -> None:
    """Equal up to rounding, for each tensor."""
    assert found.keys() == sent.keys()
    largest = max(float(value.abs().max()) for value in sent.values())
    for name, value in sent.items():
        assert float((found[name] - value).abs().max()) < 1e-5 * largest, name
