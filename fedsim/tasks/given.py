"""Tasks of models that a program holds: transformers, and any network of images with its loss."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.models.network import ImageNetwork
from fedsim.tasks.base import Network, Task, TaskSpec
from fedsim.tasks.given_transformer import is_transformer, transformer_task, unwrapped
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch

Loss: TypeAlias = Callable[[Any, Batch], Tensor]
Model: TypeAlias = nn.Module | str | Callable[[], nn.Module]
"""A network, a hub id or folder of transformers, or a function, also as ``module:function``."""
LOSS = "loss=lambda model, batch: F.cross_entropy(model(batch.inputs), batch.labels)"


@dataclass(frozen=True)
class GivenNetwork(ImageClassification):
    """Image classification by a network and a loss that its owner hands over.

    Attributes:
        network: copied by ``build``.
        objective: scalar mean loss of (network, batch), whose images are in [0, 1]; a loss that
            normalises them first makes guesses come out as images.
    """

    network: nn.Module = field(repr=False, compare=False)
    objective: Loss = field(repr=False, compare=False)

    def build(self) -> nn.Module:
        """A copy in float32 on the CPU, in eval mode."""
        return copy.deepcopy(self.network).cpu().float().eval()

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """The owner's loss."""
        return self.objective(network, batch)


def task_of(
    model: Model,
    *,
    tokenizer: Any = None,  # noqa: ANN401
    task: str = "",
    loss: Loss | str | None = None,
    image_shape: tuple[int, ...] = (),
    max_length: int = 0,
    arrays: dict[str, tuple[int, ...]] | None = None,
    lora_alpha: float = 0.0,
) -> Task:
    """The task of a model as its owner describes it; nothing about it is guessed.

    Args:
        model: a network of torch, of transformers or of peft; the name of a model of transformers;
            or a function that makes a network, also as ``module:function``.
        tokenizer: of a text model: a fast tokenizer, or its hub id or folder.
        task: ``classification``, ``language-modelling`` or ``masked-language-modelling``; empty if
            the class of the model tells.
        loss: of a network of images, a function or its ``module:function``.
        image_shape: of a network of images, ``(channel, height, width)``.
        max_length: longest text in tokens that attacks look for; 0 for 64, or what the model takes.
        arrays: shapes of what crossed the wire by name, for a model given by its name.
        lora_alpha: scale of adapters, for a model given by its name.

    Raises:
        ConfigError: something is missing or does not fit.
    """
    made = _made(model)
    inner = unwrapped(made) if isinstance(made, nn.Module) else made
    if isinstance(inner, str) or is_transformer(inner):
        return transformer_task(inner, tokenizer, task, max_length, arrays or {}, lora_alpha)
    if tokenizer is not None:
        raise ConfigError(
            f"tokenizer: {type(inner).__name__} is no text model of transformers. Pass one with a "
            "head, which AutoModelForCausalLM.register makes of yours, or leave tokenizer out."
        )
    if loss is None and not isinstance(inner, ImageNetwork):
        raise ConfigError(
            f"loss: that of {type(inner).__name__} is not known. Pass it, for example {LOSS}."
        )
    objective = function_of(loss, "loss") if loss is not None else _cross_entropy
    return _network_task(inner, objective, image_shape, _reference(model))


def _made(model: Model) -> nn.Module | str:
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str) and ":" not in model:
        return model
    made = function_of(model, "model")() if isinstance(model, str) else _called(model)
    if isinstance(made, nn.Module):
        return made
    raise ConfigError(
        f"model: got {type(made).__name__}. Pass a torch.nn.Module, the name of a transformers "
        "model, or a function without arguments that makes one."
    )


def _called(model: object) -> object:
    return model() if callable(model) else model


def _reference(model: Model) -> str:
    if isinstance(model, str):
        return model
    if inspect.isclass(model) or inspect.isfunction(model):
        return f"{model.__module__}:{model.__qualname__}"
    return f"{type(model).__module__}:{type(model).__qualname__}"


def function_of(given: object, what: str) -> Callable[..., Any]:
    """A function, or the one with the name ``module:function``.

    Raises:
        ConfigError: there is none.
    """
    if callable(given):
        return given
    module, colon, name = str(given).partition(":")
    if colon and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where an application's modules are, behind all others
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what}: {given!r} cannot be imported ({error}). Run the command in the folder of "
            "your application, or install it."
        ) from None
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise ConfigError(f"{what}: {given!r} is no function. Write module:function.")


def _network_task(
    network: nn.Module, objective: Loss, shape: tuple[int, ...], factory: str
) -> Task:
    if not isinstance(shape, Sequence) or len(shape) != 3 or min(shape) < 1:
        raise ConfigError(
            f"image_shape: {shape} is not (channel, height, width). "
            "Pass that of the clients' images, for example image_shape=(3, 32, 32)."
        )
    name = type(network).__name__
    blank = torch.zeros(1, *shape)
    try:
        with torch.no_grad():
            made = copy.deepcopy(network).cpu().float().eval()(blank)
        logits = getattr(made, "logits", made)
        classes = int(logits.shape[1])
    except Exception as error:  # the network is foreign code
        raise ConfigError(
            f"image_shape: {name} does not turn images of {tuple(shape)} into logits "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}). "
            "Pass the shape that it takes."
        ) from None
    spec = TaskSpec(
        kind="image-classification",
        model=name,
        architecture={},
        num_classes=classes,
        input_shape=tuple(shape),
        factory=factory,
    )
    task = GivenNetwork(spec, network, objective)
    _check_loss(task, Batch(blank, torch.zeros(1, dtype=torch.int64)))
    return task


def _check_loss(task: GivenNetwork, batch: Batch) -> None:
    try:
        value = task.objective(task.build(), batch)
    except Exception as error:  # the loss is foreign code
        raise ConfigError(
            f"loss: fails on one image ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:120]}). Write a function of (model, batch), with "
            "batch.inputs and batch.labels."
        ) from None
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"loss: returned {shown}, not a scalar with a gradient. Return the mean over the batch."
        )


def _cross_entropy(network: Any, batch: Batch) -> Tensor:  # noqa: ANN401
    return nn.functional.cross_entropy(network(batch.inputs), batch.labels)
