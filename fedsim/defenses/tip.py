"""TIP: noise on the high frequencies of the convolution kernels that Grad-CAM calls important."""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedsim.defenses.base import Defense, DefenseFamily, Distortion, Step
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError
from fedsim.magnitudes import cut
from fedsim.types import Tensors

_PROPORTION = 0.3
"""Share of each convolution's output channels that get noise, rounded up."""
_CUTOFF = 0.5
"""Share of the farthest frequency's distance up to which frequencies are low."""


@dataclass(frozen=True, kw_only=True)
class Tip(Defense):
    """Noise on high frequencies of important kernels (Wang and Su 2026, 2602.11633, "TIP").

    A step's gradient is clipped to the norm C. In each convolution, output channel k has the
    importance of Grad-CAM, ``|mean over positions of d y / d A_k|``, with A the channels and y the
    score of the true class, averaged over the batch. The kernels of the .3 of channels with the
    largest are transformed, ``F = DFT2(kernel)``, get complex noise of standard deviation

        b = C * sqrt(2 * ln(1.25 / delta)) / (B * epsilon)

    in each part on the frequencies farther from 0 than half of the farthest, and are
    transformed back. All other tensors are sent as they are, but for the clipping, so that no
    epsilon is claimed.

    Read were the abstract and the published code that calls the method; the method itself is left
    out there. From the code are the clipping, b (on the weights, ``rate * steps`` times this one,
    once after all steps; here on each step), the transforms, 5, 1, 1e-5 and the .3 among .1, .3 and
    .6. Which frequencies are high, that importances are absolute and the noise complex is ours.

    An adaptive attacker leaves out the high frequencies of as many kernels, those where they are
    largest: the noise lies nowhere else.

    Attributes:
        epsilon: divides the noise.
        delta: enters its size.
        clip: largest Euclidean norm of a step's gradient.
    """

    title: ClassVar[str] = "TIP"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code leaves the method out"
    known: ClassVar[str] = "Where noise can lie; those frequencies are left out of the comparison."
    claim: ClassVar[str] = 'pictures "visually unrecognizable", accuracy of no defense'
    loses: ClassVar[frozenset[Distortion]] = frozenset({"scale", "noise"})
    tuned_by: ClassVar[Strength] = Strength("epsilon", 1e4, 0.1)

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """The clipped gradient with noise, drawn where ``rng`` lives, in the model's order.

        Raises:
            ConfigError: the model has no convolution that is trained.
        """
        std = self.clip * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        sent = cut(gradient, self.clip)
        for name, scores in self.importances(step).items():
            if (weight := f"{name}.weight") in sent:
                drawn = torch.randn(sent[weight].shape, generator=rng, device=rng.device)
                # White noise of b / sqrt(height * width) has that spectrum's real inverse.
                size = std / len(step.batch.inputs) / math.sqrt(drawn[0, 0].numel())
                noise = size * self._high(drawn).to(sent[weight])
                sent[weight] = sent[weight] + noise * _each(self._largest(scores), noise)
        return sent

    def importances(self, step: Step) -> Tensors:
        """By name of each convolution, the importance of its output channels, ``(channel,)``."""
        layers = {n: m for n, m in step.model.named_modules() if isinstance(m, nn.Conv2d)}
        if not layers:
            raise ConfigError(
                f"tip: {type(step.model).__name__} has no convolution. Choose lenet or a ResNet."
            )
        outputs: Tensors = {}
        handles = [
            layer.register_forward_hook(lambda _, __, output, n=name: outputs.update({n: output}))
            for name, layer in layers.items()
        ]
        try:
            with torch.enable_grad():
                scores = step.model(step.batch.inputs)
                true = scores.gather(1, step.batch.labels[:, None]).sum()
                slopes = torch.autograd.grad(true, list(outputs.values()))
        finally:
            for handle in handles:
                handle.remove()
        return {n: s.mean((2, 3)).abs().mean(0) for n, s in zip(outputs, slopes, strict=True)}

    def comparable(self, guess: Tensors, received: Tensors) -> tuple[Tensors, Tensors]:
        """Both without the high frequencies of the kernels in which the received ones are largest.

        Kernels are told by their number of dimensions, ``(output, input, height, width)``.
        """
        high = {n: self._high(value) for n, value in received.items() if value.dim() == 4}
        noisy = {
            name: _each(self._largest(value.flatten(1).square().sum(1)), value)
            for name, value in high.items()
        }
        clean = {name: received[name] - noisy[name] * value for name, value in high.items()}
        fitting = {
            name: guess[name] - mask * self._high(guess[name]) for name, mask in noisy.items()
        }
        return guess | fitting, received | clean

    def _largest(self, scores: Tensor) -> Tensor:
        """1 where one of the largest of ``scores (channel,)`` is, else 0."""
        count = math.ceil(_PROPORTION * len(scores))
        return (scores >= scores.topk(count).values[-1]).to(scores.dtype)

    def _high(self, kernels: Tensor) -> Tensor:
        """The part at high frequencies of ``kernels (output, input, height, width)``, real."""
        height, width = kernels.shape[-2:]
        down = torch.fft.fftfreq(height, 1 / height, device=kernels.device)
        along = torch.fft.fftfreq(width, 1 / width, device=kernels.device)
        squares = down[:, None].square() + along.square()
        high = squares > _CUTOFF**2 * squares.max()
        part: Tensor = torch.fft.ifft2(torch.fft.fft2(kernels) * high).real
        return part


def _each(chosen: Tensor, kernels: Tensor) -> Tensor:
    """``chosen (channel,)`` in as many dimensions as ``kernels``."""
    return chosen.view(-1, *(1 for _ in kernels.shape[1:])).to(kernels)
