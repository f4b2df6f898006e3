"""Accuracy of guessed classes, for images and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.metrics.base import Examples, Metric


@dataclass(frozen=True)
class LabelAccuracy(Metric):
    """1 if the guessed class is the private one, else 0; -1 stands for no guess."""

    name: ClassVar[str] = "label_accuracy"
    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"
    modality: ClassVar[Literal["image", "text", "any"]] = "any"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """0 or 1.

        Raises:
            ConfigError: the labels are not classes, as in a language model.
        """
        guessed, private = guess.batch.labels, truth.batch.labels
        for owner, labels in (("guess", guessed), ("truth", private)):
            if labels.ndim != 1:
                raise ConfigError(
                    f"label_accuracy: the {owner} has labels of shape {tuple(labels.shape)}, not "
                    "one class per example. Leave this metric out for a language model."
                )
        return ((guessed == private) & (guessed >= 0)).to(torch.float64)
