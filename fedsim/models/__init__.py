"""Registry of the built-in models: image networks by class, text models by their hub folder."""

from __future__ import annotations

from pathlib import Path

from fedsim.models.lenet import LeNet
from fedsim.models.mlp import MLP
from fedsim.models.network import ImageNetwork
from fedsim.models.resnet20 import ResNet20
from fedsim.models.vit import ViT

IMAGE_MODELS: dict[str, type[ImageNetwork]] = {
    "lenet": LeNet,
    "resnet20": ResNet20,
    "mlp": MLP,
    "vit": ViT,
}

TEXT_MODELS: dict[str, Path] = {
    "tiny-bert": Path(__file__).parent / "tiny_bert",
    "tiny-gpt2": Path(__file__).parent / "tiny_gpt2",
    "transformer3": Path(__file__).parent / "transformer3",
}

TOKENIZERS: dict[str, str] = {"transformer3": "tiny-gpt2"}
"""Built-in text models without a tokenizer of their own -> the model whose tokenizer they use."""

MODELS: dict[str, type[ImageNetwork] | Path] = {**IMAGE_MODELS, **TEXT_MODELS}
