"""What a client trains on, as data loaders yield it and as its network takes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.data import DataLoader

from fedsim.types import Batch, joined

Pixels: TypeAlias = Callable[[Tensor], Tensor]
_IGNORED = -100
_UNKNOWN = -1
"""The class of an example that nobody noted."""
_SAME = 1e-2
"""Largest difference of what was yielded and what the network took, as a share of its largest
value, that half precision explains. A tenth of it finds half precision changed, and ten times of it
takes pictures with weak noise for those of the loader."""


@dataclass
class NotedBatches:
    """The batches of one request, in the order of their steps.

    Attributes:
        pixels: from the network's inputs to those that attacks look for.
        batches: of steps that are settled or wait for their network.
        lost: descriptions of what was yielded and is no batch, each once.
        changed: steps whose network took other inputs than the loader gave.
    """

    pixels: Pixels
    batches: list[Batch] = field(default_factory=list)
    lost: dict[str, None] = field(default_factory=dict)
    changed: int = 0
    _waiting: list[int] = field(default_factory=list)
    _loaded: bool = False
    _depth: int = 0
    _last: Tensor | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what data loaders yield, and networks take, inside the block."""
        plain: Any = DataLoader.__iter__

        def iterate(loader: Any) -> Iterator[Any]:  # noqa: ANN401
            for raw in plain(loader):
                if torch.is_grad_enabled():
                    self._yielded(raw)
                yield raw

        DataLoader.__iter__ = iterate  # type: ignore[assignment,method-assign]
        hooks = (
            register_module_forward_pre_hook(self._entered),
            register_module_forward_hook(self._ended, always_call=True),
        )
        try:
            yield
        finally:
            DataLoader.__iter__ = plain  # type: ignore[method-assign]
            for hook in hooks:
                hook.remove()

    def _yielded(self, raw: object) -> None:
        batch = batch_of(raw)
        if batch is None:
            self.lost.setdefault(described(raw))
        elif len(batch):  # a Poisson batch may be empty
            self._loaded = True
            self._waiting.append(len(self.batches))
            self.batches.append(batch)

    def _entered(self, network: nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        taken = next((each for each in args if isinstance(each, Tensor)), None)
        trains = any(parameter.requires_grad for parameter in network.parameters())
        # Layers inside, transforms and losses take none of a client's batches.
        if self._depth > 1 or taken is None or not trains or not torch.is_grad_enabled():
            return
        if taken.dim() and len(taken):
            self._took(plain_tensor(taken))

    def _ended(self, *_: object) -> None:
        self._depth -= 1

    def _took(self, inputs: Tensor) -> None:
        """Hold what a network takes against the batch that it is of."""
        if self._last is not None and torch.equal(self._last, inputs):
            return  # another pass over the same batch
        self._last = inputs
        if self._waiting:
            self._settle(inputs)
        elif not self._loaded and inputs.is_floating_point() and inputs.dim() > 1:
            self.batches.append(Batch(inputs, torch.full((len(inputs),), _UNKNOWN)))

    def _settle(self, inputs: Tensor) -> None:
        """The batch as the loader gave it, or with the inputs that its network took."""
        alike = [at for at in self._waiting if holds(self.batches[at].inputs, inputs)]
        at = alike[0] if alike else self._waiting[0]
        self._waiting = [later for later in self._waiting if later > at]
        batch = self.batches[at]
        times, rest = divmod(len(inputs), len(batch))
        if alike or rest or not inputs.is_floating_point():
            return
        self.changed += 1
        labels = batch.labels.repeat(times, *[1] * (batch.labels.dim() - 1))
        self.batches[at] = Batch(inputs, labels)

    @property
    def by_network(self) -> bool:
        """Whether batches were noted that no loader gave as such."""
        return bool(self.batches) and not self._loaded

    def distinct(self) -> tuple[Batch, tuple[tuple[int, ...], ...]]:
        """The distinct examples in the order of their first use, and those of each step."""
        places: dict[bytes, int] = {}
        distinct: list[Batch] = []
        steps = []
        for batch in map(self._pictured, self.batches):
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

    def _pictured(self, batch: Batch) -> Batch:
        if batch.mask is not None:
            return batch
        return replace(batch, inputs=self.pixels(batch.inputs).clone().float())


def batch_of(raw: object) -> Batch | None:
    """What a loader yields as fedsim has it; None if it holds no tensor of examples.

    Token ids are whole numbers of two dimensions; of other data the inputs are the first tensor of
    real numbers with two dimensions or more, and the targets the entry named so, or the first other
    tensor with as many examples. Without one, as of an auto-encoder, the class is -1.
    """
    if isinstance(raw, Mapping) and isinstance(raw.get("input_ids"), Tensor):
        return _text(raw)
    named = _tensors(raw)
    inputs = _inputs([value for _, value in named])
    if inputs is None:
        return None
    others = [
        (name, value)
        for name, value in named
        if value is not inputs and value.dim() and len(value) == len(inputs)
    ]
    if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
        masks = [value for _, value in others if value.shape == inputs.shape]
        mask = masks[0].long() if masks else torch.ones_like(inputs)
        return Batch(inputs, _targets(others, len(inputs), but=masks), mask)
    return Batch(inputs, _targets(others, len(inputs)))


def _text(raw: Mapping[str, Any]) -> Batch:
    ids = plain_tensor(raw["input_ids"])
    given = raw.get("attention_mask")
    mask = torch.ones_like(ids) if given is None else plain_tensor(given)
    labels = raw.get("labels", raw.get("label"))
    if labels is None or labels.dim() == 2:
        return Batch(ids, ids.masked_fill(mask == 0, _IGNORED), mask)
    return Batch(ids, plain_tensor(labels), mask)


def _inputs(tensors: Sequence[Tensor]) -> Tensor | None:
    shaped = [value for value in tensors if value.dim() >= 2]
    real = [value for value in shaped if value.is_floating_point()]
    if real:
        return max(real, key=lambda value: value.dim())
    return max(shaped, key=lambda value: value.dim(), default=None)


def _targets(
    others: Sequence[tuple[str, Tensor]], count: int, but: Sequence[Tensor] = ()
) -> Tensor:
    """Classes ``(batch,)``, or numbers or classes by example ``(batch, target)``."""
    left = [(name, value) for name, value in others if not any(value is mask for mask in but)]
    usual = [value for name, value in left if name.lower() in _TARGETS]
    flat = [value for _, value in left if value.dim() == 1 and not value.is_floating_point()]
    chosen = [*usual, *flat, *(value for _, value in left if value.dim() <= 2)]
    if not chosen or chosen[0].dim() > 2:
        return torch.full((count,), _UNKNOWN)
    if chosen[0].is_floating_point():
        return chosen[0].float().reshape(count, -1)
    return chosen[0].long()


_TARGETS = ("labels", "label", "targets", "target", "y", "class")
"""Names of targets in a dictionary of tensors."""


def _tensors(raw: object, name: str = "") -> list[tuple[str, Tensor]]:
    """All tensors inside, each with the name of its entry."""
    if isinstance(raw, Tensor):
        return [(name, plain_tensor(raw))]
    if isinstance(raw, Mapping):
        return [each for key, value in raw.items() for each in _tensors(value, str(key))]
    if is_dataclass(raw) and not isinstance(raw, type):
        inside = [(each.name, getattr(raw, each.name)) for each in fields(raw)]
        return [each for key, value in inside for each in _tensors(value, key)]
    if isinstance(raw, Sequence) and not isinstance(raw, str | bytes):
        return [each for value in raw for each in _tensors(value, name)]
    return []


def plain_tensor(value: Tensor) -> Tensor:
    """A copy on the CPU that is no subclass, as ``fastai`` and ``torchvision`` have."""
    return value.detach().as_subclass(Tensor).cpu().clone()


def holds(given: Tensor, taken: Tensor) -> bool:
    """Whether a network took what a loader gave, or its first rows, in whatever shape."""
    part = given[: len(taken)]
    if part.numel() != taken.numel():
        return False
    first, second = part.double().flatten(), taken.double().flatten()
    return bool((first - second).abs().max() <= _SAME * first.abs().max().clamp(min=1e-12))


def described(raw: object) -> str:
    """Shapes and dtypes of what a loader yields, or its type where it holds no tensor."""
    parts = [
        f"{f'{name} ' if name else ''}{str(value.dtype).removeprefix('torch.')} "
        f"{tuple(value.shape)}"
        for name, value in _tensors(raw)
    ]
    return ", ".join(parts) or f"a {type(raw).__name__} without tensors"


def _trimmed(example: Batch) -> Batch:
    """Without padding, which depends on the other texts of a batch."""
    if example.mask is None:
        return example
    real = example.mask[0].bool()
    labels = (
        example.labels[:, real] if example.labels.shape == example.mask.shape else example.labels
    )
    return Batch(example.inputs[:, real], labels, example.mask[:, real])
