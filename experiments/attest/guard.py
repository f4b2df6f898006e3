"""A client's look at its own reply before it is sent: what of its rows would a server read off it?

The client knows its rows, so nothing is searched: the inputs of its layers, noted while it trains,
are held against the tensors that it is about to send.

- ``exact``: the change of a linear layer lies in the span of the layer's inputs, up to a share that
  noise or rounding leaves. Whoever guesses the rows can then prove the guess.
- ``rows``: a unit's weights over its bias are one of the layer's inputs.
- ``words``: rows of an embedding stand out that are those of the words in use.
- ``statistics``: running statistics are sent of a single example.

Half and twice of each threshold stop the same of 72 replies (five networks, one and eight rows;
bare, clipped, with weak noise, and with that of DP-SGD); where they name another test, it says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.lapack import dposv, sposv
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.reply_kind import are_weights
from fedsim.store.files import Record

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array | Tensor]
Rows: TypeAlias = slice | Array
ALL = slice(None)
Test: TypeAlias = Literal["exact", "rows", "words", "statistics"]
TESTS: tuple[Test, ...] = ("exact", "rows", "words", "statistics")
_KEPT = 512
"""Inputs of a layer that are noted; with more, the layer's rank tells nothing."""
_EXACT = 0.05
"""Share of a change outside of its inputs' span that still bears a guess out; proofs take .01."""
_RIDGE, _COARSE, _MANY = 1e-11, 1e-6, 64
"""Of the inputs' squares, by which equal ones keep their products invertible, in float64 and, of
more inputs than the third, in float32."""
_NEAR = 0.05
"""Relative distance of a unit's ratio from an input that gives the input away, 26 dB. Twice finds
rows in 3 more of the 72."""
_STANDING = 0.9
"""Share of the words in use whose rows are longer than nearly all others, from which the set is
told. Half finds words in 1 more of the 72."""
_UNITS, _ROWS = 64, 256
"""Units of the layer whose span is asked, and rows of words, in use or not: enough for a share, and
a small part of a step. Half of the units finds rows in 3 of the 72 less, and twice in 3 more."""
_TABLES = (nn.Embedding, nn.EmbeddingBag)
_BEYOND, _PRIME = 64, 10_007
"""Columns of the inputs that are asked beyond their count, and the stride by which they are taken:
a change that the inputs span is spanned in these, too."""
_TELLING, _KIND = 3, 2048
"""Layers, and entries of each, that tell weights from differences."""


class Note(Record):
    """What a guard found: names of tests and layers, and no number of the client's data.

    Attributes:
        shows: the tests that tell of the rows, each with the layer.
        asked: the tests that could be asked.
    """

    shows: tuple[tuple[Test, str], ...]
    asked: tuple[Test, ...]

    @property
    def passes(self) -> bool:
        """Whether something was asked, and nothing told of a row."""
        return bool(self.asked) and not self.shows

    def __str__(self) -> str:
        if not self.asked:
            return "guard: no layer was seen in training, so that nothing is known"
        listed = ", ".join(f"{test} ({layer})" for test, layer in self.shows)
        return f"guard: the reply shows {listed}" if listed else "guard: nothing shows"


@dataclass
class _Layer:
    """A linear layer, or a table of words or of other codes, with what it was given."""

    name: str
    module: nn.Module
    hook: RemovableHandle | None = None
    inputs: list[Tensor] = field(default_factory=list)
    copied: int = 0
    count: int = 0
    used: Tensor | None = None

    @property
    def weight(self) -> str:
        """Name of its weight."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias(self) -> str:
        """Name of its bias."""
        return f"{self.name}.bias" if self.name else "bias"

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Outputs, or rows of a table, and inputs."""
        first, second = self.module.get_parameter("weight").shape
        return (second, first) if _transposed(self.module) else (first, second)

    @property
    def share(self) -> float:
        """Of all directions, those that its inputs can have; of all where that tells nothing."""
        return self.count / self.shape[1]

    @property
    def cost(self) -> int:
        """Of asking for its span."""
        height, width = self.shape
        return self.count * width * (self.count + min(height, _UNITS))

    def enter(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        """Note an input while it trains, until there are more than tell."""
        taken = _tensor(args)
        if taken is None or not torch.is_grad_enabled():
            return
        if isinstance(self.module, _TABLES):
            if self.used is None:
                self.used = taken.new_zeros(self.shape[0], dtype=torch.bool)
            self.used[taken.flatten()] = True
            self.count += taken.numel()
            return
        rows = taken.detach().flatten(0, -2)
        self.count += len(rows)
        self.inputs.append(rows)
        if self.count > _KEPT:
            self.forget()

    def copy(self) -> None:
        """What it was given may be written over after the step."""
        self.inputs[self.copied :] = [each.clone() for each in self.inputs[self.copied :]]
        self.copied = len(self.inputs)

    def forget(self) -> None:
        """Note no more of it."""
        self.inputs.clear()
        if self.hook is not None:
            self.hook.remove()

    def matrix(self) -> Array:
        """Its inputs, ``(count, width)``."""
        return torch.cat(self.inputs).float().cpu().numpy()


@dataclass
class Guard:
    """Holds a reply against what its client trained on.

    Attributes:
        hold: tests that a reply has to pass, with commas; all if empty.

    Example:
        In a loop of PyTorch, or in a filter of NVFlare:

        >>> import fedsim, torch
        >>> net, guard = torch.nn.Linear(64, 10), fedsim.Guard()
        >>> before = {k: v.clone() for k, v in net.state_dict().items()}
        >>> with guard.watching():
        ...     net(torch.rand(1, 64)).logsumexp(1).sum().backward()
        >>> gradients = {name: p.grad for name, p in net.named_parameters()}
        >>> guard.check(before, gradients).passes
        False
    """

    hold: str = ""
    _layers: list[_Layer] = field(default_factory=list, repr=False)
    _hooks: list[RemovableHandle] = field(default_factory=list, repr=False)
    _examples: int = 0
    _size: int = 0
    _root: nn.Module | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse names of no test."""
        for name in self.tests:
            if name not in TESTS:
                raise ConfigError(f"hold: {name!r} is no test. {suggest(name, TESTS)}")

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that are held."""
        return tuple(part.strip() for part in self.hold.split(",")) if self.hold else TESTS

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the inputs of layers that train inside the block."""
        self._layers, self._examples, self._root = [], 0, None
        self._hooks = [register_module_forward_pre_hook(self._first)]
        try:
            yield
        finally:
            for hook in self._hooks:
                hook.remove()

    def _first(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The first module that trains is the network; from then on its layers alone are seen."""
        if not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
            return
        self._hooks.pop().remove()
        self._root = module
        self._layers = [_Layer(name, k) for name, k in module.named_modules() if _is_asked(k)]
        for layer in self._layers:
            layer.hook = layer.module.register_forward_pre_hook(layer.enter)
            self._hooks.append(layer.hook)
        self._hooks.append(module.register_forward_pre_hook(self._enter))
        self._hooks.append(module.register_forward_hook(self._leave))
        self._enter(module, args)
        if self._layers and self._layers[0].module is module:  # its hooks are of the next call
            self._layers[0].enter(module, args)

    def _enter(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            taken = _tensor(args)
            count = len(taken) if taken is not None and taken.dim() else 1
            self._examples += count
            self._size = taken.numel() // max(count, 1) if taken is not None else 0

    def _leave(self, *_: object) -> None:
        """Of what the layers took, keep copies where they will be asked."""
        noted = [each for each in self._layers if each.inputs]
        low = [each for each in noted if each.share < 1]
        kept = [each for each in noted[:1] if each.shape[1] == self._size]
        if low:  # which is asked now, and which can be after most steps
            kept += [min(low, key=lambda each: each.cost), min(low, key=lambda each: each.share)]
        for layer in noted:
            (layer.copy if layer in kept else layer.forget)()

    def check(self, sent: Arrays, reply: Arrays) -> Note:
        """What the reply shows of the rows that were noted.

        Args:
            sent: the weights that the client started from.
            reply: what it is about to send: weights, differences or gradients, by the same names,
                those of its network's ``state_dict``, or in their order.
        """
        asked, shows = set[Test](), list[tuple[Test, str]]()
        if not any(layer.weight in reply for layer in self._layers):
            sent, reply = self._by_name(sent, reply)
        for test, layer, shown in self._answers(Change.of(sent, reply, self._layers)):
            asked.add(test)
            shows += [(test, layer)] if shown else []
        return Note(shows=tuple(shows), asked=tuple(sorted(asked)))

    def _by_name(self, sent: Arrays, reply: Arrays) -> tuple[Arrays, Arrays]:
        """Tensors that come in the order of the network's ``state_dict``, by its names."""
        names = [] if self._root is None else list(self._root.state_dict())
        if not len(reply) == len(sent) == len(names):
            return sent, reply
        start, end = (dict(zip(names, part.values(), strict=True)) for part in (sent, reply))
        return start, end

    def _answers(self, change: Change) -> Iterator[tuple[Test, str, bool]]:
        seen = [each for each in self._layers if each.count and each.weight in change]
        noted = [each for each in seen if each.inputs]
        tables = [each for each in seen if each.used is not None]
        if tables and "words" in self.tests:  # those of places and segments are shorter
            words = max(tables, key=lambda each: each.shape[0])
            yield "words", words.name, _words_stand_out(words, change)
        for layer in noted[:1]:
            if "rows" in self.tests and layer.shape[1] == self._size and layer.bias in change:
                yield "rows", layer.name, _ratio_is_an_input(layer, change)
        low = [each for each in noted if each.share < 1]
        if low and "exact" in self.tests:
            cheap = min(low, key=lambda each: each.cost)
            yield "exact", cheap.name, _outside(cheap, change) < _EXACT
        means = next((name for name in change.reply if name.endswith("running_mean")), None)
        if "statistics" in self.tests and means is not None and bool(change.of_rows(means).any()):
            yield "statistics", means.rpartition(".")[0], self._examples == 1


@dataclass(frozen=True)
class Change:
    """By how much a client moves the weights, or its gradient; entries are read where asked for."""

    sent: Arrays
    reply: Arrays
    weights: bool

    @classmethod
    def of(cls, sent: Arrays, reply: Arrays, layers: Sequence[_Layer]) -> Change:
        """Of replies with weights, or with what is added to them, as some of their rows tell."""
        names = (each.weight for each in layers if each.count)
        asked = [name for name in names if name in reply and name in sent][:_TELLING]
        if not asked:
            return cls(sent, reply, weights=False)
        strides = {k: max(1, math.prod(reply[k].shape) // _KIND) for k in asked}
        start, end = (
            np.concatenate([_rows(part[k], slice(None, None, strides[k])).ravel() for k in asked])
            for part in (sent, reply)
        )
        products = (float(np.vdot(*pair)) for pair in ((start, start), (end, end), (start, end)))
        return cls(sent, reply, are_weights(*products))

    def __contains__(self, name: object) -> bool:
        return name in self.reply and (not self.weights or name in self.sent)

    def of_rows(self, name: str, rows: Rows = ALL, *, transposed: bool = False) -> Array:
        """The change of some rows, or columns, of a tensor; of all without a choice."""
        moved = _rows(self.reply[name], rows, transposed=transposed)
        if self.weights:
            moved = moved - _rows(self.sent[name], rows, transposed=transposed)
        return moved


def _rows(value: Array | Tensor, rows: Rows = ALL, *, transposed: bool = False) -> Array:
    """Some of them, on the CPU in float32."""
    if isinstance(value, Tensor):
        value = value.detach().to_dense()  # a table's gradient may be sparse
        value = value.numpy() if value.dtype == torch.float32 and not value.is_cuda else value
    part = value[:, rows].T if transposed else value[rows]
    if isinstance(part, Tensor):
        part = part.float().cpu().numpy()
    return np.asarray(part, np.float32)


def _is_asked(module: nn.Module) -> bool:
    held = [p for p in module._parameters.values() if p is not None and p.requires_grad]
    return bool(held) and (isinstance(module, (nn.Linear, *_TABLES)) or _transposed(module))


def _transposed(module: nn.Module) -> bool:
    """Whether it is transformers' ``Conv1D``, whose weight is ``(input, output)``."""
    return type(module).__name__ == "Conv1D"


def _tensor(args: tuple[Any, ...]) -> Tensor | None:
    """The first that a module was called with."""
    return next((each for each in args if isinstance(each, Tensor)), None)


def _outside(layer: _Layer, change: Change) -> float:
    """Share of the change of some units that the layer's inputs do not span.

    Of inputs ``X`` and a change ``W``, both by rows, what the rows span of it has the squared norm
    ``tr(W X' (X X')^-1 X W')``. Columns are taken by a stride, as many as show noise.
    """
    height, width = layer.shape
    units = slice(None, None, -(-height // _UNITS))
    weight = change.of_rows(layer.weight, units, transposed=_transposed(layer.module))
    inputs, asked = layer.matrix(), min(layer.count + _BEYOND, width)
    if asked < width:
        columns = np.arange(asked) * _PRIME % width
        weight, inputs = weight[:, columns], inputs[:, columns]
    many = len(inputs) > _MANY
    inputs = inputs if many else inputs.astype(np.float64)
    products, shared = inputs @ inputs.T, inputs @ weight.T
    products.flat[:: len(products) + 1] += (_COARSE if many else _RIDGE) * products.trace()
    _, solved, failed = (sposv if many else dposv)(products, shared)
    whole = float(np.vdot(weight, weight))
    # Inputs of zeros span nothing.
    inside = float(np.vdot(shared, solved)) / whole if whole and not failed else 0.0
    # Noise is seen in what inputs leave free, a smaller part of these columns than of all.
    beyond = (1 - layer.share) / (1 - layer.count / asked)
    return math.sqrt(max(0.0, beyond * (1 - inside)))


def _ratio_is_an_input(layer: _Layer, change: Change) -> bool:
    """Whether the weights of a unit, of those that move most, over its bias are an input."""
    bias = change.of_rows(layer.bias)
    units = np.argsort(-np.abs(bias))[:_UNITS]
    units = units[bias[units] != 0]
    weight = change.of_rows(layer.weight, units, transposed=_transposed(layer.module))
    inputs, ratios = layer.matrix(), weight / bias[units, None]
    lengths, energies = ((part * part).sum(1) for part in (inputs, ratios))
    apart = lengths[:, None] + energies - 2 * inputs @ ratios.T
    return bool((apart < _NEAR**2 * lengths[:, None]).any())


def _words_stand_out(layer: _Layer, change: Change) -> bool:
    assert layer.used is not None
    used = layer.used.cpu().numpy()
    if used.all():
        return False
    inside, outside = (_lengths(layer, change, np.flatnonzero(part)) for part in (used, ~used))
    usual = np.sort(outside)[max(0, round(0.999 * len(outside)) - 1)]
    return float((inside > usual).mean()) >= _STANDING


def _lengths(layer: _Layer, change: Change, rows: Array) -> Array:
    """Squared, of some of these rows."""
    chosen = change.of_rows(layer.weight, rows[:: -(-len(rows) // _ROWS)])
    lengths: Array = np.einsum("ij,ij->i", chosen, chosen)
    return lengths
