"""Generators: latent vectors to images, learned from auxiliary rows or read from a file."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.build import registry, suggest
from fedsim.errors import CannotAttack
from fedsim.seeds import seeded
from fedsim.tasks.base import load_state
from fedsim.types import Tensors


class Generator(nn.Module):
    """Interface of a plug-in in the entry point group ``fedsim.generators``.

    It is built as ``cls(shape, latent)``, in eval mode, and differentiated twice.
    """

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent

    def forward(self, latents: Tensor) -> Tensor:
        """Images in [0, 1], ``(image, *shape)``, of latents ``(image, latent)`` from N(0, 1)."""
        raise NotImplementedError

    def fit(self, images: Tensor, seed: int) -> None:
        """Learn from auxiliary images ``(row, *shape)``.

        Raises:
            CannotAttack: this generator cannot be learned here.
        """
        del images, seed
        raise CannotAttack(
            f"{type(self).__name__} cannot be trained here",
            "Name a file of its weights as generator_weights, or set generator = 'principal'.",
        )


class Principal(Generator):
    """Principal components of the auxiliary rows, by which N(0, 1) becomes their Gaussian.

    The paper's generator is a DCGAN of 3.6 million weights that was trained for hours on a GPU.
    This one is exact after seconds on one core: 128 components of 9,000 CIFAR-10 rows (of 1,000)
    leave a mean squared error of .005 (.006) of held-out rows. A convolutional variational
    autoencoder of 430,000 weights left .016 after half a minute.

    With fewer rows than latents, the remaining latents have no effect.
    """

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__(shape, latent)
        self.linear = nn.Linear(latent, math.prod(shape))

    def forward(self, latents: Tensor) -> Tensor:
        """Images ``(image, *shape)``, clamped to [0, 1]."""
        images: Tensor = self.linear(latents).unflatten(-1, self.shape)
        return images.clamp(0, 1)

    @torch.no_grad()
    def fit(self, images: Tensor, seed: int) -> None:
        """Set the weights by a truncated singular value decomposition."""
        rows = images.flatten(1)
        mean = rows.mean(0)
        rank = min(self.latent, *rows.shape)
        with seeded(seed):
            _, values, directions = torch.svd_lowrank(rows - mean, q=rank, niter=4)
        self.linear.bias.copy_(mean)
        self.linear.weight.zero_()
        self.linear.weight[:, :rank] = directions * values / math.sqrt(len(rows))


GENERATORS: dict[str, type[Generator]] = {"principal": Principal}


def build_generator(name: str, shape: tuple[int, ...], latent: int) -> Generator:
    """The generator of this name, with weights that are still to be set.

    Raises:
        CannotAttack: there is none of this name.
    """
    known = registry(GENERATORS, "fedsim.generators")
    if name not in known:
        raise CannotAttack(f"generator: {name!r} is not known", suggest(name, known))
    return known[name](shape, latent).eval()


def read_weights(path: str) -> Tensors:
    """The tensors of a safetensors file.

    Raises:
        CannotAttack: there is no such file, or it is broken.
    """
    if not Path(path).is_file():
        raise CannotAttack(
            f"generator_weights: {path!r} is no file",
            "Correct the path.",
        )
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise CannotAttack(
            f"generator_weights: {path!r} cannot be read ({error})",
            "Write it with safetensors.torch.save_file.",
        ) from None


def load_weights(generator: Generator, tensors: Tensors, source: str) -> None:
    """Copy weights and buffers into the generator.

    Raises:
        CannotAttack: a name is missing or not the generator's, or a shape differs.
    """
    own = {**dict(generator.named_parameters()), **dict(generator.named_buffers())}
    if differing := own.keys() ^ tensors.keys():
        raise CannotAttack(
            f"generator_weights: {source} and {type(generator).__name__} do not both have "
            f"{sorted(differing)[0]!r}",
            "Choose the generator that the weights belong to.",
        )
    try:
        load_state(generator, tensors)
    except ValueError as error:
        raise CannotAttack(
            f"generator_weights: {source}: {error}",
            "Correct latent, or choose weights for images of "
            f"{' x '.join(map(str, generator.shape))}.",
        ) from None
