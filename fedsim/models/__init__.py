"""Registry of the built-in models: image networks by class, text models by their hub folder."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, cast

from torch import nn

from fedsim.config.build import registry
from fedsim.config.named_code import classifier, is_named
from fedsim.models.lenet import GroupNormLeNet, LeNet
from fedsim.models.mlp import MLP
from fedsim.models.network import ImageNetwork
from fedsim.models.precode import PrecodeLeNet
from fedsim.models.resnets import (
    GroupNormResNet18,
    GroupNormResNet20,
    NormFreeResNet20,
    ResNet18,
    ResNet20,
)
from fedsim.models.vit import ViT
from fedsim.process import PROCESS

IMAGE_MODELS: dict[str, type[ImageNetwork]] = {
    "lenet": LeNet,
    "lenet-group-norm": GroupNormLeNet,
    "lenet-precode": PrecodeLeNet,
    "resnet20": ResNet20,
    "resnet20-group-norm": GroupNormResNet20,
    "resnet20-norm-free": NormFreeResNet20,
    "resnet18": ResNet18,
    "resnet18-group-norm": GroupNormResNet18,
    "mlp": MLP,
    "vit": ViT,
}

ImageModel: TypeAlias = type[ImageNetwork] | Callable[..., nn.Module]
"""A class of fedsim's, or a function as torchvision and timm have: ``num_classes`` -> network."""

TEXT_MODELS: dict[str, Path] = {
    "tiny-bert": Path(__file__).parent / "tiny_bert",
    "tiny-gpt2": Path(__file__).parent / "tiny_gpt2",
    "transformer3": Path(__file__).parent / "transformer3",
}
"""Their tokenizers were trained on the built-in sentences without names and numbers, so that these
have no token of their own, by ``fedsim/models/vocabulary.py`` of commit a9ce149f."""

TOKENIZERS: dict[str, str] = {"transformer3": "tiny-gpt2"}
"""Built-in text models without a tokenizer of their own -> the model whose tokenizer they use."""

MODELS: dict[str, type[ImageNetwork] | Path] = {**IMAGE_MODELS, **TEXT_MODELS}


def image_models() -> dict[str, ImageModel]:
    """Built-in image models, and those that installed packages add to the group ``fedsim.models``.

    Raises:
        ConfigError: an entry point has the name of a built-in model.
    """
    return {**registry(IMAGE_MODELS, "fedsim.models")}


def is_image_model(name: str) -> bool:
    """Whether it is one of ``image_models``, or the ``module:name`` of a network."""
    return name in image_models() or is_named(name)


def image_model(name: str) -> ImageModel:
    """One of ``image_models``, or what a user named as ``module:name``.

    Raises:
        ConfigError: no user named it, or it cannot be imported.
    """
    return classifier(name, "task.model") if is_named(name) else image_models()[name]


def image_network(
    name: str, input_shape: tuple[int, ...], num_classes: int, options: dict[str, int]
) -> nn.Module:
    """A network ``(image, channel, height, width) -> (image, class)`` with arbitrary weights.

    Args:
        name: as ``image_model`` takes it.
        input_shape: ``(channel, height, width)``; an added function is not told.
        num_classes: number of classes.
        options: of a class of fedsim's; an added function gets none.
    """
    factory = image_model(name)
    with PROCESS:  # layers draw from the global generator, which another thread may have seeded
        if isinstance(factory, type) and issubclass(factory, ImageNetwork):
            return factory(input_shape, num_classes, **options)
        return cast(Callable[..., nn.Module], factory)(num_classes=num_classes)
