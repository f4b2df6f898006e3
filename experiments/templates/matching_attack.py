"""An attack: a frozen dataclass whose fields are its options; written 2026."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedsim.knowledge import Fact
from fedsim.plugins import Attack, Job, Observation, Reconstruction, known_labels
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class GradientMatch(Attack):
    """Images whose gradient has the direction of the update's (see Geiping et al. 2020)."""

    title: ClassVar[str] = "gradient match"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    steps: int = 200
    learning_rate: float = 0.1
    smoothness: float = 1e-3

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """Adam on the pixels of a batch, which starts from noise."""
        labels = known_labels(observation, task, rng, job)
        network = task.model(observation.sent, device=job.device)
        parameters: Tensors = dict(network.named_parameters())
        received = observation.update(tuple(n for n in parameters if n in observation.received))
        target = torch.cat([value.flatten() for value in received.values()]).to(job.device).float()
        images = torch.rand(len(labels), *task.spec.input_shape, generator=rng).to(job.device)
        images.requires_grad_()
        adam = torch.optim.Adam([images], lr=self.learning_rate)
        distance = torch.tensor(torch.inf)
        for step in range(self.steps):
            if job.expired:
                break
            batch = Batch(images, labels.to(job.device))
            loss = task.functional_loss(network, parameters, batch)
            weights = [parameters[name] for name in received]
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            guessed = torch.cat([value.flatten() for value in gradients])
            distance = 1 - torch.cosine_similarity(guessed, target, dim=0)
            rough = images.diff(dim=2).abs().mean() + images.diff(dim=3).abs().mean()
            adam.zero_grad()
            (distance + self.smoothness * rough).backward()
            adam.step()
            images.data.clamp_(0, 1)
            job.report(step, float(distance), images)
        return Reconstruction(Batch(images.detach().cpu(), labels), objective=float(distance))
