"""Image classification: pixels in [0, 1], one class per image."""

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.config.build import suggest
from fedsim.config.cell import TaskConfig
from fedsim.errors import ConfigError
from fedsim.metrics.base import Examples, Metric
from fedsim.models import IMAGE_MODELS, image_model, image_models, image_network, is_image_model
from fedsim.models.adapters import train_only
from fedsim.models.network import ImageNetwork
from fedsim.models.precode import divergences
from fedsim.tasks.base import Network, Task, TaskSpec
from fedsim.tasks.classification import count_classes, utility
from fedsim.tasks.inputs import InputForm
from fedsim.types import Batch, Rows


class ImageClassification(Task):
    """Image classification by cross-entropy, on pixels that are not normalised.

    Without normalisation the network's input, and with it a guess, is an image in [0, 1].
    """

    modality: ClassVar[Literal["image", "text"]] = "image"

    @property
    def form(self) -> InputForm:
        """The owner's inputs, of which pixels in [0, 1] are what attacks look for."""
        spec = self.spec
        return InputForm(spec.owner_shape or spec.input_shape, spec.low, spec.high)

    def build(self) -> nn.Module:
        """The built-in or added network in float32 and eval mode, with arbitrary weights."""
        spec = self.spec
        network = image_network(spec.model, spec.input_shape, spec.num_classes, spec.architecture)
        return train_only(network.float().eval(), spec.trained)

    def encode(self, rows: Rows) -> Batch:
        """Pixels as float32 in [0, 1], and classes."""
        pixels = _pixels(rows, self.spec.model)
        return Batch(pixels if rows.columns else pixels.to(torch.float32) / 255, rows.labels)

    def examples(self, batch: Batch) -> Examples:
        """The pixels only, and the columns of a table."""
        return Examples(batch, columns=self.spec.columns)

    def unfit(self, metric: Metric) -> str:
        """As of any task; a metric may need larger images, or a table."""
        if metric.modality == "table" and self.spec.columns:
            column = getattr(metric, "column", self.spec.columns[0])
            return "" if column in self.spec.columns else "is of a column of another table"
        side = min(self.spec.input_shape[1:], default=1)
        if metric.modality == "image" and side < metric.smallest:
            return f"needs images of {metric.smallest} pixels a side, and the task's have {side}"
        return super().unfit(metric)

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean cross-entropy over the images, and what a variational bottleneck adds."""
        return F.cross_entropy(network(batch.inputs), batch.labels) + divergences(network)

    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss, accuracy and, for two classes, Matthews' correlation."""
        return utility(network, batches, lambda batch: network(batch.inputs))


def image_spec(config: TaskConfig, rows: Rows) -> TaskSpec:
    """Public facts of an image task; its shape and its classes are those of the rows.

    Raises:
        ConfigError: the model does not fit the rows or the options.
    """
    if not is_image_model(config.model):
        known = suggest(config.model, image_models())
        raise ConfigError(f"task.model: {config.model!r} is not an image model. {known}")
    if config.adapters or config.lora_rank or config.lora_targets:
        raise ConfigError(
            f"task.adapters: {config.model!r} is an image model, but adapters are for "
            "transformers. Leave adapters, lora_rank and lora_targets out, or choose trained."
        )
    network = image_model(config.model)
    shape = tuple(_pixels(rows, config.model).shape[1:])
    smallest = getattr(network, "smallest", ImageNetwork.smallest)
    if min(shape[1:]) < smallest:
        raise ConfigError(
            f"task.dataset: its images are {shape[1]} x {shape[2]} pixels, but {config.model} "
            f"needs {smallest} x {smallest}. Choose larger images or another model."
        )
    spec = TaskSpec(
        kind="image-classification",
        model=config.model,
        architecture=dict(getattr(network, "options", ImageNetwork.options)),
        num_classes=count_classes(rows),
        input_shape=shape,
        class_names=rows.class_names,
        columns=rows.columns,
        trained=config.trained,
    )
    if config.model not in IMAGE_MODELS:
        _try(spec)
    return spec


def _try(spec: TaskSpec) -> None:
    """Classify a blank image with an added network, which is foreign code."""
    try:
        shape = tuple(ImageClassification(spec).build()(torch.zeros(1, *spec.input_shape)).shape)
    except Exception as error:
        raise ConfigError(
            f"task.model: {spec.model!r} does not take images of {spec.input_shape} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}). It is made as "
            "model(num_classes=...); set task.image_size, or name a function that fits."
        ) from None
    if shape != (1, spec.num_classes):
        raise ConfigError(
            f"task.model: {spec.model!r} turns an image into {shape}, not into (1, "
            f"{spec.num_classes}) logits. Name a function that heeds num_classes."
        )


def _pixels(rows: Rows, model: str) -> Tensor:
    if isinstance(rows.inputs, Tensor):
        return rows.inputs
    raise ConfigError(
        f"task.model: {model!r} takes images, but the data set holds texts. "
        "Choose a text model, or set task.input_column to a column of images."
    )
