"""Inputs and outputs of layers, noted while a network runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

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
