"""A transformer's gradient in factored form, without forming any weight gradient.

The weight gradient of a linear layer is ``D^T X``, with its inputs ``X (row, in)``, the gradients
``D (row, out)`` at its outputs, and one row for each token. Inner products and norms of such
gradients follow from ``X`` and ``D`` alone (Goodfellow 2015; "ghost norms" of Li et al. 2022), for
each of many candidates that share one forward and backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from attacks.observed.replay import Replay
from fedsim.models.embeddings import embedding_names
from fedsim.models.layers import is_norm, is_transposed, normalised
from fedsim.models.prompts import is_prompt
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_LIVING_GRADIENT = 1e-10
"""Smallest gradient norm of a tensor that is more than float64 rounding, as a share of the largest;
the others are left out."""


@dataclass(frozen=True, slots=True)
class _Call:
    module: nn.Module
    inputs: Tensor
    output: Tensor


@dataclass(frozen=True, slots=True)
class _Direct:
    """A parameter whose gradient is a sum of slopes at ``value``.

    Attributes:
        name: of virtual tokens, whose every text has a copy; or of the factors of IA3.
        factors: those of IA3, by which ``value`` is multiplied; None of virtual tokens.
    """

    name: str
    value: Tensor
    factors: Tensor | None


class Factored:
    """The gradient of the loss as a function of word embeddings instead of tokens.

    It covers linear layers, norms, virtual tokens, factors of IA3 and all embedding tables but that
    of the words, in which a guess that is not a token has no row. Layers of other types are left
    out, and so are dead parameters, whose gradient is zero for analytical reasons, such as the bias
    of attention keys.

    Attributes:
        names: names of the parameters whose gradient it returns.
        layout: names of the parameters grouped by layers of one shape, including dead ones.
        weights: names of the parameters whose gradient is returned as a product.
    """

    def __init__(self, model: Replay) -> None:
        self.task, self.network = model.task, model.network
        names = {
            id(parameter): name
            for name, parameter in self.network.named_parameters()
            if name in model.parameters and name != embedding_names(self.network).word
        }
        # Keyed by module, since torch.func substitutes the parameters during a call.
        self._names = {
            (module, part): names[id(parameter)]
            for module in self.network.modules()
            for part, parameter in module.named_parameters(recurse=False)
            if id(parameter) in names
        }
        self._inputs: Tensor | None = None
        self._calls: list[_Call] = []
        self._direct: list[_Direct] = []
        self._others: set[nn.Module] = set()
        self._positions: dict[str, Tensor] = {}
        word = self._words()
        word.register_forward_hook(lambda *_: self._inputs)
        for module in self.network.modules():
            factors: Any = getattr(module, "ia3_l", None)
            if name := self._names.get((factors, "default")):
                inner: Any = module.base_layer
                inner.register_forward_hook(partial(self._note_scaled, module, name))
            if isinstance(module, nn.Embedding) and module is not word:
                module.register_forward_hook(self._note_table, with_kwargs=True)
            elif isinstance(module, nn.Linear) or is_transposed(module) or is_norm(module):
                module.register_forward_hook(self._note)
        self.network.requires_grad_(False)
        self.layout: list[tuple[str, ...]] = []
        self.weights: frozenset[str] = frozenset()
        self.names = self._living()

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._inputs is None:
            return
        if inputs[0].requires_grad:
            self._calls.append(_Call(module, inputs[0], output))
        else:  # all lanes share this use, as of DeBERTa's table of distances
            self._others.add(module)

    def _note_scaled(
        self, layer: nn.Module, name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if self._inputs is not None:
            scaling: Any = layer
            value = inputs[0] if scaling.is_feedforward else output
            self._direct.append(_Direct(name, value, scaling.ia3_l["default"].flatten()))

    def _note_table(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, ...],
        options: dict[str, Tensor],
        output: Tensor,
    ) -> Tensor | None:
        name = self._names.get((module, "weight"))
        if self._inputs is not None and name and is_prompt(name):
            # Each lane has a copy, whose slopes are its own.
            copy = output if output.requires_grad else output.detach().requires_grad_()
            self._direct.append(_Direct(name, copy, None))
            return copy
        # Only those embedding layers matter whose output is added to that of the words.
        if self._inputs is None or output.shape[-2:] != self._inputs.shape[-2:]:
            return None
        if name:
            places = options.get("position_ids")
            self._positions[name] = (
                inputs[0] if places is None else places + cast(Any, module).offset
            )
        return None

    def _living(self) -> frozenset[str]:
        """Names of the parameters whose gradient at a random input exceeds rounding."""
        dtype = next(self.network.parameters()).dtype
        self.network.double()
        width = self._words().embedding_dim
        tokens = min(8, self.task.spec.input_shape[0])
        generator = torch.Generator().manual_seed(0)
        guess = torch.randn(1, 1, tokens, width, generator=generator, dtype=torch.float64)
        device = next(self.network.parameters()).device
        batch = blank(self.task, 1, tokens).to(device)
        norms: dict[str, float] = {}
        for group in self(guess.to(device), batch, create_graph=False):
            self.layout.append(group.names)
            if isinstance(group, Products):
                self.weights |= set(group.names)
                values = (group.left.mT @ group.right).flatten(2).norm(dim=2)[:, 0]
            else:
                values = group.values.norm(dim=2)[:, 0]
            norms |= zip(group.names, values.tolist(), strict=True)
        self.network.to(dtype)
        least = _LIVING_GRADIENT * max(norms.values(), default=0.0)
        return frozenset(name for name, norm in norms.items() if norm > least)

    def _words(self) -> nn.Embedding:
        words: nn.Embedding = cast(Any, self.network).get_input_embeddings()
        return words

    def __call__(
        self,
        guess: Tensor,
        batch: Batch,
        *,
        create_graph: bool = True,
        parameters: Tensors | None = None,
        words: Tensor | None = None,
    ) -> list[Products | Vectors]:
        """The gradient of each lane's own mean loss.

        Args:
            guess: word embeddings ``(lane, example, token, width)``.
            batch: labels and mask of the ``lane * example`` guesses; its ids only give the shape.
                If the loss is a mean over tokens, all lanes need equally many.
            create_graph: whether the result is to be differentiated.
            parameters: point at which to take the gradient, instead of the network's own.
            words: of which the guess holds the embeddings ``(lane, example, token)``: adds the
                gradient of the word table's rows ``words.unique()``, under the name "".
        """
        lanes, examples, tokens, width = guess.shape
        if not guess.requires_grad:
            guess = guess.detach().requires_grad_()
        self._inputs = inputs = guess.reshape(lanes * examples, tokens, width)
        batch = replace(batch, inputs=self._ids(batch))
        if parameters is None:
            loss = self.task.loss(self.network, batch) * lanes
        else:
            loss = self.task.functional_loss(self.network, parameters, batch) * lanes
        self._inputs, calls, self._calls = None, self._calls, []
        direct, self._direct = self._direct, []
        asked = [inputs, *(call.output for call in calls), *(each.value for each in direct)]
        slopes = torch.autograd.grad(loss, asked, create_graph=create_graph)
        if not create_graph:
            calls = [replace(call, inputs=call.inputs.detach()) for call in calls]
            direct = [replace(each, value=each.value.detach()) for each in direct]
        groups = self._layers(calls, slopes[1 : 1 + len(calls)], lanes)
        for each, at in zip(direct, slopes[1 + len(calls) :], strict=True):
            by_example = at if each.factors is None else (at * each.value).sum(1) / each.factors
            groups.append(
                Vectors((each.name,), by_example.reshape(lanes, examples, -1).sum(1)[None])
            )
        slope = slopes[0].reshape(guess.shape)
        groups += self._tables(slope)
        if words is not None:
            rows, which = words.unique(return_inverse=True)
            holds = one_hot(which, len(rows)).to(slope)
            groups.append(Products(("",), holds.flatten(1, 2)[None], slope.flatten(1, 2)[None]))
        return groups

    def _ids(self, batch: Batch) -> Tensor:
        """Ids that are padding where the mask is 0: some networks count positions by the ids."""
        pad = self.task.spec.pad_id or 0
        # An id that is not padding, nor the 1 that RoBERTa and MPNet treat as padding.
        word = next(i for i in (2, 3) if i != pad)
        ids = torch.full_like(batch.inputs, word)
        return ids if batch.mask is None else ids.masked_fill(batch.mask == 0, pad)

    def _layers(
        self, calls: list[_Call], slopes: tuple[Tensor, ...], lanes: int
    ) -> list[Products | Vectors]:
        """Gradients of the layers, stacked by kind and shape for fewer and larger operations."""
        pairs: defaultdict[nn.Module, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for call, slope in zip(calls, slopes, strict=True):
            if call.module in self._others:
                continue
            pairs[call.module].append((call.inputs, slope))
        alike: defaultdict[tuple[Any, ...], list[nn.Module]] = defaultdict(list)
        for module, factors in pairs.items():
            named = tuple((module, part) in self._names for part in ("weight", "bias"))
            alike[type(module), named, *(t.shape for pair in factors for t in pair)].append(module)
        groups: list[Products | Vectors] = []
        for (_, (weights, biases), *_), modules in alike.items():
            inputs, output = (
                _rows([[pair[i] for pair in pairs[m]] for m in modules], lanes) for i in (0, 1)
            )
            if weights:
                names = tuple(self._names[module, "weight"] for module in modules)
                groups.append(_weights(modules[0], names, inputs, output))
            if biases:
                names = tuple(self._names[module, "bias"] for module in modules)
                groups.append(Vectors(names, output.sum(2)))
        return groups

    def _tables(self, slope: Tensor) -> list[Products | Vectors]:
        """Gradients of the tables that are added to the words, from that of the embeddings."""
        lanes, examples, tokens, width = slope.shape
        groups: list[Products | Vectors] = []
        for name, ids in self._positions.items():
            every = ids.expand(lanes * examples, tokens).reshape(lanes, -1, 1).expand(-1, -1, width)
            rows = slope.new_zeros(lanes, int(ids.max()) + 1, width)
            total = rows.scatter_add(1, every, slope.reshape(lanes, -1, width))
            groups.append(Vectors((name,), total.flatten(1)[None]))
        return groups


def blank(task: Task, examples: int, tokens: int) -> Batch:
    """A batch of token 0, and class 0 or target 0."""
    ids = torch.zeros(examples, tokens, dtype=torch.int64)
    return Batch(ids, ids[:, 0] if task.spec.num_classes else ids, torch.ones_like(ids))


def _rows(layers: list[list[Tensor]], lanes: int) -> Tensor:
    """``(layer, lane, row, width)`` from one tensor ``(lane * example, [token,] width)`` per use.

    The gradient of a layer that is used several times is the sum over its uses, which is the
    product of factors with the rows of all uses.
    """
    uses = [torch.stack(use) for use in zip(*layers, strict=True)]
    uses = [use.reshape(len(use), lanes, -1, use.shape[-1]) for use in uses]
    return uses[0] if len(uses) == 1 else torch.cat(uses, dim=2)


def _weights(
    module: nn.Module, names: tuple[str, ...], inputs: Tensor, output: Tensor
) -> Products | Vectors:
    if is_norm(module):
        return Vectors(names, (output * normalised(module, inputs)).sum(2))
    if is_transposed(module):
        return Products(names, inputs, output)
    return Products(names, output, inputs)


@dataclass(frozen=True, slots=True)
class Products:
    """Gradients ``left^T right`` of weights of one shape ``(a, b)``.

    Attributes:
        names: one parameter name for each layer.
        left: ``(layer, lane, row, a)``.
        right: ``(layer, lane, row, b)``.
    """

    names: tuple[str, ...]
    left: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Vectors:
    """Explicit gradients of small parameters: biases, layer norms, rows of position tables.

    Attributes:
        names: one parameter name for each layer.
        values: ``(layer, lane, coordinate)``; for a table its first rows, flattened.
    """

    names: tuple[str, ...]
    values: Tensor
