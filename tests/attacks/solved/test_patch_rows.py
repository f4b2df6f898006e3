"""The image of a vision transformer, solved from its position rows and patch layer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.solved.patch_rows import PatchRows
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch

Pictures = Callable[..., Batch]
Victim = Callable[..., tuple[Task, Observation]]


def solved(task: Task, seen: Observation) -> Reconstruction:
    return PatchRows().guess(seen, task, torch.Generator(), Job())


@pytest.mark.some(2)
@pytest.mark.parametrize(("channels", "size"), [(3, 16), (1, 18)])
def test_an_image_is_exact_and_certified(
    victim: Victim, pictures: Pictures, channels: int, size: int
) -> None:
    batch = pictures(1, 6, channels=channels, size=size)
    for step_size in (None, 0.1):  # a gradient, and weights after one step
        recovered = solved(*victim(batch, model="vit", step_size=step_size))
        assert float((recovered.guess.inputs - batch.inputs).abs().max()) < 0.002
        assert recovered.guess.labels.tolist() == [6]
        assert recovered.confidence == ("certified",)


def test_an_image_of_a_trained_network(victim: Victim, pictures: Pictures) -> None:
    batch, rows = pictures(1, 3), pictures(16, *range(8), *range(8), seed=1)
    task, seen = victim(batch, model="vit")
    network = task.model(seen.sent)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    before = float(task.loss(network, rows).detach())
    for _ in range(8):
        optimizer.zero_grad()
        loss = task.loss(network, rows)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < before
    later = replace(seen, sent=state(network), received=task.gradient(network, batch))
    recovered = solved(task, later)
    assert float((recovered.guess.inputs - batch.inputs).abs().max()) < 0.002
    assert recovered.confidence == ("certified",)


def test_a_changed_update_is_not_certified(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3), model="vit")
    rng = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0):
        noisy = {
            name: value + scale * value.std() * torch.randn(value.shape, generator=rng)
            for name, value in seen.received.items()
        }
        recovered = solved(task, replace(seen, received=noisy))
        assert recovered.confidence == ("guess",)
        assert recovered.guess.inputs.isfinite().all()


def test_what_it_needs(victim: Victim, pictures: Pictures) -> None:
    with pytest.raises(CannotAttack, match="the batch holds 2 examples"):
        solved(*victim(pictures(2, 1, 2), model="vit"))
    with pytest.raises(CannotAttack, match="LeNet has no table of positions"):
        solved(*victim(pictures(1, 1)))
    task, seen = victim(pictures(1, 1), model="vit")
    frozen = {name: value for name, value in seen.received.items() if name != "positions"}
    with pytest.raises(CannotAttack, match="does not send 'positions'"):
        solved(task, replace(seen, received=frozen))
    broken = {name: value * float("nan") for name, value in seen.received.items()}
    with pytest.raises(CannotAttack, match="NaN or infinite"):
        solved(task, replace(seen, received=broken))
    wide = {**seen.received, "positions": seen.received["positions"][:1].expand(17, -1)}
    with pytest.raises(CannotAttack, match="of 16 patches have rank 1"):
        solved(task, replace(seen, received=wide))
