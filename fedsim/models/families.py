"""The architectures of text models that are supported, and what each consists of."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsim.config.cell import TaskKind
from fedsim.errors import ConfigError

_ENCODER: tuple[TaskKind, ...] = ("text-classification", "masked-language-modelling")
_DECODER: tuple[TaskKind, ...] = ("language-modelling", "text-classification")
_NO_DECODER = {"is_decoder": False}
_ALONE = {"add_cross_attention": False}


@dataclass(frozen=True, slots=True)
class Family:
    """What the attacks rely on in one architecture of transformers.

    Attributes:
        kinds: tasks that such a model can learn, the default first.
        positions: a learned table, a rotation of queries and keys, or a relative bias of attention;
            MPNet and DeBERTa may have a table as well.
        norm: LayerNorm or RMSNorm.
        first: whether a block normalises its input first, and not its output.
        grouped: whether several queries may share a key and a value.
        gated: whether the feed-forward part multiplies two linear layers.
        tied: whether the word table is the output head, unless the configuration says otherwise.
        scaled: whether word embeddings are multiplied by the root of the width (Gemma).
        shared: whether all blocks have the same weights (ALBERT).
        before: rows of the position table before that of the first token, which are counted from
            the id of padding; MPNet's is always 1, and None stands for the configuration's.
        settings: values of the configuration without which it is another architecture.
    """

    kinds: tuple[TaskKind, ...]
    positions: Literal["learned", "rotary", "relative"]
    norm: Literal["layer", "rms"] = "layer"
    first: bool = False
    grouped: bool = False
    gated: bool = False
    tied: bool = True
    scaled: bool = False
    shared: bool = False
    before: int | None = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


def _llama(*, tied: bool = False, scaled: bool = False) -> Family:
    return Family(
        _DECODER, "rotary", "rms", first=True, grouped=True, gated=True, tied=tied, scaled=scaled
    )


FAMILIES: dict[str, Family] = {
    "bert": Family(_ENCODER, "learned", settings=_NO_DECODER),
    "roberta": Family(_ENCODER, "learned", before=None, settings=_NO_DECODER),
    "distilbert": Family(_ENCODER, "learned"),
    "albert": Family(_ENCODER, "learned", shared=True),
    "electra": Family(_ENCODER, "learned", settings=_NO_DECODER),
    "mpnet": Family(_ENCODER, "relative", before=2),
    "deberta": Family(_ENCODER, "relative"),
    "deberta-v2": Family(_ENCODER, "relative", settings={"conv_kernel_size": 0}),
    "gpt2": Family(_DECODER, "learned", first=True, settings=_ALONE),
    "transformer3": Family(_DECODER[:1], "learned", tied=False),
    "gpt_neox": Family(_DECODER, "rotary", first=True, tied=False),
    "opt": Family(_DECODER, "learned", first=True, settings={"do_layer_norm_before": True}),
    "phi": Family(_DECODER, "rotary", first=True, grouped=True, tied=False),
    "llama": _llama(),
    "mistral": _llama(),
    "qwen2": _llama(),
    "qwen3": _llama(),
    "gemma": _llama(tied=True, scaled=True),
    "gemma2": _llama(tied=True, scaled=True),
    "gemma3_text": _llama(tied=True, scaled=True),
}
"""``model_type`` of transformers -> the family. SmolLM is a ``llama``, Pythia a ``gpt_neox``."""


def family(name: str, model_type: str) -> Family:
    """The family of a model.

    Args:
        name: the model's, for messages.
        model_type: as in its ``config.json``.

    Raises:
        ConfigError: it is not supported.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    near = difflib.get_close_matches(model_type, FAMILIES, n=2, cutoff=0.7)
    every = f"Supported are {', '.join(sorted(FAMILIES))}"
    known = f"Near are {' and '.join(near)}" if near else every
    raise ConfigError(
        f"task.model: {name!r} is of the type {model_type!r}, which is not supported. {known}; "
        "choose another model, or set task.unchecked = true and task.kind to try it."
    )


def check(name: str, architecture: Mapping[str, Any]) -> None:
    """Compare a configuration with its family; one of an unknown type passes.

    Raises:
        ConfigError: a setting makes it another architecture.
    """
    model_type = architecture["model_type"]
    known = FAMILIES.get(model_type)
    for key, value in known.settings.items() if known else ():
        if (setting := architecture.get(key, value)) != value:
            raise ConfigError(
                f"task.model: {name!r} has {key} = {setting}, and a model of the type "
                f"{model_type!r} is supported with {value}. "
                "Choose another model, or set task.unchecked = true to try it."
            )
