"""Replies in parts, as compression sends them, from the wire to the picture."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedsim
from tests.experiments.captures.test_reply_kinds import Step, capture, image


def largest(value: Tensor) -> tuple[Tensor, Tensor]:
    places = value.abs().flatten().topk(max(1, value.numel() // 4)).indices
    return value.flatten()[places], places


def factors(value: Tensor) -> tuple[Tensor, ...]:
    """A step of PowerSGD."""
    if value.dim() < 2:
        return (value,)
    start = torch.randn(value.shape[1], 2, generator=torch.Generator().manual_seed(0))
    left = torch.linalg.qr(value @ start)[0]
    return left, value.T @ left


@pytest.mark.parametrize(
    ("form", "words", "least"),
    [(largest, "pairs of values and their places", 25), (factors, "products of two factors", 75)],
)
def test_parts_are_read_as_the_difference_that_they_are(
    form: object, words: str, least: float, tmp_path: Path
) -> None:
    def reply(step: Step) -> object:
        moved = step.each(lambda sent, weights, gradient: weights - sent).values()
        parts = [part for value in moved for part in form(value)]  # type: ignore[operator]
        return OrderedDict((str(place), part) for place, part in enumerate(parts))

    for victim in capture(tmp_path, reply):
        assert words in victim.match
        guess = fedsim.attack(victim, "closed_form", budget=5, quiet=True)
        truth = image(victim.observation.key.client - 1000)
        assert fedsim.score(guess, truth=truth).mean("psnr") > least
