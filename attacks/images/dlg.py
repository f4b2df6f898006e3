"""Deep Leakage from Gradients (Zhu et al. 2019), and iDLG, which infers the label first."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from attacks.engine.descent import LBFGS, Best, SearchProgress, restart_generators, stalled
from attacks.images.image_losses import ImageLoss
from attacks.observed.declared import declared
from attacks.observed.distance import squared_error
from attacks.observed.known_labels import known_labels
from attacks.observed.replay import Replay, replay, step_length
from attacks.observed.single_target import scale_note, unscaled
from fedsim.defenses.base import Defense, Distortion
from fedsim.defenses.chain import Chain
from fedsim.knowledge import Fact
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_PATIENCE = 15
_PROGRESS = 0.6
"""Share of its objective to which so many outer steps must bring a start that is not given up; one
that converges does better."""


@dataclass(frozen=True)
class DLG(Attack):
    """Match gradients by L-BFGS over the pixels and labels of a batch.

    Deep Leakage from Gradients (Zhu et al. 2019) minimises the squared L2 distance without line
    search, from pixels and label logits drawn from N(0, 1), as in the authors' code. We differ
    where that code fails: half of the starts on LeNet diverge or stall. Such a start is given up
    for another; if none converges, the best of them gets the remaining steps. The guess is the
    iterate with the lowest objective, clamped to [0, 1]. All computation is in float64, as in
    float32 the search stalls on rounding.

    Attributes:
        steps: outer steps of L-BFGS in all, shared by the starts; each has 20 inner iterations.
        restarts: starts at most.
        tolerance: the search ends below ``tolerance * ||gradient||^2``; on LeNet with B=1, 1e-8
            leaves a mean squared error of some 5e-5 a pixel, and 1e-6 about 4e-3.
        start: pixels drawn from N(0, 1), ``normal``, as in the paper, or from N(0.5, 0.1^2),
            ``grey``, from where two images of a LeNet come close that the other start misses.
        labels: ``auto`` fixes the labels where the threat model grants them; ``joint`` never does.
        adaptive: match what the declared defense would make of the guess's gradient, by its
            surrogate; where zeros show what was pruned, the guess is pruned there.
    """

    title: ClassVar[str] = "DLG"
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})

    uses: ClassVar[frozenset[Distortion] | None] = frozenset(
        {"scale", "noise", "sparsity", "sign", "rounding", "truncation"}
    )

    steps: Annotated[int, Field(ge=1)] = 300
    restarts: Annotated[int, Field(ge=1)] = 8
    tolerance: Annotated[float, Field(ge=0)] = 1e-8
    start: Literal["normal", "grey"] = "normal"
    labels: Literal["auto", "joint"] = "auto"
    adaptive: bool = False

    def fixed_labels(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Tensor | None:
        """Classes ``(batch,)`` that are not searched for; None for a joint search."""
        del task, rng, job
        granted = observation.knowledge.labels
        return None if granted is None or self.labels == "joint" else torch.tensor(granted)

    def _client(
        self, model: Replay, observation: Observation, observed: Tensors
    ) -> Callable[[Batch], Tensors]:
        """The gradient that a guess amounts to, after the declared defense if that is known."""
        if not self.adaptive:
            return model.gradient
        defenses = declared(observation).defenses
        single = [part for part in defenses if part.per_example]
        whole = [part for part in defenses if not part.per_example]
        each = bool(single) and observation.knowledge.num_examples != 1
        support = _Support({name: value != 0 for name, value in observed.items()})
        if not each:
            single = [support if _shows(part, observed) else part for part in single]
        elif any("sparsity" in part.distortions for part in single):
            whole.insert(0, support)  # the mean is 0 where all examples are
        whole = [support if _shows(part, observed) else part for part in whole]
        first, last = Chain(defenses=tuple(single)), Chain(defenses=tuple(whole))
        loss = ImageLoss(model, chain=first, each=True)
        length = step_length(observation)  # the last work on the change of the weights

        def client(batch: Batch) -> Tensors:
            if each:
                mean = loss.update(batch.inputs, batch.labels)
            else:
                mean = first.surrogate(model.gradient(batch))
            update = {name: value * length for name, value in mean.items()}
            return {name: value / length for name, value in last.surrogate(update).items()}

        return client

    def _draw(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> tuple[Tensor, Tensor]:
        """Pixels ``(batch, channel, height, width)`` and label logits ``(batch, target)``."""
        count = observation.knowledge.num_examples
        assert count is not None
        images = torch.randn(count, *task.spec.input_shape, generator=rng)
        logits = torch.randn(count, task.target_width, generator=rng)
        if self.start == "grey":
            images = 0.5 + 0.1 * images
        return images.to(job.device, torch.float64), logits.to(job.device, torch.float64)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The lowest objective that any start reached."""
        model = replay(observation, task, job.device, torch.float64)
        gradient, factor = unscaled(observation, model)
        observed = {name: gradient[name].to(job.device) for name in model.parameters}
        squares = torch.stack([value.square().sum() for value in observed.values()])
        goal = self.tolerance * float(squares.sum())
        classes = self.fixed_labels(observation, task, rng, job)
        if task.spec.target == "none":
            assert observation.knowledge.num_examples is not None
            classes = task.any_labels(observation.knowledge.num_examples)
        classes = None if classes is None else classes.to(job.device)
        client = self._client(model, observation, observed)
        starts = [
            _Start(client, observed, classes, self._draw(observation, task, generator, job), task)
            for generator in restart_generators(rng, self.restarts)
        ]
        fresh, progress = iter(starts), SearchProgress(job)
        start = next(fresh)
        for step in range(1, self.steps + 1):
            start.step()
            best = min(starts, key=lambda search: search.lowest)
            lowest = torch.tensor([best.lowest], dtype=torch.float64)
            progress.note(step, lowest, best.best.candidate[0][0])
            done = best.lowest <= goal
            if done or job.expired:
                break
            if stalled(start.objectives, _PATIENCE, _PROGRESS):
                start = next(fresh, best)
        images, logits = (tensor[0] for tensor in best.best.candidate)
        if classes is None:
            soft = task.targets_of(logits)
            classes = soft.argmax(-1) if task.spec.target == "class" else soft
        return Reconstruction(
            Batch(images.clamp(0, 1).float(), classes),
            objective=best.lowest,
            steps=step,
            trace=progress.trace(),
            expired=not done and step < self.steps,
            note=scale_note(factor),
        )


@dataclass(frozen=True)
class IDLG(DLG):
    """DLG with labels inferred from the last layer's gradient instead of searched for.

    iDLG (Zhao et al. 2020) takes, for one example, the class with the negative bias gradient. For
    larger batches, which the paper does not treat, labels come from ``attacks.observed.labels``.
    """

    title: ClassVar[str] = "iDLG"

    def fixed_labels(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Tensor | None:
        """The granted or inferred classes ``(batch,)``."""
        return known_labels(observation, task, rng, job, adaptive=self.adaptive)


@dataclass(frozen=True)
class _Support(Defense):
    """Pruning to coordinates that are known, masks by name."""

    masks: Tensors

    def surrogate(self, update: Tensors) -> Tensors:
        """The update, 0 elsewhere."""
        return {name: value * self.masks[name] for name, value in update.items()}


def _shows(defense: Defense, observed: Tensors) -> bool:
    """Whether the defense prunes, and its zeros are in plain sight: no noise has filled them."""
    if "sparsity" not in defense.distortions:
        return False
    again = defense.surrogate(observed)
    return all(torch.equal(again[name], value) for name, value in observed.items())


class _Start:
    """One start of L-BFGS, its best point and, after each step, its lowest objective.

    Attributes:
        lowest: objective so far.
    """

    def __init__(
        self,
        client: Callable[[Batch], Tensors],
        observed: Tensors,
        classes: Tensor | None,
        point: tuple[Tensor, Tensor],
        task: Task,
    ) -> None:
        self._task = task
        self._client, self._observed, self._classes = client, observed, classes
        self._images, self._logits = (tensor.requires_grad_() for tensor in point)
        self._searched = [self._images, self._logits] if classes is None else [self._images]
        self._optimizer = LBFGS(self._searched, self._objective, iterations=20, history=100)
        self.best = Best(self._images[None], self._logits[None])
        self.objectives: list[float] = []
        self.lowest = math.inf

    def step(self) -> None:
        """One outer step."""
        before = self._optimizer.step()
        self.lowest, first = torch.cat([self.best.objective, before[None]]).tolist()
        self.objectives.append(self.lowest if math.isfinite(first) else math.nan)

    def _objective(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        labels = self._task.targets_of(self._logits) if self._classes is None else self._classes
        gradient = self._client(Batch(self._images, labels))
        objective = squared_error(gradient, self._observed)
        slopes = torch.autograd.grad(  # a loss may use its targets in an order alone
            objective, self._searched, allow_unused=True, materialize_grads=True
        )
        self.best.offer(objective[None], self._images[None], self._logits[None])
        return objective.detach(), slopes
