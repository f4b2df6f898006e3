"""Inputs and outputs of layers, noted while a network runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Call(NamedTuple):
    """One call of a layer: its name, the layer, its first input and its output."""

    name: str
    layer: nn.Module
    input: Tensor
    output: Tensor


@contextmanager
def noted(layers: Mapping[str, nn.Module]) -> Iterator[list[Call]]:
    """The calls of layers inside the block, in their order."""
    calls: list[Call] = []
    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(partial(_note, calls, name)).remove)
        yield calls


def _note(
    calls: list[Call], name: str, layer: nn.Module, args: tuple[Any, ...], output: Tensor
) -> None:
    calls.append(Call(name, layer, args[0], output))


class _Reached(Exception):
    """Ends a forward pass once every layer has its input."""


def inputs_of(layers: Sequence[nn.Module], run: Callable[[], object]) -> list[Tensor]:
    """The input of each layer in a run of the network, which ends once all have theirs."""
    inputs: dict[int, Tensor] = {}

    def note(index: int, layer: nn.Module, args: tuple[Any, ...]) -> None:
        del layer
        inputs[index] = args[0]
        if len(inputs) == len(layers):
            raise _Reached

    with ExitStack() as stack, torch.no_grad(), suppress(_Reached):
        for index, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(partial(note, index)).remove)
        run()
    return [inputs[index] for index in range(len(layers))]
