"""One small random model of each supported family, and what its clients send."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.tokens.first_layers import FirstLayers
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.models.embeddings import embedding_names
from fedsim.models.families import FAMILIES
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows, Tensors

_LENGTH = 12  # tokens of a sentence, so that four leave room in the width
_DRAWN = 0.1  # standard deviation of the weights: at 0.02, attention looks everywhere alike
_BERT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 40,
    "initializer_range": _DRAWN,
}
_DEBERTA = {
    **_BERT,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
}
_LLAMA = {**_BERT, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": {
        "dim": 64,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 128,
        "max_position_embeddings": 40,
        "initializer_range": _DRAWN,
    },
    "albert": {**_BERT, "embedding_size": 64, "hidden_size": 192, "num_hidden_layers": 2},
    "electra": {**_BERT, "embedding_size": 64},
    "mpnet": _BERT,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 40,
        "initializer_range": _DRAWN,
    },
    "transformer3": {**_BERT, "num_hidden_layers": 2},
    "gpt_neox": {**_BERT, "num_hidden_layers": 2},
    "opt": {
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "max_position_embeddings": 40,
        "init_std": _DRAWN,
    },
    "phi": {**_LLAMA, "num_key_value_heads": 4},
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), _LLAMA
    ),
}
"""``model_type`` -> the sizes of its configuration."""


@dataclass(frozen=True)
class FamilyCase:
    """A task of a random model, its weights, and sentences."""

    family: str
    task: TextTask
    sent: Tensors
    rows: Rows

    @classmethod
    def of(
        cls, family: str, lora_rank: int = 0, shape: Mapping[str, Any] | None = None
    ) -> FamilyCase:
        """The case of one family; with a rank, with adapters on what precedes any attention.

        ``shape`` replaces the sizes of ``SHAPES``.

        Raises:
            ConfigError: the family is not supported.
        """
        rows = load_rows("sentences", "train", modality="text")
        causal = FAMILIES[family].kinds[0] == "language-modelling"
        options: dict[str, Any] = {
            "dataset": "sentences",
            "tokenizer": "tiny-gpt2" if causal else "tiny-bert",
            "weights": "random",
            "max_length": _LENGTH,
        }
        with tempfile.TemporaryDirectory() as folder:
            table = {"model_type": family, **(shape or SHAPES[family])}
            (Path(folder) / "config.json").write_text(json.dumps(table))
            config = TaskConfig(model=folder, **options)
            task = make_task(config, rows)
            if lora_rank:
                layers = FirstLayers(task.build(), (2, 3, 4), _LENGTH)
                names = [name.rsplit(".", 1)[-1] for name in layers.tokens.modules]
                added = {"lora_rank": lora_rank, "lora_targets": tuple(_adapted(names))}
                config = config.model_copy(update=added)
                task = make_task(config, rows)
            sent = initial_weights(task, config, 0)
        assert isinstance(task, TextTask)
        return cls(family, task, sent, rows)

    def capture(self, rows: Sequence[int], *, frozen: bool = False) -> tuple[Observation, Batch]:
        """The gradient of these rows as the server sees it, without embeddings if ``frozen``."""
        network = self.task.model(self.sent)
        if self.task.spec.adapters is not None:
            adapted = self.task.build()
            trained = {name for name, own in adapted.named_parameters() if own.requires_grad}
            for name, own in network.named_parameters():
                own.requires_grad_(name in trained)
        names, batch = embedding_names(network), self.task.encode(self.rows.take(list(rows)))
        gradient = self.task.gradient(network, batch)
        if frozen:
            gradient = {k: v for k, v in gradient.items() if k not in {names.word, names.position}}
        known = Knowledge(num_examples=len(batch), defense=(), auxiliary=True)
        seen = Observation(CaptureKey(round=1, client=0), self.sent, gradient, "gradient", known)
        return seen, batch


def _adapted(names: Sequence[str]) -> list[str]:
    """The layers for query and value, or the one for both; keys never get an adapter in LoRA."""
    return [name for name in names if not name.startswith("k")]
