"""The point between the model sent and the one received."""

from __future__ import annotations

import torch

from attacks.texts.surrogate_model import SurrogateModel
from fedsim.capture import CaptureKey, Observation
from fedsim.knowledge import Knowledge

SEEN = Observation(
    CaptureKey(round=1, client=0),
    {"weight": torch.tensor([1.0, 2.0]), "frozen": torch.zeros(3), "steps": torch.tensor(4)},
    {"weight": torch.tensor([3.0, 0.0]), "steps": torch.tensor(5)},
    "weights",
    Knowledge(num_examples=1),
)


def surrogate() -> SurrogateModel:
    return SurrogateModel(SEEN, torch.zeros((), dtype=torch.float64))


def test_it_starts_half_way() -> None:
    model = surrogate()
    parameters = model.parameters()
    assert list(parameters) == ["weight"]  # neither frozen nor integer
    assert parameters["weight"].dtype == torch.float64
    assert parameters["weight"].tolist() == [2.0, 1.0]


def test_its_ends_are_the_models_sent_and_received() -> None:
    model = surrogate()
    for share, expected in ((0.0, SEEN.sent), (1.0, SEEN.received)):
        with torch.no_grad():
            model.share.fill_(share)
        assert model.parameters()["weight"].tolist() == expected["weight"].tolist()


def test_the_share_goes_down_the_slope_and_stays_between() -> None:
    for goal in (0.0, 1.0):
        model = surrogate()
        for step in range(1200):
            before = model.share.item()
            objective = (model.parameters()["weight"][0] - (10 * goal - 3)).square()
            (slope,) = torch.autograd.grad(objective, [model.share])
            model.step(slope)
            assert 0 <= model.share.item() <= 1
            if step < 400:
                assert (model.share.item() > before) == (goal == 1)
        assert model.share.item() == goal
        assert model.share.requires_grad


def test_it_finds_a_point_between() -> None:
    model = surrogate()
    for _ in range(1500):
        objective = (model.parameters()["weight"][1] - 1.4).square()
        (slope,) = torch.autograd.grad(objective, [model.share])
        model.step(slope)
    assert abs(model.share.item() - 0.3) < 1e-3
