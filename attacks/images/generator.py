"""The interface of generators, from latent vectors to images, and their weights in files."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.errors import CannotAttack
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

    def fit(self, images: Tensor, seed: int, steps: int) -> None:
        """Learn from auxiliary images ``(row, *shape)`` in ``steps``, where it takes steps.

        Raises:
            CannotAttack: this generator cannot be learned here.
        """
        del images, seed, steps
        raise CannotAttack(
            f"{type(self).__name__} cannot be trained here",
            "Name a file of its weights as generator_weights, or set generator = 'vae'.",
        )


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
    expected = {**dict(generator.named_parameters()), **dict(generator.named_buffers())}
    if differing := expected.keys() ^ tensors.keys():
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
