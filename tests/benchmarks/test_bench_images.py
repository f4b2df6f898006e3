"""The yardstick of the image benchmark takes the attack's own steps."""

import pytest
import torch
from torch.func import grad_and_value

from attacks.images.image_losses import matching_loss
from attacks.images.inverting import pixel_objective
from attacks.observed.replay import replay
from benchmarks.bench_images import (
    RESTARTS,
    WEIGHT,
    BenchSetting,
    PlainInverting,
    exact_speed,
    make_setting,
    restart_speed,
    sample_speed,
)
from benchmarks.stopwatch import in_turn, ratio, timed
from fedsim.config.cell import TaskConfig


@pytest.fixture(scope="module")
def setting() -> BenchSetting:
    config = TaskConfig(model="lenet", dataset="shapes", split="train[:4]", image_size=16)
    return make_setting(config)


def test_both_sides_measure_one_objective(setting: BenchSetting) -> None:
    seen, labels = setting.seen, setting.pictures.labels[:1]
    plain = PlainInverting(setting.task.model(seen.sent), seen.received, labels)
    start = torch.rand(
        1, *setting.task.spec.input_shape, generator=torch.Generator().manual_seed(0)
    )
    loss = matching_loss(replay(seen, setting.task, torch.device("cpu")), seen, adaptive=False)
    ours = grad_and_value(pixel_objective(loss, WEIGHT), has_aux=True)
    slopes, (value, _) = ours({"start": start}, labels, seen.received)
    image = start.clone().requires_grad_()
    expected = plain.objective(image)
    (slope,) = torch.autograd.grad(expected, image)
    torch.testing.assert_close(value, expected.detach())
    assert (slopes["start"] - slope).norm() < 1e-3 * slope.norm()
    once = plain.descend(start, 1)
    assert once.sub(start).abs().max() == pytest.approx(0.1, abs=1e-4)
    wanted = (start - 0.1 * slope.sign()).clamp(0, 1)
    assert ((once - wanted).abs() < 1e-4).float().mean() > 0.99


def test_every_measure_has_its_line(setting: BenchSetting) -> None:
    measures = [*restart_speed(setting, 2, 1), *sample_speed(setting, 1)]
    names = [measure.name for measure in measures]
    assert len(set(names)) == len(names) == 1 + len(RESTARTS) + 2
    assert all(measure.value > 0 for measure in measures)
    assert [m.goal for m in measures if m.goal != "-"] == [">= 3.5", ">= 4"]


@pytest.mark.slow
def test_dlg_and_the_closed_form_are_right(setting: BenchSetting) -> None:
    measures = {measure.name: measure for measure in exact_speed(setting)}
    errors = [m.value for name, m in measures.items() if name.endswith("squared error")]
    assert len(errors) == 2
    assert max(errors) <= 1e-3
    assert measures["LeNet: DLG / closed form"].value > 0


def test_stopwatch() -> None:
    seconds, result = timed(lambda: 7)
    assert (seconds >= 0, result) == (True, 7)
    calls: list[str] = []
    columns = in_turn(2, lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b"] * 3
    assert [len(column) for column in columns] == [2, 2]
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2
