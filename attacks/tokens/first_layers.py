"""Inputs of the linear layers in a text model's first block, for any tokens."""

from __future__ import annotations

import copy
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attacks.observed.calls import inputs_of, noted
from attacks.tokens.segments import Segments
from fedsim.errors import CannotAttack
from fedsim.models.adapters import is_second_factor, second_factor
from fedsim.models.embeddings import embedding_names
from fedsim.models.layers import is_transposed
from fedsim.types import Tensors

_CONTEXT_LAYERS = 3
"""Layers considered behind the first attention: its output and both of the feed-forward part."""
_LINES = 256
"""Sentences in one run, where each next token needs one of its own."""
_BESIDE = 1e-3
"""Relative error of inputs that rounding explains: 0 in eleven families. The others (BLOOM, MPT and
Mamba) have no places to set and are not run so. Half and twice of it judge alike."""
_LATER_LAYERS = 4
"""Layers considered behind those: the ones of the second block."""
_WINDOWS = ("sliding_window", "attention_chunk_size")
"""Options of transformers' networks whose layers let a token see so many tokens, itself among them;
a mask that is handed to such a network replaces its own."""


@dataclass(frozen=True)
class Layer:
    """Linear modules that share one input, such as query, key and value.

    Attributes:
        modules: their names.
        transposed: those whose weight is ``(width, outputs)``, as GPT-2's.
    """

    modules: tuple[str, ...]
    transposed: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the first module as the user knows it, without the adapter's suffix."""
        return self.modules[0].partition(".lora_A")[0].removesuffix(".base_layer")

    def weights(self, sent: Tensors) -> list[str]:
        """Names of the layer's weights in ``sent``, with a frozen ``A`` whose ``B`` is."""
        names = (f"{module}.weight" for module in self.modules)
        return [name for name in names if name in sent or second_factor(name) in sent]

    def side(self, update: Tensors) -> Tensor:
        """The layer's weight gradients side by side ``(width, outputs)``."""
        parts = (
            update[name] if name[:-7] in self.transposed else update[name].T
            for name in self.weights(update)
        )
        return torch.cat([*parts], 1)


class FirstLayers:
    """A network truncated after its first block, regardless of its modules' names.

    The layers are found by running the network. Modules with the same input tensor form one layer,
    and a layer whose input depends on a token and its position alone precedes any attention.

    Attributes:
        tokens: the layer before any attention: query, key and value.
        contexts: the layers behind the first attention: its output and both of the feed-forward
            part; in a model with adapters, the next three layers that have one.
        later: the layers of the second block.
        places: rows of the learned position table that the longest sentence uses; None without one.
        causal: whether a token attends to earlier tokens only.
        everywhere: whether a token has the same input before any attention at all positions, as
            with rotary and relative ones.
        begin: place of a sentence's first token, behind padding on the left.
        restarts: the token behind which places count from 0 again, as in packed rows; or None.
        segments: the types of an encoder's tokens; None where all are 0.
        placed: whether tokens can be set at other places, which a bias by distance (ALiBi) is not.
    """

    def __init__(self, network: nn.Module, vocabulary: Sequence[int], length: int) -> None:
        """Run the network on a few words.

        Args:
            network: in eval mode.
            vocabulary: three different token ids, none of them padding.
            length: longest sentence in tokens.

        Raises:
            CannotAttack: the network has no attention over linear layers.
        """
        self.network = network
        position = embedding_names(network).position
        table = None if position is None else network.get_submodule(position[:-7])
        # OPT's table takes the mask in place of indices.
        self._table = table if type(table) is nn.Embedding else None
        self.places: Tensor | None = None
        self._takes_positions = "position_ids" in inspect.signature(network.forward).parameters
        self._arguments: dict[str, Tensor] = {}
        self.begin = 0
        self.restarts: int | None = None
        self.segments: Segments | None = None
        a, b, c = vocabulary
        layers, plain = self._trace([a, b, a])
        _, late = self._trace([a, b, c])
        _, early = self._trace([c, b, a])
        uses = Counter(name for layer in layers for name in layer.modules)
        once = [all(uses[name] == 1 for name in layer.modules) for layer in layers]
        sees = [not torch.equal(p[2], e[2]) for p, e in zip(plain, early, strict=True)]
        bare = [
            layer for layer, single, yes in zip(layers, once, sees, strict=True) if single > yes
        ]
        trained = {
            name for name, parameter in network.named_parameters() if parameter.requires_grad
        }
        # The gradient of shared weights (ALBERT) mixes the inputs of all blocks: the last resort.
        fresh = once if any(map(min, once, sees)) else _first_uses(layers)
        behind = [
            layer
            for layer, new, yes in zip(layers, fresh, sees, strict=True)
            if new and yes and any(f"{name}.weight" in trained for name in layer.modules)
        ]
        self.contexts = behind[:_CONTEXT_LAYERS]
        self.later = behind[_CONTEXT_LAYERS : _CONTEXT_LAYERS + _LATER_LAYERS]
        if not bare or not self.contexts:
            raise CannotAttack(
                f"{type(network).__name__} has no linear layers before and after an attention, or "
                "the one before is used in several blocks",
                "Choose a model of a supported type.",
            )
        self.tokens = bare[0]
        config = getattr(network, "config", None)
        self._window = min(getattr(config, name, None) or sys.maxsize for name in _WINDOWS)
        ahead = zip(plain, late, sees, strict=True)
        self.causal = all(torch.equal(p[0], e[0]) for p, e, yes in ahead if yes)
        with self._placed(None):
            self._run([self.tokens], torch.full((1, length), a, device=self._device))
        self.placed = self._table is not None or self._takes_positions
        index = layers.index(self.contexts[0])
        alone = {a: plain[index][2], c: late[index][2]}
        self._alone = self.causal and not (self.placed and self._runs_beside([a, b], alone))
        word = torch.tensor([a, b], device=self._device)
        self.everywhere = torch.equal(self.of_tokens(word, 0), self.of_tokens(word, 1))

    def placed_at(self, begin: int, restarts: int | None = None) -> FirstLayers:
        """The same layers for texts behind padding, or for rows whose places restart."""
        placed = copy.copy(self)
        placed.begin, placed.restarts = begin, restarts
        return placed

    def of_types(self, segments: Segments | None) -> FirstLayers:
        """The same layers for tokens of other types."""
        typed = copy.copy(self)
        typed.segments = segments
        return typed

    def of_length(self, length: int) -> FirstLayers:
        """The same layers for sentences of at most so many tokens, no more than before."""
        shorter = copy.copy(self)
        shorter.places = None if self.places is None else self.places[:length]
        return shorter

    def _places(self, ids: Tensor) -> Tensor:
        """Where the tokens of each sentence stand ``(1 or sentence, token)``."""
        if self.restarts is not None:
            return restarted(ids, self.restarts)
        return self.begin + torch.arange(ids.shape[1], device=self._device)[None]

    def of_tokens(self, ids: Tensor, position: int | Tensor) -> Tensor:
        """Inputs ``(token, width)`` of the first layer, at one position or each at its own."""
        if isinstance(position, int):
            position = torch.tensor([position], device=self._device)
        with self._placed(position[:, None]):
            return self._run([self.tokens], ids[:, None])[0][:, 0]

    def of_sentences(self, layer: Layer, ids: Tensor, mask: Tensor) -> Tensor:
        """Inputs ``(sentence, token, width)`` of a layer behind the attention."""
        usual = self.begin == 0 and self.restarts is None
        with nullcontext() if usual else self._placed(self._places(ids)):
            return self._run([layer], ids, mask)[0]

    def of_extensions(
        self, layers: Sequence[Layer], prefixes: Tensor, tokens: Tensor
    ) -> list[Tensor]:
        """Inputs ``(prefix, token, width)`` of each token as the next one of each prefix, by layer.

        All tokens run beside each other at the same position, each seeing the prefix and itself:
        one short run instead of one sentence for each pair, unless the network cannot run so. For
        causal networks.

        Args:
            layers: in the order of the network.
            prefixes: ``(prefix, position)``.
            tokens: ``(token,)`` for all prefixes, or ``(prefix, token)``.
        """
        (count, start), more = prefixes.shape, tokens.shape[-1]
        if self._alone or start >= self._window:
            lines = prefixes.repeat_interleave(more, 0)
            lines = torch.cat([lines, tokens.expand(count, more).reshape(-1, 1)], 1)
            parts = [self.of_lines(layers, part) for part in lines.split(_LINES)]
            last = [torch.cat([inputs[:, -1] for inputs in of]) for of in zip(*parts, strict=True)]
            return [inputs.view(count, more, -1) for inputs in last]
        size, most = start + more, self._longest
        if size > most > start:
            parts = [
                self.of_extensions(layers, prefixes, some)
                for some in tokens.split(most - start, -1)
            ]
            return [torch.cat(inputs, 1) for inputs in zip(*parts, strict=True)]
        sees = torch.eye(size, dtype=torch.bool, device=self._device)
        sees[:, :start] = True
        sees[:start, :start] = sees[:start, :start].tril()
        dtype = next(self.network.parameters()).dtype
        mask = torch.zeros(size, size, dtype=dtype, device=self._device)
        mask = mask.masked_fill(~sees, torch.finfo(dtype).min).expand(count, 1, size, size)
        ids = torch.cat([prefixes, tokens.expand(count, more)], 1)
        places = self._places(ids[:, : start + 1])
        places = torch.cat([places, places[:, -1:].expand(-1, more - 1)], 1)
        with self._placed(places):
            return [inputs[:, start:] for inputs in self._run(layers, ids, mask)]

    def of_lines(self, layers: Sequence[Layer], ids: Tensor) -> list[Tensor]:
        """Inputs ``(sentence, token, width)`` of each layer, for sentences of one length."""
        return self._run(layers, ids)

    def _runs_beside(self, prefix: list[int], alone: dict[int, Tensor]) -> bool:
        """Whether tokens beside each other have the inputs that each has behind a prefix ``alone``.

        Not where a network makes more of its mask than a mask, or has another one in its layers.
        """
        line, words = (torch.tensor(ids, device=self._device) for ids in ([prefix], [*alone]))
        self._alone = False
        try:
            beside = self.of_extensions(self.contexts[:1], line, words)[0][0]
        except (RuntimeError, ValueError, IndexError):  # of a mask of four dimensions
            return False
        inputs = torch.stack([*alone.values()])
        return bool((beside - inputs).norm() <= _BESIDE * inputs.norm())

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    @cached_property
    def _longest(self) -> int:
        """Longest run: GPT-2 of transformers 4 keeps a causal mask of so many places."""
        masks = (
            value for name, value in self.network.named_buffers() if name.endswith("attn.bias")
        )
        return min((mask.shape[-1] for mask in masks), default=sys.maxsize)

    def _run(
        self, layers: Sequence[Layer], ids: Tensor, mask: Tensor | None = None
    ) -> list[Tensor]:
        mask = torch.ones_like(ids) if mask is None else mask
        modules = [self.network.get_submodule(layer.modules[0]) for layer in layers]
        types = {} if self.segments is None else {"token_type_ids": self.segments.of(ids)}
        return inputs_of(
            modules,
            lambda: self.network(input_ids=ids, attention_mask=mask, **types, **self._arguments),
        )

    def _trace(self, words: list[int]) -> tuple[list[Layer], list[Tensor]]:
        """All layers in the order of their use, and their inputs ``(token, width)``."""
        ids = torch.tensor([words], device=self._device)
        modules = dict(self.network.named_modules())
        transposed = {name for name, module in modules.items() if is_transposed(module)}
        linear = {
            name: module
            for name, module in modules.items()
            if (isinstance(module, nn.Linear) or name in transposed) and not is_second_factor(name)
        }
        with torch.no_grad(), noted(linear) as calls:
            self.network(input_ids=ids, attention_mask=torch.ones_like(ids))
        inputs, names = list[Tensor](), list[list[str]]()
        for call in calls:
            if call.input.dim() != 3:
                continue
            same = next((i for i, value in enumerate(inputs) if value is call.input), None)
            if same is None:
                inputs.append(call.input)
                names.append([call.name])
            else:
                names[same].append(call.name)
        layers = [Layer(tuple(alike), frozenset(transposed & {*alike})) for alike in names]
        return layers, [value[0] for value in inputs]

    @contextmanager
    def _placed(self, positions: Tensor | None) -> Iterator[None]:
        """Let the tokens stand at these positions ``(1 or sentence, token)``.

        None notes where the network itself puts them. The indices of a learned table are exchanged
        on their way in, because not every network takes them as an argument, and some count from 2.
        """
        if self._table is None:
            if positions is not None and self._takes_positions:
                self._arguments = {"position_ids": positions}
            try:
                yield
            finally:
                self._arguments = {}
            return

        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
            if positions is None:
                self.places = args[0].flatten()
                return None
            assert self.places is not None
            return (self.places[positions],)

        handle = self._table.register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()


def restarted(ids: Tensor, end: int) -> Tensor:
    """Places ``(sentence, token)`` that count from 0 behind each token ``end``."""
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    starts = torch.zeros_like(ids)
    starts[:, 1:] = places[:, 1:].where(ids[:, :-1] == end, 0)
    return places - starts.cummax(1).values


def _first_uses(layers: Sequence[Layer]) -> list[bool]:
    before = [{name for layer in layers[:i] for name in layer.modules} for i in range(len(layers))]
    return [seen.isdisjoint(layer.modules) for seen, layer in zip(before, layers, strict=True)]
