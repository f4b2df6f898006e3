"""Generators, from latent vectors to images: interface, the built-in ones, weights in files."""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.config.build import registry, suggest
from fedsim.errors import CannotAttack
from fedsim.seeds import generator, seeded
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


_BATCH = 64  # rows of a step, half of them mirrored
_RATE = 2e-3  # of Adam
_WIDTH = 16  # channels of the last hidden layer


class Variational(Generator):
    """The decoder of a convolutional variational autoencoder (Kingma and Welling 2014).

    The deviation of pixels about what is decoded is the one of highest likelihood in each batch, as
    in Rybkin et al. 2021, so that nothing weighs detail against the latents' distribution. Rows are
    also mirrored. The paper's generator is a DCGAN of 3.6 million weights, trained for hours.
    """

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__(shape, latent)
        colours, height, width = shape
        self.first = nn.Linear(latent, 4 * _WIDTH * -(-height // 4) * -(-width // 4))
        self.unfold = nn.Unflatten(1, (4 * _WIDTH, -(-height // 4), -(-width // 4)))
        self.layers = nn.Sequential(
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(4 * _WIDTH, 2 * _WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * _WIDTH, _WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(_WIDTH, colours, 3, padding=1),
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Images ``(image, *shape)``."""
        _, height, width = self.shape
        pixels: Tensor = self.layers(self.unfold(self.first(latents)))
        return pixels[..., :height, :width].sigmoid()

    @torch.enable_grad()
    def fit(self, images: Tensor, seed: int, steps: int) -> None:
        """Train encoder and decoder by Adam, its rate falling to 0 as a cosine."""
        with seeded(seed):
            encoder = self._encoder().to(images.device)
            self.load_state_dict(type(self)(self.shape, self.latent).state_dict())
        rng = generator(seed, "rows")
        optimizer = torch.optim.Adam([*self.parameters(), *encoder.parameters()], lr=_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            rows = images[torch.randint(len(images), (_BATCH,), generator=rng)]
            mirrored = torch.rand(len(rows), 1, 1, 1, generator=rng) < 0.5
            noise = torch.randn(len(rows), self.latent, generator=rng)
            rows = torch.where(mirrored.to(rows.device), rows.flip(-1), rows)
            mean, logarithm = encoder(rows).chunk(2, 1)
            latents = mean + (logarithm / 2).exp() * noise.to(mean)
            error = (self(latents) - rows).square().mean()
            surprise = 0.5 * (mean.square() + logarithm.exp() - 1 - logarithm).sum(1).mean()
            loss = rows[0].numel() / 2 * error.log() + surprise
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    def _encoder(self) -> nn.Sequential:
        """Images to means and log variances of latents, ``(image, 2 * latent)``."""
        colours, height, width = self.shape
        return nn.Sequential(
            nn.Conv2d(colours, 2 * _WIDTH, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(2 * _WIDTH, 4 * _WIDTH, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4 * _WIDTH * -(-height // 4) * -(-width // 4), 2 * self.latent),
        )


class Components(Generator):
    """Principal components of the auxiliary rows, by which N(0, 1) becomes their Gaussian.

    No prior of images but their covariance: 128 components of 9,000 CIFAR-10 rows (of 1,000) leave
    a mean squared error of .005 (.006) of held-out rows, after seconds on one core.

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
    def fit(self, images: Tensor, seed: int, steps: int) -> None:
        """Set the weights by a truncated singular value decomposition."""
        del steps
        rows = images.flatten(1)
        mean = rows.mean(0)
        rank = min(self.latent, *rows.shape)
        with seeded(seed):
            _, values, directions = torch.svd_lowrank(rows - mean, q=rank, niter=4)
        self.linear.bias.copy_(mean)
        self.linear.weight.zero_()
        self.linear.weight[:, :rank] = directions * values / math.sqrt(len(rows))


GENERATORS: dict[str, type[Generator]] = {"vae": Variational, "components": Components}


def build_generator(name: str, shape: tuple[int, ...], latent: int) -> Generator:
    """The generator of this name, with weights that are still to be set.

    Raises:
        CannotAttack: there is none of this name.
    """
    known = registry(GENERATORS, "fedsim.generators")
    if name not in known:
        raise CannotAttack(f"generator: {name!r} is not known", suggest(name, known))
    return known[name](shape, latent).eval()
