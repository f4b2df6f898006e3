"""Few parameters trained beside frozen ones, by ``peft``: LoRA and its kin, IA3, prompts."""

import warnings
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

from pydantic import Field
from torch import nn

from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.models.layers import is_transposed
from fedsim.models.prompts import is_prompt, put_before
from fedsim.seeds import derive, generator, seeded
from fedsim.store.files import Record

Method: TypeAlias = Literal["lora", "rslora", "dora", "ia3", "prompt", "p-tuning", "prefix"]
LOW_RANK: tuple[Method, ...] = ("lora", "rslora", "dora")
_VARIANTS = (0, 12)
"""The first version of peft that knows rsLoRA and IA3's layers, and adapts GPT-2 by DoRA."""
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


class Adapters(Record):
    """What is trained and sent in place of a network's own parameters.

    - ``lora`` (Hu et al. 2021, equation 3): a linear layer ``y = W x`` becomes ``y = W x + (alpha /
      rank) B A x``, in which ``A`` and ``B`` are trained; ``rslora`` divides by the root of the
      rank (Kalajdzievski 2023), and ``dora`` trains the length of each output's weights as well
      (Liu et al. 2024).
    - ``ia3`` (Liu et al. 2022): a factor of each output of keys and values, and of each input of
      feed-forward outputs.
    - ``prompt``, ``p-tuning`` and ``prefix``: virtual tokens, see ``Prompts``.

    Attributes:
        method: which of them.
        rank: number of rows of ``A`` and of columns of ``B``.
        alpha: scale of the adapters before it is divided by the rank.
        targets: last parts of the names of the linear layers that get an adapter.
        head: train and send a classifier's head as well, as peft does: its weights are random at
            first.
        dropout: share of an adapter's inputs that is zeroed in train mode.
        saved: last parts of the names of further modules that are trained and sent whole, peft's
            ``modules_to_save``.
        tokens: number of virtual tokens.
        config: peft's own configuration of LoRA or IA3, of a network that a program holds: of what
            is above it decides all but ``saved``.
    """

    method: Method = "lora"
    rank: int = 0
    alpha: float = 0.0
    targets: tuple[str, ...] = ()
    head: bool = True
    dropout: float = 0.0
    saved: tuple[str, ...] = ()
    tokens: int = 0
    config: dict[str, Any] = Field(default_factory=dict)


def adapt(network: nn.Module, adapters: Adapters, seed: int = 0) -> nn.Module:
    """Insert adapters into ``network`` and freeze everything else except the head.

    ``A`` is uniform like the weight of a new linear layer, and ``B`` is 0, so the network's output
    is unchanged at first, as it is by the factors of IA3. A target ``query`` becomes
    ``query.base_layer``, ``query.lora_A.default`` and ``query.lora_B.default``.

    Raises:
        ConfigError: a target is not the name of a linear layer, no module has a saved name, or
            peft is too old.
    """
    newer = adapters.method in ("rslora", "dora", "ia3")
    if newer and tuple(map(int, version("peft").split(".")[:2])) < _VARIANTS:
        raise ConfigError(
            f"task.adapters: {adapters.method!r} needs peft 0.12, and {version('peft')} is "
            "installed. Choose 'lora', or install a later peft."
        )
    if adapters.config:
        _inject(network, adapters.config)
    elif adapters.method in ("lora", "rslora", "dora"):
        _low_rank(network, adapters, seed)
    elif adapters.method == "ia3":
        _scale(network)
    else:
        with seeded(derive(seed, "adapters")):
            put_before(network, adapters.method, adapters.tokens)
    for part in HEADS if adapters.head else ():
        head = getattr(network, part, None)
        if head is not None:
            head.requires_grad_(True)
    for part in adapters.saved:
        _save(network, part)
    return network.eval()


def _inject(network: nn.Module, config: dict[str, Any]) -> None:
    import peft

    kind = {"LORA": peft.LoraConfig, "IA3": peft.IA3Config}[config["peft_type"]]
    with seeded(0), warnings.catch_warnings(action="ignore"):
        peft.inject_adapter_in_model(kind(**config), network)


def of_peft(network: Any) -> Adapters | None:  # noqa: ANN401
    """The adapters that peft put into a network; None without any.

    Raises:
        ConfigError: they are several, or of a kind that is not read.
    """
    held = getattr(network, "peft_config", None)
    if not held:
        return None
    if len(held) > 1:
        raise ConfigError(
            f"model: it holds {len(held)} adapters ({', '.join(map(repr, held))}), of which a "
            "client trains one. Pass a model with that one alone, by delete_adapter."
        )
    (config,) = held.values()
    kind = str(config.peft_type.value)
    if kind not in ("LORA", "IA3"):
        raise ConfigError(
            f"model: peft's {kind} is not read from a network; LORA and IA3 are. An experiment has "
            "prompt, prefix and P-tuning by task.adapters."
        )
    known: dict[str, Any] = {
        k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()
    }
    named = {name.rsplit(".", 1)[-1] for name, _ in network.named_modules()}
    saved = tuple(part for part in known.get("modules_to_save") or () if part in named)
    known |= {
        "modules_to_save": None,
        "inference_mode": False,
        "peft_type": kind,
        "task_type": None,
    }
    variants: tuple[Method, ...] = ("dora", "rslora")
    method: Method = next((each for each in variants if known.get(f"use_{each}")), "lora")
    targets = known["target_modules"]
    return Adapters(
        method="ia3" if kind == "IA3" else method,
        targets=() if isinstance(targets, str) else tuple(targets),
        rank=known.get("r", 0),
        alpha=known.get("lora_alpha", 0),
        head=False,
        saved=saved,
        config=known,
    )


def _scale(network: Any) -> None:  # noqa: ANN401
    from peft import IA3Config, inject_adapter_in_model
    from peft.utils import constants

    family = network.config.model_type
    targets = constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING.get(family)
    if targets is None:
        raise ConfigError(f"task.adapters: peft has no layers of ia3 for the type {family!r}.")
    config = IA3Config(
        target_modules=targets,
        feedforward_modules=constants.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING[
            family
        ],
        fan_in_fan_out=any(map(is_transposed, network.modules())),
    )
    with seeded(0), warnings.catch_warnings(action="ignore"):
        inject_adapter_in_model(config, network)


def _low_rank(network: nn.Module, lora: Adapters, seed: int) -> None:
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
    variants = {} if lora.method == "lora" else {f"use_{lora.method}": True}
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        **variants,
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


def train_only(network: nn.Module, patterns: tuple[str, ...]) -> nn.Module:
    """Freeze the parameters of which the name fits none of the patterns, if there are some.

    Raises:
        ConfigError: a pattern fits no parameter that is trained.
    """
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in trained):
            first = ", ".join([*trained][:8])
            raise ConfigError(
                f"task.trained: {pattern!r} fits no parameter of {type(network).__name__} that is "
                f"trained. These begin with {first}."
            )
    for name, parameter in trained.items() if patterns else ():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    return network


def is_added(name: str) -> bool:
    """True if a network has a parameter by its adapters alone."""
    return is_adapter(name) or is_prompt(name) or ".ia3_l." in name


def is_adapter(name: str) -> bool:
    """True if a parameter belongs to an adapter."""
    return _A in name or _B in name


def is_second_factor(name: str) -> bool:
    """True if a module or a parameter is, or belongs to, the ``B`` of an adapter."""
    return _B in name


def second_factor(name: str) -> str:
    """Name of ``B`` in the adapter whose ``A`` has this name."""
    return name.replace(_A, _B)
