"""Low-rank adapters on frozen layers (LoRA, Hu et al. 2021), with ``peft``."""

from __future__ import annotations

import warnings
from importlib.metadata import version

from torch import nn

from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.models.layers import is_transposed
from fedsim.seeds import generator, seeded
from fedsim.store.files import Record

_VARIANTS = (0, 12)
"""The first version of peft that knows rsLoRA and adapts GPT-2 by DoRA."""
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("albert", "bert", "electra", "roberta"), ("query", "value")),
    "distilbert": ("q_lin", "v_lin"),
    "mpnet": ("q", "v"),
    "deberta": ("in_proj",),
    "deberta-v2": ("query_proj", "value_proj"),
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    **dict.fromkeys(("opt", "phi", "llama", "mistral", "qwen2", "qwen3"), ("q_proj", "v_proj")),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), ("q_proj", "v_proj")),
    "transformer3": ("qkv",),
}
"""Layers that get adapters, by ``model_type``: the query and value layers, or the one for both."""

HEADS = ("pre_classifier", "classifier", "score")
"""Names of classifiers' heads in transformers, which pretraining does not provide."""
_A, _B = ".lora_A.", ".lora_B."


class LoRA(Record):
    """Configuration of low-rank adapters (Hu et al. 2021, equation 3).

    A linear layer ``y = W x`` becomes ``y = W x + (alpha / rank) B A x``, in which only ``A`` and
    ``B`` are trained and sent.

    Attributes:
        rank: number of rows of ``A`` and of columns of ``B``.
        alpha: scale of the adapters before it is divided by the rank.
        targets: last parts of the names of the linear layers that get an adapter.
        head: train and send a classifier's head as well, as peft does: its weights are random at
            first.
        rslora: divide ``alpha`` by the root of the rank instead (rsLoRA, Kalajdzievski 2023).
        dora: train the length of each output's weights as well (DoRA, Liu et al. 2024).
        dropout: share of an adapter's inputs that is zeroed in train mode.
        saved: last parts of the names of further modules that are trained and sent whole, peft's
            ``modules_to_save``.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    head: bool
    rslora: bool = False
    dora: bool = False
    dropout: float = 0.0
    saved: tuple[str, ...] = ()


def adapt(network: nn.Module, lora: LoRA, seed: int = 0) -> nn.Module:
    """Insert adapters into ``network`` and freeze everything else except the head.

    ``A`` is uniform like the weight of a new linear layer, and ``B`` is 0, so the network's output
    is unchanged at first. A target ``query`` becomes ``query.base_layer``, ``query.lora_A.default``
    and ``query.lora_B.default``.

    Raises:
        ConfigError: a target is not the name of a linear layer, or no module has a saved name.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = [
        (name.rsplit(".", 1)[-1], is_transposed(module))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) or is_transposed(module)
    ]
    known = sorted({name for name, _ in layers}.difference(HEADS))
    for target in lora.targets:
        if target not in known:
            raise ConfigError(
                f"task.lora_targets: {target!r} is not a linear layer of {type(network).__name__}. "
                f"Choose from {', '.join(known)}."
            )
    variants = {"use_rslora": lora.rslora, "use_dora": lora.dora}
    if any(variants.values()) and tuple(map(int, version("peft").split(".")[:2])) < _VARIANTS:
        raise ConfigError(
            f"task: rsLoRA and DoRA need peft 0.12, and {version('peft')} is installed. Leave out "
            "lora_rslora and lora_dora, or install a later peft."
        )
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        **{name: True for name, wanted in variants.items() if wanted},
        target_modules=list(lora.targets),
        fan_in_fan_out=any(conv for name, conv in layers if name in lora.targets),
        init_lora_weights=True,
    )
    # peft draws from the global generator, and it warns about GPT-2's tied head.
    with seeded(0), warnings.catch_warnings(action="ignore"):
        inject_adapter_in_model(config, network)
    rng = generator(seed, "adapters")
    for name, parameter in network.named_parameters():
        if _A in name:
            nn.init.kaiming_uniform_(parameter, a=5**0.5, generator=rng)
    for part in HEADS if lora.head else ():
        head = getattr(network, part, None)
        if head is not None:
            head.requires_grad_(True)
    for part in lora.saved:
        _save(network, part)
    return network.eval()


def _save(network: nn.Module, part: str) -> None:
    modules = [
        module for name, module in network.named_modules() if name.rsplit(".", 1)[-1] == part
    ]
    if not modules:
        names = {name.rsplit(".", 1)[-1] for name, _ in network.named_modules()}
        words = sorted(name for name in names if name and not name.isdigit() and _A not in name)
        raise ConfigError(
            f"task.lora_saved: {type(network).__name__} has no module {part!r}. "
            f"{suggest(part, words)}"
        )
    for module in modules:
        module.requires_grad_(True)


def is_adapter(name: str) -> bool:
    """True if a parameter belongs to an adapter."""
    return _A in name or _B in name


def is_second_factor(name: str) -> bool:
    """True if a module or a parameter is, or belongs to, the ``B`` of an adapter."""
    return _B in name


def second_factor(name: str) -> str:
    """Name of ``B`` in the adapter whose ``A`` has this name."""
    return name.replace(_A, _B)
