"""Virtual tokens before each text: prompt tuning, P-tuning and prefix tuning, by ``peft``."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

NAME = "prompt_encoder"
"""Of the part of a network that holds them, as in peft."""


class Prompts(nn.ModuleDict):
    """Trained vectors that every text can attend to, and that stand nowhere in it.

    Prompt tuning (Lester et al. 2021) puts ``tokens`` vectors before the embedded words, P-tuning
    (Liu et al. 2021) those that a small network makes, and prefix tuning (Li and Liang 2021) puts
    keys and values before those of each layer. They act inside of the network's base model, so that
    its outputs are of the text alone. A classifier of the BERT type reads the first position, which
    is the first of the vectors where these stand before the words, as in peft.
    """

    def __init__(self, method: str, tokens: int, network: Any) -> None:  # noqa: ANN401
        config, words = network.config, network.get_input_embeddings()
        heads: int = config.num_attention_heads
        self.method, self.tokens, self.layers = method, tokens, int(config.num_hidden_layers)
        self.heads = int(getattr(config, "num_key_value_heads", None) or heads)
        width = config.hidden_size // heads * self.heads
        width = width if method == "prefix" else words.embedding_dim
        super().__init__({"default": self._encoder(width, words)})
        self._added = 0

    def _encoder(self, width: int, words: nn.Module) -> nn.Module:
        import peft

        shape = {
            "num_virtual_tokens": self.tokens,
            "token_dim": width,
            "num_transformer_submodules": 1,
            "num_attention_heads": self.heads,
            "num_layers": self.layers,
        }
        encoder: nn.Module
        if self.method == "prompt":
            encoder = peft.PromptEmbedding(peft.PromptTuningConfig(**shape), words)
        elif self.method == "p-tuning":
            table = peft.PromptEncoderConfig(**shape, encoder_hidden_size=width)
            encoder = peft.PromptEncoder(table)
        else:
            encoder = peft.PrefixEncoder(peft.PrefixTuningConfig(**shape))
        return encoder

    def before(
        self, base: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """The arguments of the base model, with what stands before the text."""
        given = dict(zip(inspect.signature(base.forward).parameters, args, strict=False)) | given
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        text = given.get("inputs_embeds") if ids is None else ids
        assert isinstance(text, Tensor)
        if mask is not None:
            if mask.dim() != 2:
                raise ValueError("virtual tokens take masks of texts (text, token) alone")
            given["attention_mask"] = torch.cat([mask.new_ones(len(mask), self.tokens), mask], 1)
        cache, self._added = given.get("past_key_values"), 0
        if isinstance(cache, tuple) or (cache is not None and cache.get_seq_length()):
            return (), given
        places = torch.arange(self.tokens, device=text.device).expand(len(text), -1)
        made = self["default"](places)
        if self.method == "prefix":
            return (), given | {"past_key_values": self._cache(made)}
        if ids is not None:
            text = base.get_input_embeddings()(ids)  # type: ignore[operator]
        given |= {"input_ids": None, "inputs_embeds": torch.cat([made, text], 1)}
        for name, first in (("token_type_ids", 0 * places), ("position_ids", places)):
            if (known := given.get(name)) is not None:
                known = known if name == "token_type_ids" else known + self.tokens
                given[name] = torch.cat([first[: len(known)], known], 1)
        self._added = self.tokens
        return (), given

    def after(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:  # noqa: ANN401
        """What the base model makes of the text alone."""
        output.last_hidden_state = output.last_hidden_state[:, self._added :]
        return output

    def _cache(self, made: Tensor) -> Any:  # noqa: ANN401
        """Keys and values ``(text, head, token, width)`` of each layer."""
        from transformers import DynamicCache

        cache = DynamicCache()
        shape = (len(made), self.tokens, 2 * self.layers, self.heads, -1)
        parts = made.view(shape).permute(2, 0, 3, 1, 4)
        for layer, (keys, values) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            cache.update(keys, values, layer)
        return cache


def put_before(network: Any, method: str, tokens: int) -> None:  # noqa: ANN401
    """Let virtual tokens stand before each text of a network; all else is frozen.

    Args:
        network: of transformers.
        method: ``prompt``, ``p-tuning`` or ``prefix``.
        tokens: how many.
    """
    network.requires_grad_(False)
    prompts = Prompts(method, tokens, network)
    network.add_module(NAME, prompts)
    network.base_model.register_forward_pre_hook(prompts.before, with_kwargs=True)
    network.base_model.register_forward_hook(prompts.after)


def is_prompt(name: str) -> bool:
    """True if a parameter belongs to virtual tokens."""
    return name.startswith(f"{NAME}.")
