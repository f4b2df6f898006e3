"""An attack: a frozen dataclass whose fields are its options; written 2026."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedsim.knowledge import Fact
from fedsim.plugins import Attack, Job, Observation, Reconstruction, known_labels
from fedsim.tasks.base import Task
from fedsim.types import Batch


@dataclass(frozen=True)
class ClassMean(Attack):
    """The mean auxiliary image of each class that the update gives away (see iDLG, 2020)."""

    title: ClassVar[str] = "class mean"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples", "auxiliary"})

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """As many images as the batch has examples."""
        labels = known_labels(observation, task, rng, job)
        rows = job.auxiliary()
        of_class = [rows.labels == label for label in labels]
        images = [rows.inputs[chosen if chosen.any() else ...].mean(0) for chosen in of_class]
        return Reconstruction(Batch(torch.stack(images), labels))
