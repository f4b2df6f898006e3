"""Common part of the text tasks: tokenizer, padding, and decoding of token ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedsim.config.cell import TaskConfig, TaskKind
from fedsim.errors import ConfigError
from fedsim.metrics.base import Examples
from fedsim.models import families, transformer
from fedsim.models.adapters import DEFAULT_TARGETS, LOW_RANK, Adapters, adapt, train_only
from fedsim.tasks.base import Network, Task, TaskSpec
from fedsim.tasks.classification import count_classes
from fedsim.types import Batch, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_RANK = 8
"""Of adapters without one, as in peft."""
_UNLIMITED = 1 << 15
"""Tokens of a network whose configuration sets no limit (BLOOM, Mamba), longer than texts are."""


@dataclass(frozen=True)
class TextTask(Task):
    """A task whose network is a transformer and whose rows are texts.

    Attributes:
        tokenizer: the fast tokenizer that texts are encoded and decoded with.
    """

    tokenizer: PreTrainedTokenizerBase = field(repr=False, compare=False)
    modality: ClassVar[Literal["image", "text"]] = "text"

    def build(self) -> nn.Module:
        """The transformer in eval mode with eager attention, with adapters if they are trained."""
        return self._adapted(transformer.build(self.spec.architecture, self.spec.kind))

    def blank(self) -> nn.Module:
        """The transformer with uninitialised weights: drawing them takes longer than a step."""
        return self._adapted(transformer.blank(self.spec.architecture, self.spec.kind))

    def _adapted(self, network: nn.Module) -> nn.Module:
        config: Any = network.config
        # A decoder classifies the last token that is no padding.
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = self.spec.pad_id
        if self.spec.adapters is not None:
            network = adapt(network, self.spec.adapters)
        return train_only(network, self.spec.trained)

    @property
    def max_length(self) -> int:
        """Length in tokens at which texts are cut, special tokens included."""
        return self.spec.input_shape[0]

    @property
    def most_tokens(self) -> int:
        """Number of tokens that the model and its tokenizer take."""
        return max(self.max_length, most_tokens(self.spec.architecture, self.tokenizer))

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with special tokens, such as ``[CLS] text [SEP]``."""
        encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_length)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def encode(self, rows: Rows) -> Batch:
        """Ids padded on the right to the longest text of the batch, mask, and labels."""
        ids = self.tokens(texts_of(rows, self.spec.model))
        longest = max(map(len, ids))
        pad = self.spec.pad_id or 0
        inputs = torch.tensor([line + [pad] * (longest - len(line)) for line in ids])
        lengths = torch.tensor([len(line) for line in ids])
        mask = (torch.arange(longest) < lengths[:, None]).to(torch.int64)
        return Batch(inputs, self.labels(rows, inputs, mask), mask)

    def outputs(self, network: Network, batch: Batch) -> Any:  # noqa: ANN401
        """What the network makes of a batch, with its mask and types of tokens, if it has such."""
        types = {} if batch.types is None else {"token_type_ids": batch.types}
        return network(input_ids=batch.inputs, attention_mask=batch.mask, **types)

    @abstractmethod
    def labels(self, rows: Rows, inputs: Tensor, mask: Tensor) -> Tensor:
        """Targets that the model learns to predict, in the form of ``Batch.labels``."""

    def examples(self, batch: Batch) -> Examples:
        """Texts and tokens with and without special tokens; padding is in neither."""
        mask = torch.ones_like(batch.inputs) if batch.mask is None else batch.mask
        pairs = zip(batch.inputs.tolist(), mask.tolist(), strict=True)
        real = [[i for i, flag in zip(ids, flags, strict=True) if flag] for ids, flags in pairs]
        special = set(self.spec.special_ids)
        tokens = [[i for i in ids if i not in special] for ids in real]
        return Examples(
            batch,
            words=tuple(map(self.text, tokens)),
            words_special=tuple(map(self.text, real)),
            tokens=tuple(map(tuple, tokens)),
            places=self.max_length,
        )

    def text(self, ids: Sequence[int]) -> str:
        """Text of the ids, with special tokens written out."""
        decoded: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return decoded


def text_spec(
    config: TaskConfig, kind: TaskKind, rows: Rows, tokenizer: PreTrainedTokenizerBase
) -> TaskSpec:
    """Public facts of a text task; its classes are those of the rows.

    Raises:
        ConfigError: the model does not fit the rows, the tokenizer or the options.
    """
    texts_of(rows, config.model)
    pad_id = padding(tokenizer)
    num_classes = count_classes(rows) if kind == "text-classification" else 0
    architecture = transformer.architecture(transformer.locate(config.model), num_classes)
    if not config.unchecked:
        families.check(config.model, architecture)
    if config.tokenizer:
        architecture |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if len(tokenizer) > architecture["vocab_size"]:
        raise ConfigError(
            f"task.model: the tokenizer of {config.model!r} has {len(tokenizer)} tokens, but its "
            f"embedding has {architecture['vocab_size']} rows. "
            "Use the tokenizer that the model was trained with."
        )
    adapters = _adapters(config, str(architecture["model_type"]))
    longest = most_tokens(architecture, tokenizer) - (adapters.tokens if adapters else 0)
    if config.max_length > longest:
        raise ConfigError(
            f"task.max_length: {config.model!r} takes at most {longest} tokens, "
            f"got {config.max_length}. Set {longest} or less."
        )
    return TaskSpec(
        kind=kind,
        model=config.model,
        architecture=architecture,
        num_classes=num_classes,
        input_shape=(config.max_length,),
        class_names=rows.class_names if num_classes else (),
        pad_id=pad_id,
        special_ids=special_ids(config.model, kind, tokenizer),
        adapters=adapters,
        trained=config.trained,
    )


def padding(tokenizer: PreTrainedTokenizerBase) -> int:
    """Token id of padding; the mask and the labels hide what is used where there is none."""
    if tokenizer.pad_token_id is None:  # GPT-2
        return int(tokenizer.eos_token_id or 0)
    return int(tokenizer.pad_token_id)


def most_tokens(architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of tokens that the model and its tokenizer take."""
    limits = ("n_positions", "max_position_embeddings", "max_seq_len")
    positions = next((size for name in limits if (size := architecture.get(name))), _UNLIMITED)
    kind = families.FAMILIES.get(architecture["model_type"])
    before = kind.before if kind else 0
    if before is None:
        before = int(architecture["pad_token_id"]) + 1
    return min(int(positions) - before, int(tokenizer.model_max_length))


def special_ids(model: str, kind: TaskKind, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the tokens that are not words, as in ``TaskSpec``.

    Raises:
        ConfigError: words are to be masked, and the tokenizer has no mask.
    """
    # [UNK] stands for a word and is not special, unless its id also ends a text, as in GPT-2.
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    words = {tokenizer.unk_token_id} - ends
    if kind == "masked-language-modelling":
        words.add(_mask_id(model, tokenizer))  # it takes the place of a word
    return tuple(sorted(set(tokenizer.all_special_ids) - words))


def _adapters(config: TaskConfig, family: str) -> Adapters | None:
    method = config.adapters or ("lora" if config.lora_rank else "")
    if method not in LOW_RANK:
        for name in ("rank", "targets", "dropout"):
            if value := getattr(config, f"lora_{name}"):
                why = f"{method!r} has none" if method else "lora_rank is 0"
                raise ConfigError(
                    f"task.lora_{name}: {value!r} needs adapters of a low rank, but {why}. "
                    f"Set task.adapters, or leave lora_{name} out."
                )
    if not method:
        if config.lora_saved:
            raise ConfigError(
                "task.lora_saved: needs adapters. Set task.adapters, or leave it out."
            )
        return None
    head, saved = config.lora_head, config.lora_saved
    if method == "ia3":
        return Adapters(method=method, head=head, saved=saved)
    if method in ("prompt", "p-tuning", "prefix"):
        return Adapters(method=method, tokens=config.virtual_tokens, head=head, saved=saved)
    targets = config.lora_targets or DEFAULT_TARGETS.get(family, ())
    if not targets:
        raise ConfigError(
            f"task.lora_targets: there is no default for a model of the type {family!r}. "
            "Name its linear layers."
        )
    return Adapters(
        method=method,
        rank=config.lora_rank or _RANK,
        alpha=config.lora_alpha,
        targets=targets,
        head=head,
        dropout=config.lora_dropout,
        saved=saved,
    )


def _mask_id(model: str, tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.mask_token_id is None:
        raise ConfigError(
            f"task.kind: the tokenizer of {model!r} has no mask token. "
            "Choose a model of the BERT type, or another kind."
        )
    return int(tokenizer.mask_token_id)


def texts_of(rows: Rows, model: str) -> list[str]:
    """Texts of ``rows``.

    Raises:
        ConfigError: the rows are images.
    """
    if isinstance(rows.inputs, tuple):
        return list(rows.inputs)
    raise ConfigError(
        f"task.model: {model!r} takes texts, but the data set holds images. "
        "Choose an image model, or set task.input_column to a column of texts."
    )
