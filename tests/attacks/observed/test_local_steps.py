"""How examples are spread over clients and steps."""

from __future__ import annotations

import pytest
import torch

from attacks.observed.local_steps import LocalSteps
from fedsim.config.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.local.steps import schedule
from fedsim.store.capture import CaptureKey, Kind, Observation


def spread(kind: Kind, **facts: int | None) -> LocalSteps | None:
    knowledge = Knowledge.model_validate(facts)
    return LocalSteps.of(Observation(CaptureKey(round=1, client=0), {}, {}, kind, knowledge))


def test_what_the_protocol_tells() -> None:
    assert spread("gradient", num_examples=6, cohort=3) == LocalSteps(3, 2, 2, 1)
    assert spread("weights", num_examples=5, local_steps=1) == LocalSteps(1, 5, 5, 1)
    steps = {"local_steps": 4, "batch_size": 2}
    assert spread("weights", num_examples=6, cohort=2, **steps) == LocalSteps(2, 3, 2, 4)
    assert spread("weights", num_examples=1, **steps) == LocalSteps(1, 1, 1, 4)
    assert spread("gradient", num_examples=5, cohort=2) is None
    assert spread("gradient") is None
    assert spread("weights", num_examples=4, batch_size=2) is None
    assert spread("weights", num_examples=4, local_steps=2) is None


@pytest.mark.parametrize(("rows", "batch", "steps"), [(5, 2, 3), (5, 2, 7), (4, 2, 4), (3, 9, 2)])
def test_steps_are_those_of_the_client(rows: int, batch: int, steps: int) -> None:
    config = FederationConfig(protocol="fedavg", batch_size=batch, local_steps=steps)
    sizes = [len(step) for step in schedule(config, 0, rows, 1, 0)]
    own = spread("weights", num_examples=rows, batch_size=batch, local_steps=steps)
    assert own is not None
    told = [rows.stop - rows.start for rows, count in own.batches for _ in range(count)]
    assert sorted(told) == sorted(sizes)
    assert own.noise == pytest.approx(sum(1 / size for size in sizes) / steps**2)


def test_examples_are_weighted_by_their_steps() -> None:
    # Two clients; of three rows each the last is alone in one of three steps, the others in two.
    shares = LocalSteps(2, 3, 2, 3).shares
    torch.testing.assert_close(6 * shares, torch.tensor([2 / 2, 2 / 2, 1, 2 / 2, 2 / 2, 1]))
    assert LocalSteps(2, 3, 2, 3).examples == 6
    assert LocalSteps().shares.tolist() == [1]
    assert LocalSteps(2, 3, 2, 3).noise == pytest.approx((2 / 2 + 1) / 9 / 2)
