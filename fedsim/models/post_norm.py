"""The small language model of Learning To Invert (Wu et al. 2022), as a model of transformers.

Modules have the names of their counterparts in GPT-2, where there is one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

_WORDS = 0.1  # the decoder's weights are uniform in [-0.1, 0.1]


class PostNormConfig(PretrainedConfig):  # type: ignore[misc]
    """Sizes of the model; the reference uses GPT-2's vocabulary of 50257 tokens."""

    model_type = "transformer3"

    vocab_size: int = 2000
    hidden_size: int = 96
    num_hidden_layers: int = 3
    num_attention_heads: int = 8
    intermediate_size: int = 1536
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        # transformers 4 ties what is not passed, whatever the class says.
        super().__init__(**{"tie_word_embeddings": False, **options})


class Attention(nn.Module):
    """Multi-head self-attention; one linear layer computes query, key and value."""

    def __init__(self, width: int, heads: int, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = heads, layer
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        # Initialised as in torch.nn.MultiheadAttention.
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: Tensor, cache: Any = None) -> Tensor:  # noqa: ANN401
        """Output ``(batch, token, width)``; the mask is added to the logits."""
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = split.unbind(2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        logits = query @ key.mT / query.shape[-1] ** 0.5
        mixed: Tensor = self.out(((logits + mask).softmax(-1) @ value).transpose(1, 2).flatten(2))
        return mixed


class PostNormBlock(nn.Module):
    """Attention and a ReLU layer, each followed by its residual sum and a normalisation."""

    def __init__(self, config: PostNormConfig, layer: int) -> None:
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.attention = Attention(width, config.num_attention_heads, layer)
        self.ln_1 = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor, cache: Any = None) -> Tensor:  # noqa: ANN401
        """Output ``(batch, token, width)``."""
        x = self.ln_1(x + self.attention(x, mask, cache))
        normed: Tensor = self.ln_2(x + self.outer(self.inner(x).relu()))
        return normed


class PostNormModel(PreTrainedModel):  # type: ignore[misc]
    """Word and position tables, followed by the blocks."""

    config_class = PostNormConfig
    base_model_prefix = "transformer"

    def __init__(self, config: PostNormConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.h = nn.ModuleList(PostNormBlock(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word table."""
        return self.wte

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: every layer draws its weights when it is built."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,  # noqa: ANN401
        inputs_embeds: Tensor | None = None,
        use_cache: bool = False,
    ) -> BaseModelOutputWithPast:
        """Last hidden states ``(batch, token, width)``.

        Args:
            input_ids: ``(batch, token)``.
            attention_mask: 1 for real tokens ``(batch, token)``, or a tensor that is added to the
                logits of attention and broadcasts to ``(batch, head, token, token)``.
            past_key_values: a transformers cache that holds the preceding tokens.
            inputs_embeds: word embeddings in place of ids.
            use_cache: ignored; a cache is used if one is given.
        """
        del use_cache
        words = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = torch.arange(past + words.shape[1], device=words.device)
        mask = attention_mask
        if mask is None or mask.dim() == 2:
            sees = places <= places[past:, None]
            if mask is not None:
                sees = sees & mask[:, None, None].bool()
            mask = torch.zeros_like(sees, dtype=words.dtype)
            mask = mask.masked_fill(~sees, torch.finfo(words.dtype).min)
        x = words + self.wpe(places[None, past:])
        for block in self.h:
            x = block(x, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)


class PostNormLM(PreTrainedModel):  # type: ignore[misc]
    """Three-layer language model of Learning To Invert, with a decoder not tied to the word table.

    Post-norm layers (Vaswani et al. 2017) without dropout, 1,002,528 weights. With the 1024
    positions there are 1,100,832, which is what Learning To Invert inverts: it leaves out the word
    table and the decoder. We differ from its reference, the ``transformer3`` of breaching, in three
    ways:

    - It multiplies the word table by ``sqrt(width)`` in the forward pass and gives the decoder the
      same values. Here that factor is part of the table, so word and position rows get the same
      gradient, as in BERT and GPT-2.
    - A token attends only to earlier ones. The reference never activates its mask, and so predicts
      tokens that it can see.
    - Each layer is initialised on its own; the reference copies one layer.
    """

    config_class = PostNormConfig
    base_model_prefix = "transformer"

    def __init__(self, config: PostNormConfig) -> None:
        super().__init__(config)
        self.transformer = PostNormModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        with torch.no_grad():
            words = self.lm_head.weight.uniform_(-_WORDS, _WORDS)
            self.transformer.wte.weight.copy_(config.hidden_size**0.5 * words)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word table."""
        return self.transformer.wte

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder."""
        return self.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: every layer draws its weights when it is built."""

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> CausalLMOutputWithPast:  # noqa: ANN401
        """Logits ``(batch, token, vocabulary)``; the options are those of the blocks."""
        body = self.transformer(input_ids, **options)
        logits = self.lm_head(body.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=body.past_key_values)


def register() -> None:
    """Register ``transformer3`` with transformers."""
    AutoConfig.register(PostNormConfig.model_type, PostNormConfig, exist_ok=True)
    AutoModelForCausalLM.register(PostNormConfig, PostNormLM, exist_ok=True)
