"""Interface of a task: a model architecture and a loss, without any private row."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.columns import Column
from fedsim.config.cell import TaskKind
from fedsim.metrics.base import Examples, Metric
from fedsim.models.adapters import Adapters
from fedsim.process import exclusive
from fedsim.store.files import Sealed
from fedsim.tasks.targets import Target
from fedsim.types import Batch, Rows, Tensors

Network: TypeAlias = Callable[..., Any]
"""A module, or a function with the signature of its ``forward``."""


class TaskSpec(Sealed):
    """``captures/task.json``: all public facts of a task, enough to rebuild the model anywhere.

    Attributes:
        kind: kind of the task; for an added task, of the class that it derives from.
        model: name of the model in the experiment.
        architecture: keyword arguments of a built-in image model, or a transformers configuration.
        num_classes: number of classes of a classifier; 0 for a language model.
        input_shape: ``(channel, height, width)``, or ``(max_length,)`` in tokens.
        class_names: names of the classes, if the data set has them.
        pad_id: token id of padding; None for images.
        special_ids: ids of tokens that are not words: padding, start, end and separators. The mask
            token of masked language modelling takes the place of a word and is not included.
        adapters: what is trained instead of the model.
        trained: patterns of the names of the parameters that are trained; all if empty.
        added: name of a task that another package adds; else empty.
        factory: ``module:function`` that makes a network which is no built-in and no transformer;
            else empty.
        loss: ``module:function`` of the loss of such a network; empty where it is no named one.
        target: what the loss compares outputs with, see ``fedsim.tasks.targets``.
        targets: how many numbers an example has, where its target is numbers.
        owner_shape: of an input as the network takes it, where that is no image; else empty.
        low: of inputs whose owner has them in another range than [0, 1]; of all channels or each.
        high: as ``low``.
        columns: of rows of a table, as which an input is read; else empty.

    Example:
        Eight-pixel images of four classes for the built-in LeNet:

        >>> from fedsim.tasks.base import TaskSpec
        >>> spec = TaskSpec(
        ...     kind="image-classification",
        ...     model="lenet",
        ...     architecture={},
        ...     num_classes=4,
        ...     input_shape=(1, 8, 8),
        ... )
        >>> spec.input_shape
        (1, 8, 8)
    """

    kind: TaskKind
    model: str
    architecture: dict[str, Any]
    num_classes: int
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    pad_id: int | None = None
    special_ids: tuple[int, ...] = ()
    adapters: Adapters | None = None
    trained: tuple[str, ...] = ()
    added: str = ""
    factory: str = ""
    loss: str = ""
    target: Target = "class"
    targets: int = 0
    owner_shape: tuple[int, ...] = ()
    low: tuple[float, ...] = (0.0,)
    high: tuple[float, ...] = (1.0,)
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Task(ABC):
    """What a model learns: its architecture, its loss, and how rows become batches.

    Attributes:
        spec: the public facts, from which the model can be rebuilt.
        modality: type of the inputs.

    Example:
        The task of a network that fedsim does not know:

        >>> import torch
        >>> from fedsim.tasks.given import task_of
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> def loss(network, batch):
        ...     return torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels)
        >>> task = task_of(net, loss=loss, image_shape=(1, 8, 8))
        >>> task.modality, task.spec.num_classes
        ('image', 4)
    """

    spec: TaskSpec
    modality: ClassVar[Literal["image", "text"]]

    @property
    def doubt(self) -> str:
        """What of the loss keeps a guess from making the update, one clause; usually empty."""
        return ""

    @abstractmethod
    def build(self) -> nn.Module:
        """The architecture in float32 on the CPU, in eval mode, with arbitrary weights."""

    @abstractmethod
    def encode(self, rows: Rows) -> Batch:
        """Encode rows: pixels as float32 in [0, 1]; texts as padded token ids, mask and labels."""

    @abstractmethod
    def examples(self, batch: Batch) -> Examples:
        """The batch as metrics see it: texts decoded, with and without special tokens."""

    @abstractmethod
    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Scalar loss, the mean over examples, or over predicted tokens for a language model.

        A classifier also accepts soft labels ``(batch, class)``.
        """

    @abstractmethod
    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Utility on held-out rows, for example ``{"loss": ..., "accuracy": ...}``."""

    def unfit(self, metric: Metric) -> str:
        """Why a metric does not apply to the private inputs; empty if it does."""
        if metric.modality in ("any", self.modality):
            return ""
        return f"measures {metric.modality}s, and the task has {self.modality}s"

    def any_labels(self, count: int) -> Tensor:
        """Targets that the loss takes of ``count`` examples, where it does not matter which."""
        return torch.zeros(count, dtype=torch.int64)

    @property
    def target_width(self) -> int:
        """Number of unknowns in the target of an example."""
        return self.spec.targets or max(1, self.spec.num_classes)

    def targets_of(self, unknowns: Tensor) -> Tensor:
        """Targets from numbers ``(batch, target_width)`` that may take any value."""
        return unknowns.softmax(-1)

    def blank(self) -> nn.Module:
        """The network of ``build`` with arbitrary values, which is faster if all are replaced."""
        return self.build()

    def model(self, tensors: Tensors, *, device: torch.device | str = "cpu") -> nn.Module:
        """The architecture with these parameters and buffers, in eval mode on ``device``.

        Tensors that are not given have the values of ``build``.
        """
        network = self.blank()
        if _sent(network).keys() - tensors.keys():
            network = self.build()
        load_state(network, tensors)
        return network.to(device).eval()

    def gradient(self, network: nn.Module, batch: Batch) -> Tensors:
        """Gradient of the loss for each trainable parameter, detached, in the order of the model.

        It is 0 for a parameter that the loss does not depend on.
        """
        parameters = {k: p for k, p in network.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            self.loss(network, batch), list(parameters.values()), allow_unused=True
        )
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
        }

    def functional_loss(self, network: nn.Module, parameters: Tensors, batch: Batch) -> Tensor:
        """``loss`` as a pure function of the parameters, which can be differentiated twice.

        The loss is handed the network itself, whose parameters and parts it may read.
        """
        values = {f"network.{name}": value for name, value in parameters.items()}
        with twice_differentiable(network):
            value: Tensor = functional_call(_Objective(self, network), values, (batch,))
        return value


class _Objective(nn.Module):
    """The loss of a network as a module, around it."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.task, self.network = task, network

    def forward(self, batch: Batch) -> Tensor:
        return self.task.loss(self.network, batch)


def state(network: nn.Module) -> Tensors:
    """Copies of the tensors that are sent: parameters, tied ones once, then persistent buffers.

    ``state_dict`` would list GPT-2's tied head twice, and its stale copy would undo an update.
    """
    return {name: value.detach().clone() for name, value in _sent(network).items()}


def _sent(network: nn.Module) -> Tensors:
    persistent = network.state_dict()
    buffers = {name: value for name, value in network.named_buffers() if name in persistent}
    return dict(network.named_parameters()) | buffers


def load_state(network: nn.Module, tensors: Tensors) -> None:
    """Copy parameters and buffers into ``network`` in place; tied parameters stay tied.

    Raises:
        KeyError: the network has no tensor of that name.
        ValueError: a shape differs, which copying would hide by broadcasting.
    """
    targets = dict(network.named_parameters()) | dict(network.named_buffers())
    with torch.no_grad():
        for name, value in tensors.items():
            if targets[name].shape != value.shape:
                shapes = f"{tuple(targets[name].shape)}, not {tuple(value.shape)}"
                raise ValueError(f"{name}: the network's tensor has the shape {shapes}")
            targets[name].copy_(value)


@exclusive
def twice_differentiable(network: nn.Module) -> Iterator[None]:
    """Run a forward pass on kernels that have a second derivative, which gradient matching takes.

    Fused attention has none, on the CPU and on GPUs; nor have cuDNN's recurrent layers.
    """
    cudnn: Any = torch.backends.cudnn
    before = cudnn.enabled
    if before and torch.cuda.is_available():
        cudnn.enabled = not any(isinstance(part, nn.RNNBase) for part in network.modules())
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cudnn.enabled = before
