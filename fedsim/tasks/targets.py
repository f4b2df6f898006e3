"""What the loss of a network is about, told from its slopes: classes, numbers, or neither."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedsim.errors import ConfigError
from fedsim.process import PROCESS
from fedsim.types import Batch

Target: TypeAlias = Literal["class", "classes", "numbers", "none"]
"""One class an example; several or none of them; real numbers; the loss ignores its labels."""
Objective: TypeAlias = Callable[[Any, Batch], Tensor]

_OUTPUTS = (2.0, 0.3)
"""Distances from 0 of the outputs at which slopes are compared; smoothing by .2 needs 2 or less."""
_EQUAL = 1e-4
"""Largest relative difference of slopes in float32 that are equal."""


@dataclass(frozen=True)
class TargetForm:
    """How a loss takes its targets.

    Attributes:
        kind: what they are.
        size: number of classes, or of numbers.
        form: ``index``, int64 ``(batch,)``; ``flat``, float ``(batch,)``; or ``columns``, float
            ``(batch, size)``.
    """

    kind: Target = "class"
    size: int = 0
    form: Literal["index", "flat", "columns"] = "index"
    single: bool = False
    """Whether one output tells two classes apart, as its sigmoid does: a softmax of (0, output)."""

    def given(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets as the loss takes them.

        Args:
            labels: classes int64 ``(batch,)``, soft ones ``(batch, class)``, or ``(batch, size)``.
            dtype: of the inputs.
        """
        soft = labels.is_floating_point()
        if self.single:
            second = labels[:, 1] if soft else labels
            if self.form == "index" and not soft:
                return second
            return second.to(dtype)[:, None] if self.form == "columns" else second.to(dtype)
        if self.kind == "class":
            if self.form == "index" or soft:
                return labels
            return one_hot(labels, self.size).to(dtype)
        if self.kind == "none":
            return labels
        return labels.to(dtype).flatten() if self.form == "flat" else labels.to(dtype)

    def blank(self, count: int) -> Tensor:
        """Some targets of ``count`` examples, as attacks hold them."""
        if self.kind in ("class", "none"):
            return torch.zeros(count, dtype=torch.int64)
        return torch.zeros(count, self.size)


_UNREAD = "fedsim_unread"
"""Attribute of a network: the linear layers on which its loss does not depend."""


def last_linear(network: nn.Module) -> str | None:
    """The last ``nn.Linear`` in the order of ``named_modules`` that is not ``mark_unread``."""
    unread = getattr(network, _UNREAD, ())
    linear = (name for name, part in network.named_modules() if isinstance(part, nn.Linear))
    return next(reversed([name for name in linear if name not in unread]), None)


def mark_unread(network: nn.Module, layers: Sequence[str]) -> None:
    """Let ``last_linear`` pass over these layers, as of an auxiliary head; copies do so, too."""
    setattr(network, _UNREAD, tuple(layers))


def unread(objective: Objective, network: nn.Module, inputs: Tensor) -> list[str]:
    """The linear layers of which a loss has no gradient; none where it cannot be computed.

    Args:
        objective: the loss of (network, batch).
        network: of any form.
        inputs: of one example.
    """
    # Of its parameters, as a weight that is computed from others is another tensor at each look.
    owned = [
        (name, value)
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear)
        for value in part.parameters()
    ]
    for labels in (torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1, 1)):
        try:
            loss = objective(network, Batch(inputs, labels))
            slopes = torch.autograd.grad(loss, [value for _, value in owned], allow_unused=True)
        except Exception:  # the loss is foreign code, and may want other targets
            continue
        read = {name for (name, _), slope in zip(owned, slopes, strict=True) if slope is not None}
        return [name for name in dict.fromkeys(name for name, _ in owned) if name not in read]
    return []


def bypassed(network: nn.Module, layer: str, inputs: Tensor) -> bool:
    """Whether what a network returns depends on more than the outputs of ``layer``.

    So it does where a cosine classifier follows, or where the layer only places what others read.
    A temperature or an offset, which is no matrix, leaves it the head.
    """
    outputs: list[Tensor] = []
    note = network.get_submodule(layer).register_forward_hook(
        lambda module, args, output: outputs.append(output.detach())
    )
    with torch.no_grad():
        network(inputs)
    note.remove()
    given = inputs.detach().requires_grad_()
    of_layer = {id(value) for value in network.get_submodule(layer).parameters()}
    others = [p for p in network.parameters() if id(p) not in of_layer and p.dim() > 1]
    with torch.enable_grad(), replaced_output(network, layer, outputs[-1].requires_grad_()):
        value = network(given)
        if not value.requires_grad:
            return False
        wanted = [given, *(p for p in others if p.requires_grad)]
        slopes = torch.autograd.grad(value.square().sum(), wanted, allow_unused=True)
    return any(slope is not None and bool(slope.any()) for slope in slopes)


@contextmanager
def replaced_output(network: nn.Module, layer: str, output: Tensor) -> Iterator[None]:
    """A network whose ``layer`` gives ``output`` whatever its input is."""
    hook = network.get_submodule(layer).register_forward_hook(lambda *_: output)
    try:
        yield
    finally:
        hook.remove()


def output_slopes(
    objective: Objective, network: nn.Module, layer: str, outputs: Tensor, batch: Batch
) -> Tensor:
    """Derivative of the loss by the outputs ``(batch, output)`` of a layer, at these outputs."""
    at = outputs.detach().requires_grad_()
    with torch.enable_grad(), replaced_output(network, layer, at):
        value = objective(network, batch)
        check_scalar(value)
        graph = batch.labels.requires_grad
        (slopes,) = torch.autograd.grad(
            value, at, create_graph=graph, allow_unused=True, materialize_grads=True
        )
    return slopes


def check_scalar(value: object) -> None:
    """Raise ``ConfigError`` unless a loss returned a scalar that has a gradient."""
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"loss: returned {shown}, not a scalar with a gradient. Return the mean over the batch."
        )


def read_targets(
    objective: Objective, network: nn.Module, layer: str, width: int, image: Tensor
) -> TargetForm:
    """The form of targets that a loss takes, and what they are.

    At an output of a sigmoid that is no member of a class the slope is never negative, and at one
    that is it is never positive, wherever the output is; a squared error changes its sign. A
    softmax does not change if all outputs grow alike, so that its slopes add up to 0.

    Args:
        objective: scalar loss of (network, batch).
        network: in eval mode.
        layer: whose outputs ``(batch, width)`` the loss depends on.
        width: number of outputs.
        image: an input ``(1, ...)``.

    Raises:
        Exception: whatever the loss raises where it takes no form of targets.
    """
    probe = _Probe(objective, network, layer, width, image)
    if width == 1:
        for form in (TargetForm(form="flat"), TargetForm(), TargetForm(form="columns")):
            if (pair := probe.tried(form)) is not None and not _same(*pair):
                single = _memberships(*pair)
                kind: Target = "class" if single else "numbers"
                size = 2 if single else 1
                return TargetForm(kind, size, form.form, single=single)
        # A survival loss takes when, and whether.
        if not probe.works and probe.tried(pair_of := TargetForm("numbers", 2, "columns")):
            return pair_of
        return probe.else_none(TargetForm("none"))
    index = probe.tried(TargetForm(size=width))
    if index is not None and not _same(*index) and _balanced(*index):
        return TargetForm(size=width)
    columns = probe.tried(TargetForm("numbers", width, "columns"))
    if columns is not None and not _same(*columns):
        if _balanced(*columns):
            return TargetForm("class", width, "columns")
        kind = "classes" if _memberships(*columns) else "numbers"
        return TargetForm(kind, width, "columns")
    flat = probe.tried(TargetForm("numbers", 1, "flat"))
    if flat is not None and not _same(*flat):
        return TargetForm("numbers", 1, "flat")
    if index is not None and not _same(*index):
        return TargetForm(size=width)
    return probe.else_none(TargetForm("none"))


class _Probe:
    """The slopes of a loss where its targets are 0, and where they are 1."""

    def __init__(
        self, objective: Objective, network: nn.Module, layer: str, width: int, image: Tensor
    ) -> None:
        self._objective, self._network, self._layer = objective, network, layer
        # A batch of another size than the outputs', so that targets are never broadcast.
        count = 3 if width == 2 else 2
        self._images = image.expand(count, *image.shape[1:])
        signs = torch.tensor([1.0, -1.0]).repeat(count * width)[: count * width]
        self._outputs = signs.view(count, width)
        self.works = False
        self._error: Exception | None = None

    def tried(self, form: TargetForm) -> tuple[Tensor, Tensor] | None:
        """Slopes ``(row, output)`` for 0 and for 1; None where the loss takes no such targets."""
        count = len(self._images)
        shape = (count,) if form.form in ("index", "flat") else (count, max(1, form.size))
        dtype = torch.int64 if form.form == "index" else torch.float32
        sides = []
        for value in (0, 1):
            batch = Batch(self._images, torch.full(shape, value, dtype=dtype))
            try:
                with PROCESS, warnings.catch_warnings():
                    warnings.filterwarnings("error", "Using a target size")
                    sides.append(torch.cat([self._slopes(far, batch) for far in _OUTPUTS]))
            except Exception as error:  # the loss is foreign code
                self._error = self._error or error
                return None
        self.works = True
        return sides[0], sides[1]

    def _slopes(self, far: float, batch: Batch) -> Tensor:
        outputs = far * self._outputs
        return output_slopes(self._objective, self._network, self._layer, outputs, batch)

    def else_none(self, form: TargetForm) -> TargetForm:
        """The form of a loss that heeds no targets.

        Raises:
            Exception: it failed with all.
        """
        if not self.works and self._error is not None:
            raise self._error
        return form


def _same(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= _EQUAL * (first.abs() + second.abs()).max())


def _balanced(*slopes: Tensor) -> bool:
    return all(bool((s.sum(1).abs() <= _EQUAL * s.abs().sum(1)).all()) for s in slopes)


def _memberships(absent: Tensor, present: Tensor) -> bool:
    """Whether 0 and 1 are the two sides; labels of -1 and 1 leave nothing to learn at 0."""
    slack = _EQUAL * (absent.abs() + present.abs()).max()
    sides = (absent >= -slack).all() and (present <= slack).all()
    return bool(sides and absent.max() > slack and present.min() < -slack)
