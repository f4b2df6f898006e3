"""A Flower client mod that records what a test federation trained on, to score attacks with.

It belongs to federations whose members agree, on test data: the folder holds their examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import Context, Message
from torch import Tensor
from torch.utils.data import DataLoader

from fedsim.capture import CaptureKey, client_of
from fedsim.truth import TruthStore
from fedsim.types import Batch, joined

Pixels: TypeAlias = Callable[[Tensor], Tensor]
_IGNORED = -100


def truth_mod(
    folder: Path | str, *, pixels: Pixels = lambda images: images
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """A mod for ``ClientApp(mods=[truth_mod("/data/truth")])``.

    While a client answers a request to train, it notes every batch that a ``DataLoader`` of torch
    yields with gradients enabled, so that evaluation under ``no_grad`` is left out. Each batch is a
    dictionary with ``input_ids``, or holds images and classes. The message and the reply are not
    changed, and the server never reads the folder.

    Args:
        folder: where to write, in the format of ``fedsim.truth``; readable by its owner alone.
        pixels: from the network's images to [0, 1], the inverse of the application's normalisation.

    Example:
        >>> import tempfile
        >>> from flwr.clientapp import ClientApp
        >>> from clients.truth_mod import truth_mod
        >>> app = ClientApp(mods=[truth_mod(tempfile.mkdtemp())])
    """
    store = TruthStore(Path(folder).absolute())

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        batches: list[Batch] = []
        with _noted(batches, pixels):
            reply = call_next(message, context)
        round_ = round_of(message)
        if batches and round_ is not None:
            key = CaptureKey(round=round_, client=client_of(context.node_id))
            distinct, steps = _distinct(batches)
            store.save(key, distinct, tuple(range(len(distinct))), steps)
        return reply

    return mod


def round_of(message: Message) -> int | None:
    """What Flower's strategies state in the configuration of each request, or as its group."""
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(str(record["server-round"]))
    group = message.metadata.group_id  # where the older strategies are driven
    return int(group) if group.isdigit() else None


@contextmanager
def _noted(batches: list[Batch], pixels: Pixels) -> Iterator[None]:
    """Note what data loaders yield inside the block."""
    plain: Any = DataLoader.__iter__

    def iterate(loader: Any) -> Iterator[Any]:  # noqa: ANN401
        for raw in plain(loader):
            if torch.is_grad_enabled() and (batch := _batch(raw, pixels)) is not None:
                batches.append(batch)
            yield raw

    DataLoader.__iter__ = iterate  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = plain  # type: ignore[method-assign]


def _batch(raw: Any, pixels: Pixels) -> Batch | None:  # noqa: ANN401
    """A batch as fedsim has it; None if it holds neither token ids nor images."""
    if isinstance(raw, Mapping) and isinstance(ids := raw.get("input_ids"), Tensor):
        mask = raw.get("attention_mask", torch.ones_like(ids)).cpu().clone()
        labels = raw.get("labels", raw.get("label"))
        if labels is None or labels.dim() == 2:
            labels = ids.masked_fill(mask.to(ids.device) == 0, _IGNORED)
        return Batch(ids.cpu().clone(), labels.cpu().clone(), mask)
    parts = list(raw.values()) if isinstance(raw, Mapping) else raw
    if not isinstance(parts, Sequence):
        return None
    tensors = [part.detach().cpu() for part in parts if isinstance(part, Tensor)]
    images = [part for part in tensors if part.dim() == 4 and part.is_floating_point()]
    classes = [part for part in tensors if part.dim() == 1 and not part.is_floating_point()]
    if not images or not classes:
        return None
    return Batch(pixels(images[0]).clone().float(), classes[0].clone())


def _distinct(batches: Sequence[Batch]) -> tuple[Batch, tuple[tuple[int, ...], ...]]:
    """The distinct examples in the order of their first use, and those of each step."""
    places: dict[bytes, int] = {}
    distinct: list[Batch] = []
    steps = []
    for batch in batches:
        step = []
        for number in range(len(batch)):
            example = _trimmed(batch[number])
            content = example.inputs.numpy().tobytes() + example.labels.numpy().tobytes()
            if content not in places:
                places[content] = len(distinct)
                distinct.append(example)
            step.append(places[content])
        steps.append(tuple(step))
    return joined(distinct), tuple(steps)


def _trimmed(example: Batch) -> Batch:
    """Without padding, which depends on the other texts of a batch."""
    if example.mask is None:
        return example
    real = example.mask[0].bool()
    labels = example.labels[:, real] if example.labels.dim() == 2 else example.labels
    return Batch(example.inputs[:, real], labels, example.mask[:, real])
