"""Mean gradients of a client's batches, as ``[federation]`` has them computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedsim.config.federation import FederationConfig
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch, Tensors

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST_SCALE = 16  # exponent of 2, as in torch.amp.GradScaler


def mean_gradient(
    task: Task, config: FederationConfig, model: nn.Module, batch: Batch
) -> tuple[Tensors, float]:
    """Gradient of each trainable parameter, 0 where the loss does not depend on it, and the loss.

    Both are means over the micro-batches of ``accumulation``.
    """
    parts = torch.arange(len(batch)).chunk(config.accumulation)
    sums: Tensors = {}
    losses = []
    for part in parts:
        rows = batch if len(parts) == 1 else batch[part.tolist()]
        gradient, loss = _gradient(task, config, model, rows)
        sums = {name: sums[name] + value for name, value in gradient.items()} if sums else gradient
        losses.append(loss)
    if len(parts) > 1:
        sums = {name: value / len(parts) for name, value in sums.items()}
    return sums, sum(losses) / len(losses)


def _gradient(
    task: Task, config: FederationConfig, model: nn.Module, batch: Batch
) -> tuple[Tensors, float]:
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    dtype = _DTYPES.get(config.precision)
    network = model if dtype is None else _Autocast(model, dtype, batch.inputs.device.type)
    if config.label_smoothing:
        batch = smoothed(task, model, batch, config.label_smoothing)
    loss = task.loss(network, batch)
    exponent = _LARGEST_SCALE if config.precision == "fp16" else 0
    while True:
        gradients = torch.autograd.grad(
            loss * 2.0**exponent if exponent else loss,
            list(parameters.values()),
            allow_unused=True,
            materialize_grads=True,
            retain_graph=exponent > 0,
        )
        if not exponent or all(part.isfinite().all() for part in gradients):
            break
        exponent -= 1
    if exponent:
        gradients = tuple(part / 2.0**exponent for part in gradients)
    return dict(zip(parameters, gradients, strict=True)), loss.item()


@dataclass(frozen=True)
class _Autocast:
    """A network whose matrix products are of low precision; its logits are float32 again."""

    network: nn.Module
    dtype: torch.dtype
    device: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with torch.autocast(self.device, dtype=self.dtype):
            output = self.network(*args, **kwargs)
        if isinstance(output, Tensor):
            return output.float()
        output.logits = output.logits.float()
        return output


def smoothed(task: Task, model: nn.Module, batch: Batch, share: float) -> Batch:
    """The batch with soft labels (Szegedy et al. 2016): ``1 - share`` and a uniform ``share``.

    Padding and other positions that are not predicted keep no weight.
    """
    labels = batch.labels
    classes = task.spec.num_classes or model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    soft = one_hot(labels.clamp(min=0), classes) * (1 - share) + share / classes
    return replace(batch, labels=soft * (labels != IGNORED)[..., None])
