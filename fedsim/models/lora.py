"""Low-rank adapters beside frozen layers (LoRA, Hu et al. 2021), by ``peft``."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.files import Record
from fedsim.models.linear import is_transposed
from fedsim.seeds import generator

DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("albert", "bert", "electra", "roberta"), ("query", "value")),
    "distilbert": ("q_lin", "v_lin"),
    "mpnet": ("q", "v"),
    "gpt2": ("c_attn",),
    "transformer3": ("qkv",),
}
"""By ``model_type``: query and value of each attention, or the one layer that makes them."""

_HEADS = ("pre_classifier", "classifier", "score")
_A, _B = ".lora_A.", ".lora_B."


class LoRA(Record):
    """Which layers get adapters ``y = W x + (alpha / rank) B A x``, and what else is trained.

    Attributes:
        rank: rows of ``A`` and columns of ``B``.
        alpha: numerator of the adapters' scale.
        targets: last parts of the names of linear layers.
        head: a classifier's head is trained and sent, too, as peft does: it is random at first.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    head: bool


def adapt(network: nn.Module, lora: LoRA, seed: int = 0) -> nn.Module:
    """Put adapters into ``network`` and freeze all else but the head.

    ``A`` is uniform as a fresh linear layer is, and ``B`` is 0, so that nothing changes at first.
    A target ``query`` becomes ``query.base_layer``, ``query.lora_A.default`` and
    ``query.lora_B.default``.

    Raises:
        ConfigError: a target names no linear layer.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = [
        (name.rsplit(".", 1)[-1], is_transposed(module))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) or is_transposed(module)
    ]
    known = sorted({name for name, _ in layers}.difference(_HEADS))
    for target in lora.targets:
        if target not in known:
            raise ConfigError(
                f"task.lora_targets: {target!r} is no linear layer of {type(network).__name__}. "
                f"Choose among {', '.join(known)}."
            )
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        fan_in_fan_out=any(conv for name, conv in layers if name in lora.targets),
        init_lora_weights=True,
    )
    # peft draws from the global generator; and it warns where GPT-2's tied head is not merged.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        inject_adapter_in_model(config, network)
    rng = generator(seed, "adapters")
    for name, parameter in network.named_parameters():
        if _A in name:
            nn.init.kaiming_uniform_(parameter, a=5**0.5, generator=rng)
    for part in _HEADS if lora.head else ():
        head = getattr(network, part, None)
        if head is not None:
            head.requires_grad_(True)
    return network.eval()


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return _A in name or _B in name


def is_second_factor(name: str) -> bool:
    """Whether a module or a parameter is, or belongs to, the ``B`` of an adapter."""
    return _B in name


def second_factor(name: str) -> str:
    """The name of ``B`` beside that of ``A``."""
    return name.replace(_A, _B)
