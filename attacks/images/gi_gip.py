"""GI-GIP (Jeon et al. 2021): images are searched for in what a generator can make."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, vmap

from attacks.base import Job, Reconstruction, Trace
from attacks.engine.descent import BestIterates, Objective, descend, drawn
from attacks.images.generator import Generator, build_generator, load_weights, read_weights
from attacks.images.image_losses import total_variation
from attacks.images.image_matching import ImageMatching
from attacks.images.victims import Evidence, MatchingLoss, VictimGroup
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Tensors

START = 0.1
"""Standard deviation of the first latents. At 1, as in the paper, pixels start clamped, and the
restarts of a smooth kind of image end where they started."""
_LATENT_RATE = 0.2
"""Learning rate of Adam in the first stage."""


@dataclass(frozen=True)
class GIGIP(ImageMatching):
    """Match gradients by searching a generator's latents and then its weights.

    Jeon et al. 2021, "Gradient Inversion with Generative Image Prior" (GIAS): both stages minimise
    the matching loss plus TV by Adam, whose rate falls to a tenth at 3/8, 5/8 and 7/8 of the steps.
    The restart with the lowest matching loss enters the second stage, where each image has its own
    copy of the weights. We differ in the schedule: the paper takes 500 and 5000 steps, 3 or 4
    restarts, a first rate of .1 and a DCGAN. Weights, derivatives and Adam's moments are in memory
    for every image of every victim that shares the lanes. Labels are those of ``inverting``, and so
    is what a prior makes of the guess in the end.

    If ``adaptive``, both stages maximise a posterior probability instead: the likelihood of the
    update under the defense, see ``attacks.images.image_losses``, times that of the latents,
    N(0, 1), or in the second stage of the images, see ``attacks.observed.pixel_prior``. No weights
    of regularisers take part. A fixed weight is too large where the distance is small at any image,
    as under pruning, and too small under signs and noise.

    Attributes:
        total_variation: weight of that of the images.
        latent_steps: number of steps in the first stage.
        weight_steps: number of steps in the second stage.
        weight_rate: learning rate of Adam in the second stage; ``components`` need 1e-4.
        latent: size of the latent vector.
        latent_norm: weight of the mean square of the latents in the first stage.
        generator: ``vae``, see ``attacks.images.generator``; ``components``, the principal
            components of the auxiliary rows; or a name of the entry points ``fedsim.generators``.
        generator_steps: of the training of ``vae``.
        generator_weights: safetensors file of its weights; empty to learn them.
    """

    title: ClassVar[str] = "GI-GIP"

    total_variation: Annotated[float, Field(ge=0)] = 1e-3
    latent_steps: Annotated[int, Field(ge=1)] = 300
    weight_steps: Annotated[int, Field(ge=0)] = 300
    weight_rate: Annotated[float, Field(gt=0)] = 1e-3
    latent: Annotated[int, Field(ge=1)] = 128
    latent_norm: Annotated[float, Field(ge=0)] = 0.0
    generator: str = "vae"
    generator_steps: Annotated[int, Field(ge=1)] = 1000
    generator_weights: str = ""

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors | None:
        """The generator's weights, learned from the auxiliary rows; None if a file holds them."""
        del observation
        if self.generator_weights:
            return None
        generator = build_generator(self.generator, task.spec.input_shape, self.latent)
        images = job.auxiliary().inputs.to(job.device)
        generator.to(job.device).fit(images, seed, self.generator_steps)
        return {name: value.cpu() for name, value in state(generator).items()}

    def search(self, victims: VictimGroup, task: Task) -> list[Reconstruction]:
        """Latents of every restart, then weights of every victim."""
        generator = build_generator(self.generator, task.spec.input_shape, self.latent)
        weights = victims.job.prepared
        if weights is None:
            weights = read_weights(self.generator_weights)
        load_weights(generator, weights, self.generator_weights or "what was prepared")
        generator.to(victims.job.device).requires_grad_(False)
        likely = victims.loss.evidence if self.adaptive else None
        shape = victims.labels.shape[1], self.latent
        starts = drawn(
            victims.rngs, self.restarts, lambda rng: START * torch.randn(shape, generator=rng)
        )
        guesses: list[Reconstruction] = []
        step = max(1, self.lanes // self.restarts)
        for first in range(0, len(victims.rngs), step):
            chosen = starts[first * self.restarts : (first + step) * self.restarts]
            guesses += self._together(victims, likely, generator, chosen)
        return guesses

    def _together(
        self,
        victims: VictimGroup,
        likely: Evidence | None,
        generator: Generator,
        starts: list[tuple[int, Tensor]],
    ) -> list[Reconstruction]:
        """Guesses of the victims whose restarts are given, one restart after another."""
        job = victims.job
        owners, latents = zip(*starts, strict=True)
        first = descend(
            self._of_latents(victims.loss, likely, generator),
            {"latents": torch.stack(latents).to(job.device)},
            victims.lanes(owners),
            job,
            steps=self.latent_steps,
            learning_rate=_LATENT_RATE,
        )
        rank = first.others[1].unflatten(0, (-1, self.restarts)).argmin(1)
        index = rank + self.restarts * torch.arange(len(rank), device=rank.device)
        best = _chosen(first, index)
        numbers = owners[:: self.restarts]
        if self.weight_steps and not first.expired:
            copies = (len(numbers), victims.labels.shape[1])
            second = descend(
                self._of_weights(victims, likely, generator),
                {
                    name: value.expand(*copies, *value.shape).clone()
                    for name, value in generator.named_parameters()
                },
                (*victims.lanes(numbers), best.others[0]),
                job,
                steps=self.weight_steps,
                learning_rate=self.weight_rate,
            )
            best = _after(best, second)
        return [
            best.reconstruction(lane, victims.labels[victim]) for lane, victim in enumerate(numbers)
        ]

    def _of_latents(
        self, loss: MatchingLoss, likely: Evidence | None, generator: Generator
    ) -> Objective:
        """The last value that it keeps tells which restart is best."""

        def objective(
            variables: Tensors, labels: Tensor, observed: Tensors
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            latents = variables["latents"]
            images = generator(latents)
            if likely is not None:
                matching, surprise = likely(images, labels, observed)
                value = surprise + latents.square().sum() / 2
                return value, (images, matching, latents, value)
            matching = loss(images, labels, observed)
            rough = self.total_variation * total_variation(images)
            long = self.latent_norm * latents.square().mean()
            return matching + rough + long, (images, matching, latents, matching)

        return objective

    def _of_weights(
        self, victims: VictimGroup, likely: Evidence | None, generator: Generator
    ) -> Objective:
        loss, prior = victims.loss, victims.prior.to(torch.float32)

        def generate(weights: Tensors, latents: Tensor) -> Tensor:
            image: Tensor = functional_call(generator, weights, (latents[None],))[0]
            return image

        render: Callable[[Tensors, Tensor], Tensor] = vmap(generate)

        def objective(
            weights: Tensors, labels: Tensor, observed: Tensors, latents: Tensor
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            images = render(weights, latents)
            if likely is not None:
                matching, surprise = likely(images, labels, observed)
                return surprise + prior.rarity(images), (images, matching)
            matching = loss(images, labels, observed)
            return matching + self.total_variation * total_variation(images), (images, matching)

        return objective


def _chosen(iterates: BestIterates, lanes: Tensor) -> BestIterates:
    """Some of the lanes."""
    return replace(
        iterates,
        guesses=iterates.guesses[lanes],
        objective=iterates.objective[lanes],
        others=tuple(value[lanes] for value in iterates.others),
        traces=tuple(iterates.traces[lane] for lane in lanes.tolist()),
    )


def _after(first: BestIterates, second: BestIterates) -> BestIterates:
    """The second stage's images, its steps and seconds counted on from the first's."""

    def joined(before: Trace, later: Trace) -> Trace:
        step, seconds, _ = before[-1]
        return before + tuple((step + s, seconds + t, value) for s, t, value in later[1:])

    traces = map(joined, first.traces, second.traces)
    return replace(second, steps=first.steps + second.steps, traces=tuple(traces))
