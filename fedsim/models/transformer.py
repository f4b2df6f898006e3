"""Text models: located by name, built from a configuration, and loaded with weights."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.overrides import TorchFunctionMode

from fedsim.config.build import suggest
from fedsim.config.cell import TaskConfig, TaskKind
from fedsim.errors import ConfigError
from fedsim.hub import resolve
from fedsim.models import MODELS, TEXT_MODELS, TOKENIZERS
from fedsim.process import exclusive
from fedsim.seeds import seeded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def locate(name: str) -> str:
    """Folder of a built-in or of a local model, else the identifier for the hub.

    Raises:
        ConfigError: the name resembles that of a built-in, or holds a colon, and no such folder
            exists.
    """
    if name in TEXT_MODELS:
        return str(TEXT_MODELS[name])
    source = resolve(name, "models")
    if source == name and ":" in name and not Path(name).is_dir():
        raise ConfigError(
            f"task.model: {name!r} names no model. Write module:name or file.py:name for a network "
            "of your own, or a folder or hub id."
        )
    if source == name and difflib.get_close_matches(name, MODELS, n=1, cutoff=0.8):
        raise ConfigError(f"task.model: {name!r} is not known. {suggest(name, MODELS)}")
    return source


def model_type(name: str) -> str:
    """Name of the architecture in transformers, read from ``config.json``.

    Raises:
        ConfigError: the file cannot be found or read.
    """
    source = locate(name)
    path = Path(source) / "config.json" if Path(source).is_dir() else _download(source)
    try:
        kind = json.loads(path.read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        kind = None
    if not isinstance(kind, str):
        raise ConfigError(
            f"task.model: {str(path)!r} is missing or names no model_type. "
            "Name a folder as transformers' save_pretrained writes it."
        )
    return kind


def _download(identifier: str) -> Path:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            return Path(hf_hub_download(identifier, "config.json", local_files_only=True))
        # Asked first, because without a network a download retries for half a minute.
        HfApi().model_info(identifier, timeout=10)
        return Path(hf_hub_download(identifier, "config.json"))
    except Exception as error:  # The hub's HTTP library, and with it the errors, vary by version.
        raise ConfigError(
            f"task.model: {identifier!r} is neither a built-in ({', '.join(MODELS)}) nor a local "
            f"folder, and it cannot be loaded from the hub ({type(error).__name__}). "
            "Correct the name, or put the model under $FEDSIM_HUB/models."
        ) from None


def locate_tokenizer(task: TaskConfig) -> str:
    """Location of the tokenizer that the task names, else of the model's own."""
    return locate(task.tokenizer or TOKENIZERS.get(task.model, task.model))


def tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Fast tokenizer of a model or of a saved task.

    Raises:
        ConfigError: there is no usable tokenizer in the folder.
    """
    check_no_code(folder)
    try:
        words = _loaded(folder)
    except Exception as error:  # of a spoilt file tokenizers raises plain ones
        raise _no_tokenizer(folder, type(error).__name__) from None
    words.init_kwargs.pop("auto_map", None)  # code of the hub was not run, and is not passed on
    # For a folder without tokenizer files, transformers returns an empty vocabulary.
    if len(words) <= len(words.all_special_ids):
        raise _no_tokenizer(folder, "no vocabulary")
    if not words.is_fast:
        raise _no_tokenizer(folder, "only a slow one")
    return words


def _loaded(folder: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        words: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        )
    except ValueError:  # transformers 4 does not know the class that transformers 5 notes
        words = PreTrainedTokenizerFast.from_pretrained(folder)
    return words


def check_no_code(folder: str) -> None:
    """Refuse a model or tokenizer whose folder names code of its own, which is never run.

    Raises:
        ConfigError: a configuration has an ``auto_map``.
    """
    for name in ("config.json", "tokenizer_config.json"):
        path = Path(folder) / name  # in the cache of the hub a link, which read_json would refuse
        try:
            table = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        except (OSError, ValueError, RecursionError):  # transformers says what is wrong with it
            continue
        if "auto_map" in table:
            raise ConfigError(
                f"{path}: names code of its own (auto_map), and no code that a file names is run. "
                "Take a model whose class transformers has, or remove auto_map."
            )


def _no_tokenizer(folder: str, reason: str) -> ConfigError:
    return ConfigError(
        f"task.model: {folder!r} has no usable tokenizer ({reason}). "
        "Put its tokenizer.json next to config.json."
    )


def architecture(source: str, num_classes: int) -> dict[str, Any]:
    """The configuration as JSON data, from which ``build`` needs neither folder nor hub."""
    classes = {"num_labels": num_classes} if num_classes else {}
    check_no_code(source)
    return as_data(_auto_config().from_pretrained(source, trust_remote_code=False, **classes))


def architecture_of(network: Any) -> dict[str, Any]:  # noqa: ANN401
    """That of a network of transformers, as it is: its configuration may have changed since.

    ``config.pad_token_id`` names the row of the word table that is not trained only if it was there
    when the network was made, and a head may have been tied, or freed, by hand.
    """
    data = as_data(network.config)
    table, head = network.get_input_embeddings(), network.get_output_embeddings()
    if head is not None:
        data["tie_word_embeddings"] = head.weight is table.weight
    row, padding = getattr(table, "padding_idx", None), data.get("pad_token_id")
    if padding is not None and padding < 0:
        padding += len(table.weight)
    return data if row == padding else data | {"pad_token_id": row}


_OPT = "_remove_final_layer_norm"
"""A setting of the architecture by the name of a private one."""


def as_data(config: Any) -> dict[str, Any]:  # noqa: ANN401
    """A configuration of transformers as the JSON data that ``build`` takes."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    # Attacks compute with plain weights.
    public = {
        key: value
        for key, value in data.items()
        if (key == _OPT or not key.startswith("_")) and key != "quantization_config"
    }
    return public | {"dtype": "float32"}


def build(architecture: dict[str, Any], kind: TaskKind, seed: int = 0) -> nn.Module:
    """The network in float32 and eval mode, with random weights as transformers draws them."""
    with seeded(seed):
        network: nn.Module = _loader(kind).from_config(
            _config(architecture), attn_implementation="eager", trust_remote_code=False
        )
    return network.float().eval()


def blank(architecture: dict[str, Any], kind: TaskKind) -> nn.Module:
    """The network of ``build``, whose drawn weights are whatever the memory held."""
    with _Undrawn():
        return build(architecture, kind)


_DRAWS = {"uniform_", "normal_", "kaiming_uniform_"}
"""Methods of tensors and functions of ``torch.nn.init``, or what transformers puts around these."""


class _Undrawn(TorchFunctionMode):
    """Leaves tensors as they are that would be drawn in place, in this thread alone.

    transformers' ``no_init_weights`` does so in all threads. Buffers are computed as ever.
    """

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if getattr(function, "__name__", "") in _DRAWS:
            return args[0] if args else named["tensor"]
        return function(*args, **named)


def pretrained(name: str, architecture: dict[str, Any], kind: TaskKind, seed: int) -> nn.Module:
    """The network with the weights of a folder or the hub; a missing head is drawn at random.

    Raises:
        ConfigError: the weights are missing or do not fit the architecture.
    """
    try:
        with seeded(seed), quiet():
            network, report = _loader(kind).from_pretrained(
                locate(name),
                config=_config(architecture),
                # Gradient matching differentiates twice, which fused attention does not support.
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"task.weights: {name!r} has no usable safetensors weights ({first}). "
            "Set weights = 'random', or name another model."
        ) from None
    body = f"{network.base_model_prefix}."
    absent = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    # A model trained without a pooler gets a random one, just like a head.
    if lost := sorted(key for key in absent if key.startswith(body) and "pooler" not in key):
        raise ConfigError(
            f"task.weights: {name!r} has no fitting tensor for {lost[0]!r} ({len(lost)} in all). "
            "Set weights = 'random', or name another model."
        )
    module: nn.Module = network
    return module.float().eval()


def _config(architecture: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return _auto_config().for_model(**architecture)
    except (TypeError, ValueError) as error:  # of a task.json that was changed
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"architecture: no model of transformers ({first}). Restore it."
        ) from None


def _auto_config() -> Any:  # noqa: ANN401
    from transformers import AutoConfig

    from fedsim.models import post_norm

    # Called each time, since it does nothing if the model is registered already.
    post_norm.register()
    return AutoConfig


def _loader(kind: TaskKind) -> Any:  # noqa: ANN401
    import transformers

    return {
        "text-classification": transformers.AutoModelForSequenceClassification,
        "language-modelling": transformers.AutoModelForCausalLM,
        "masked-language-modelling": transformers.AutoModelForMaskedLM,
    }[kind]


@exclusive
def quiet() -> Iterator[None]:
    """Suppress the warnings and progress bars of transformers, which loads for one thread alone."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
