"""Tasks of transformers that a program holds, with their adapters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedsim.config.build import suggest
from fedsim.config.cell import TaskConfig, TaskKind
from fedsim.config.named_code import classifier
from fedsim.errors import ConfigError
from fedsim.models import MODELS, TEXT_MODELS, transformer
from fedsim.models.adapters import Adapters, of_peft
from fedsim.models.families import family
from fedsim.models.network import copied
from fedsim.tasks.base import Task, TaskSpec, load_state
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.tasks.masked_language_modelling import MaskedLanguageModelling
from fedsim.tasks.own_tokenizer import check_tokenizer
from fedsim.tasks.targets import Target
from fedsim.tasks.text import TextTask, most_tokens, padding, special_ids
from fedsim.tasks.text_classification import TextClassification, TextScoring
from fedsim.tensor_names import lacks, named, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class GivenLanguageModelling(LanguageModelling):
    """Language modelling of texts as applications encode them: by the tokenizer, and an end token.

    Unlike in fedsim's own experiments, a start token is there only if the tokenizer adds one.
    """

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text as the tokenizer gives them, and the end token, if it has one."""
        eos = self.tokenizer.eos_token_id
        end = [] if eos is None else [int(eos)]
        lines = []
        for line in TextTask.tokens(self, texts):
            ended = line[-1:] == end
            lines.append(line if ended else [*line[: self.max_length - len(end)], *end])
        return lines


_CLASSES: dict[TaskKind, type[TextTask]] = {
    "text-classification": TextClassification,
    "language-modelling": GivenLanguageModelling,
    "masked-language-modelling": MaskedLanguageModelling,
}
_HEADS: dict[str, TaskKind] = {
    "ForSequenceClassification": "text-classification",
    "ForCausalLM": "language-modelling",
    "LMHeadModel": "language-modelling",
    "ForMaskedLM": "masked-language-modelling",
}
_ADAPTER = re.compile(r"(\w+)\.lora_A\.(?:\w+\.)?weight$")
_LONGEST = 64


def as_given(task: Task) -> Task:
    """A task read from the captures of another application, with the application's encoding."""
    if type(task) is LanguageModelling:
        return GivenLanguageModelling(task.spec, task.tokenizer)
    if type(task) is TextClassification and task.spec.target != "class":
        return TextScoring(task.spec, task.tokenizer)
    return task


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside DistributedDataParallel, torch.compile and peft."""
    while True:
        inner = getattr(network, "module", None) or getattr(network, "_orig_mod", None)
        if hasattr(network, "prompt_encoder"):  # of a network of peft with virtual tokens
            return network
        if inner is None and hasattr(network, "peft_config") and hasattr(network, "base_model"):
            inner = getattr(network.base_model, "model", None)
        if not isinstance(inner, nn.Module):
            return network
        network = inner


def is_transformer(network: nn.Module) -> bool:
    """Whether it is a text model of transformers."""
    config = getattr(network, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if getattr(network, "main_input_name", "") == "pixel_values":  # BEiT has a vocabulary, too
        return False
    return isinstance(getattr(config, "model_type", None), str) and vocabulary is not None


def check_of_images(name: str) -> None:
    """Refuse a function that makes a text model, which an experiment names by its folder.

    Args:
        name: ``module:function``, as the user wrote it.

    Raises:
        ConfigError: it makes one, no user named it, or it cannot be imported.
    """
    make = classifier(name, "task.model")
    try:
        network = unwrapped(make(num_classes=2))
    except Exception:  # it may fit another number; its task says why it fails
        return
    if is_transformer(network):
        raise ConfigError(
            f"task.model: {name!r} makes {type(network).__name__}, a text model, and an experiment "
            "takes a function for networks of images. Write the model and its tokenizer to a "
            "folder by save_pretrained, and name that: './folder'."
        )


def transformer_task(
    model: nn.Module | str,
    tokenizer: Any,  # noqa: ANN401
    task: str,
    max_length: int,
    arrays: Mapping[str, tuple[int, ...]],
    lora_alpha: float,
) -> TextTask:
    """The task of a text model; see ``task_of``.

    Raises:
        ConfigError: something is missing or does not fit.
    """
    name = model if isinstance(model, str) else type(model).__name__
    if name in MODELS and name not in TEXT_MODELS:
        raise ConfigError(
            f"model: {name!r} is a network of images. Write the function that makes yours, "
            "as module:function."
        )
    for given in {source for source in (model, tokenizer) if isinstance(source, str)}:
        if not Path(transformer.locate(given)).is_dir():
            transformer.model_type(given)  # says at once where there is no such model
    words = _tokenizer(model, tokenizer)
    kind = _kind(model, task)
    classes = 0
    if kind == "text-classification":
        classes = _classes(model, arrays)
    if isinstance(model, str):
        source = transformer.locate(model)
        architecture = transformer.architecture(source, classes)
    else:
        architecture = transformer.architecture_of(model)
    check_tokenizer(name, architecture, words)
    if classes == architecture["vocab_size"]:
        raise ConfigError(
            f"task: the last array has {classes} rows, as the vocabulary has tokens, so that no "
            "classifier sent it. Leave task out, or pass 'language-modelling'."
        )
    most = most_tokens(architecture, words)
    if not 0 <= max_length <= most:
        raise ConfigError(
            f"max_length: {name} takes at most {most} tokens, got {max_length}. Lower it."
        )
    target = _target(architecture, classes)
    spec = TaskSpec(
        kind=kind,
        model=name,
        architecture=architecture,
        num_classes=classes if target == "class" else 0,
        input_shape=(max_length or min(_LONGEST, most),),
        pad_id=padding(words),
        special_ids=special_ids(name, kind, words),
        adapters=_lora(model, arrays, lora_alpha),
        target=target,
        targets=0 if target == "class" else classes,
    )
    text_task = _CLASSES[kind](spec, words) if target == "class" else TextScoring(spec, words)
    if isinstance(model, nn.Module):
        check_rebuilt(text_task, model)
    return text_task


def _target(architecture: Mapping[str, Any], outputs: int) -> Target:
    """What transformers compares a classifier's outputs with."""
    problem = architecture.get("problem_type") if outputs else None
    if problem == "multi_label_classification":
        return "classes"
    return "numbers" if problem == "regression" or outputs == 1 else "class"


def _tokenizer(model: nn.Module | str, tokenizer: Any) -> PreTrainedTokenizerBase:  # noqa: ANN401
    if tokenizer is None and not isinstance(model, str):
        raise ConfigError(
            f"tokenizer: {type(model).__name__} needs one to read its tokens. Pass tokenizer=, "
            "the one that the clients use."
        )
    if tokenizer is None or isinstance(tokenizer, str):
        config = TaskConfig(model=str(tokenizer or model), dataset="-")
        return transformer.tokenizer(transformer.locate_tokenizer(config))
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"tokenizer: {type(tokenizer).__name__} is no fast tokenizer of transformers. "
            "Load it by AutoTokenizer.from_pretrained."
        )
    fast: PreTrainedTokenizerBase = tokenizer
    return fast


def _kind(model: nn.Module | str, task: str) -> TaskKind:
    if isinstance(model, nn.Module):
        other = re.search(r"For([A-Z]\w+)$", type(model).__name__)
        if other and not any(f"For{other[1]}" == ending for ending in _HEADS):
            what = re.sub(r"(?<!^)(?=[A-Z])", " ", other[1]).lower()
            raise ConfigError(
                f"model: {type(model).__name__} is for {what}, which is not supported. Its encoder "
                "tells the texts all the same: pass its tensors alone, with its "
                "ForSequenceClassification."
            )
    known: dict[str, TaskKind] = {"classification": "text-classification"}
    known |= {kind: kind for kind in _CLASSES}
    if task:
        if task not in known:
            raise ConfigError(f"task: {task!r} is not known. {suggest(task, known)}")
        return known[task]
    if isinstance(model, str):
        return family(model, transformer.model_type(model)).kinds[0]
    for ending, kind in _HEADS.items():
        if type(model).__name__.endswith(ending):
            return kind
    raise ConfigError(
        f"task: what {type(model).__name__} learns is not known. Pass task= 'classification', "
        "'language-modelling' or 'masked-language-modelling', and a model with that head."
    )


def _classes(model: nn.Module | str, arrays: Mapping[str, tuple[int, ...]]) -> int:
    if not isinstance(model, str):
        config: Any = model.config
        return int(config.num_labels)
    last = [shape[0] for shape in arrays.values() if shape]
    return last[-1] if last else 2


def _lora(
    model: nn.Module | str, arrays: Mapping[str, tuple[int, ...]], alpha: float
) -> Adapters | None:
    if not isinstance(model, str) and (held := of_peft(model)):
        return held
    shapes = dict(arrays)
    if not isinstance(model, str):
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        alpha = alpha or _alpha(model)
    adapters = {name: match for name in shapes if (match := _ADAPTER.search(name))}
    if not adapters:
        return None
    if not alpha:
        raise ConfigError(
            "lora_alpha: the adapters' scale never crosses the wire. Pass it, the lora_alpha of "
            "the clients' LoraConfig."
        )
    first = next(iter(adapters))
    return Adapters(
        rank=shapes[first][0],
        alpha=alpha,
        targets=tuple(sorted({match[1] for match in adapters.values()})),
        head=any("lora_" not in name and "base_layer" not in name for name in arrays) or not arrays,
    )


def _alpha(network: nn.Module) -> float:
    """``alpha`` of the adapters, from the scale ``alpha / rank`` that peft's layers keep."""
    for layer in network.modules():
        scaling, rank = getattr(layer, "scaling", None), getattr(layer, "r", None)
        if isinstance(scaling, dict) and isinstance(rank, dict) and scaling:
            name = next(iter(scaling))
            return float(scaling[name] * rank[name])
    return 0.0


_PLACES = 8
"""Tokens of the text that both are shown."""
_APART = 1e-3
"""Largest difference of outputs, in parts of the largest output.

Fused attention differs from eager attention by 1e-6, networks with the weights of another precision
by nothing, as both are computed in float32. An epsilon of .01 for 1e-5 makes .004 to .1. Half of it
finds the same, twice of it as well.
"""


def check_rebuilt(task: TextTask, network: nn.Module) -> None:
    """Refuse a network that was changed after its configuration made it, such as an activation.

    Attacks rebuild the network by its configuration, and explain no update of another one.

    Args:
        task: of the network.
        network: a model of transformers; it is copied.

    Raises:
        ConfigError: tensors or outputs differ.
    """
    if getattr(network.config, "quantization_config", None) is not None:
        return  # quantised weights are computed with plainly, see ``weights_of``
    name = type(network).__name__
    rebuilt = task.blank()
    weights = named(weights_of(network), rebuilt, "model")
    if lacking := lacks(weights, rebuilt):
        raise ConfigError(
            f"model: {name} has no tensor {lacking[0]!r}, which its configuration makes. Set "
            "model.config to what the network is, such as num_hidden_layers."
        )
    load_state(rebuilt, weights.tensors)
    ids = torch.randint(
        task.spec.architecture["vocab_size"],
        (1, min(_PLACES, task.max_length)),
        generator=torch.Generator().manual_seed(0),
    )
    expected = _outputs(rebuilt, ids)
    actual = _outputs(copied(network).cpu().float().eval(), ids)
    if _apart(expected[""], actual.get("", torch.empty(0))) <= _APART:
        return
    changed = (
        key for key, value in actual.items() if _apart(expected.get(key, value), value) > _APART
    )
    place = next(changed, "")
    raise ConfigError(
        f"model: {name} computes something else than its configuration makes, first in "
        f"{place or 'its own forward'!r}, and attacks rebuild it by the latter. Say it in "
        "model.config (an activation, an epsilon, a scale); what no setting says is not supported."
    )


def _outputs(network: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """What each part returns first, by the name of the part; the network's own has none."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:  # noqa: ANN401
        def hook(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ANN401
            del module, args
            for value in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
                if isinstance(value, Tensor):
                    seen.setdefault(name, value.detach())

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in network.named_modules()]
    try:
        with torch.no_grad():
            network(input_ids=ids, attention_mask=torch.ones_like(ids))
    except Exception as error:  # forward may be foreign code
        raise ConfigError(
            f"model: {type(network).__name__} does not take input_ids and attention_mask alone "
            f"({type(error).__name__}: {error}). Pass a model as transformers makes it."
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _apart(expected: Tensor, actual: Tensor) -> float:
    """Largest difference in parts of the largest value; of other shapes, everything."""
    if expected.shape != actual.shape:
        return float("inf")
    return float((expected - actual).abs().max() / actual.abs().max().clamp(min=1e-30))
