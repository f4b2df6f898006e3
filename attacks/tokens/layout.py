"""How applications set the texts of a batch, where they do not pad them on the right."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from attacks.tokens.first_layers import restarted
from attacks.tokens.segments import Segments
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch

Line = Sequence[int]
_SIZES = (*range(16, 129, 8), 160, 192, 256, 384, 512)
"""Lengths to which applications pad."""


@dataclass(frozen=True)
class Layout:
    """Where texts stand in a batch, and what the model is told of it.

    All but the last is of language models.

    With padding on the left and labels that are hidden at the padding alone, the last pad before a
    text predicts the text's first word, and has a gradient. It attends to nothing: fused attention,
    the default of transformers, makes its output 0, and eager attention the mean of all values.

    Attributes:
        pads: number before the longest text; None where the padding is on the right.
        counted: place of the pads where the application counts positions from each text's first
            word; None where transformers counts them from the first pad.
        fused: whether attention is fused.
        silent: whether the label of a padded text's first word is hidden as well.
        trailing: number of pads behind the longest text, where the padding is on the right and its
            labels are not hidden.
        restarts: token behind which positions count from 0 again, although the texts of a packed
            row see those before them; None where they do not.
        segments: the types of tokens that an encoder is given; None where all are 0.
    """

    pads: int | None = None
    counted: int | None = None
    fused: bool = False
    silent: bool = False
    trailing: int = 0
    restarts: int | None = None
    segments: Segments | None = None

    def place(self, lines: Sequence[Line], pad: int) -> tuple[Tensor, Tensor]:
        """Token ids and mask ``(text, token)``."""
        side = "right" if self.pads is None else "left"
        ids = [torch.tensor(list(line), dtype=torch.int64) for line in lines]
        inputs = pad_sequence(ids, batch_first=True, padding_value=pad, padding_side=side)
        ones = [torch.ones_like(line) for line in ids]
        mask = pad_sequence(ones, batch_first=True, padding_side=side)
        more = (self.pads or 0, self.trailing)
        if any(more):
            inputs = nn.functional.pad(inputs, more, value=pad)
            mask = nn.functional.pad(mask, more)
        return inputs, mask

    def predicted(self, mask: Tensor) -> Tensor:
        """Which tokens ``(text, token)`` have a label."""
        if self.trailing:
            return torch.ones_like(mask, dtype=torch.bool)
        if not self.silent:
            return mask == 1
        return mask.cumsum(1) > 1  # the first token is not predicted anyway

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """Let the network run as the application's."""
        with ExitStack() as stack:
            if self.counted is not None or self.restarts is not None:
                counted, end = self.counted or 0, self.restarts
                hook = _count_from(counted) if end is None else _restart_behind(end)
                handle = network.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            if self.fused:
                # Gemma 2 has eager attention alone, and so has its client.
                with suppress(ValueError):
                    _attend(network, "sdpa")
                stack.callback(_attend, network, "eager")
            yield


RIGHT = Layout()
"""Padding on the right, as fedsim has it."""


def batch_of(
    sentences: Sequence[Sequence[int]],
    task: Task,
    labels: Sequence[int] | Tensor,
    layout: Layout = RIGHT,
    smoothing: float = 0.0,
) -> Batch:
    """The sentences in a layout, with classes or next-token targets.

    A tensor of a language model's labels holds the weight of each token ``(text, token)`` instead.
    """
    inputs, mask = layout.place(sentences, task.spec.pad_id or 0)
    types = None if layout.segments is None else layout.segments.of(inputs)
    if task.spec.kind == "text-classification":
        return Batch(inputs, torch.as_tensor(labels), mask, types)
    if isinstance(labels, Tensor):
        return Batch(inputs, _weighted(inputs, labels.cpu(), smoothing, task), mask, types)
    return Batch(inputs, inputs.where(layout.predicted(mask), IGNORED), mask, types)


def _weighted(inputs: Tensor, weights: Tensor, smoothing: float, task: Task) -> Tensor:
    """Targets of a language model whose tokens weigh differently; hidden labels where that is all.

    Args:
        inputs: token ids ``(text, token)``.
        weights: ``(text, token)``, of as many tokens or more.
        smoothing: see ``Prover``.
        task: defines the vocabulary.
    """
    weights = weights[:, : inputs.shape[1]]
    if not smoothing and bool(((weights == 0) | (weights == weights.max())).all()):
        return inputs.where(weights > 0, IGNORED)
    size = int(task.spec.architecture["vocab_size"])
    targets = (1 - smoothing) * one_hot(inputs, size) + smoothing / size
    return targets * weights[..., None].float()


def left_layouts(places: Sequence[int], *, learned: bool) -> list[Layout]:
    """The layouts with padding on the left that a search tries.

    Args:
        places: of the first word of each text, as the learned table of positions shows them.
        learned: whether there is such a table.
    """
    if any(places):
        pads = min(places)
        return [Layout(pads, None, True), Layout(pads, None, True, silent=True), Layout(pads)]
    # Where positions are relative, fused attention makes every number of pads the same. The
    # longest of several texts may have no pad before it.
    several, counted = (1, 0) if len(places) > 1 else (1,), (1, 0, None) if learned else (None,)
    return [Layout(pads, at, True) for pads in several for at in counted]


def trailing_layouts(longest: int, places: int, most: int, *, learned: bool) -> Iterator[Layout]:
    """The layouts with padding on the right and its labels that a search tries.

    Args:
        longest: text in tokens.
        places: number that have a gradient, or the rank of it where positions are relative: pads
            that see the same words are nearly alike.
        most: tokens of a text.
        learned: whether a table shows the places.
    """
    if places <= longest:
        return
    more = () if learned else (*range(places + 2, places + 5), *_SIZES)
    for size in dict.fromkeys((places + 1, *more)):
        if places < size <= most:
            yield Layout(trailing=size - longest)


def _attend(network: Any, kind: str) -> None:  # noqa: ANN401
    if hasattr(network, "set_attn_implementation"):
        network.set_attn_implementation(kind)
        return
    network.config._attn_implementation = kind  # transformers 4.53, whose bodies keep a copy
    for module in network.modules():
        if hasattr(module, "_attn_implementation"):
            module._attn_implementation = kind


def _count_from(pads: int) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        mask = kwargs["attention_mask"]
        places = (mask.cumsum(1) - 1).masked_fill(mask == 0, pads)
        return args, kwargs | {"position_ids": places}

    return hook


def _restart_behind(end: int) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        return args, kwargs | {"position_ids": restarted(kwargs["input_ids"], end)}

    return hook
