"""``--gpus`` for runs that were made without, and what asks for more GPUs than there are."""

from collections.abc import Callable

import pytest
import torch

from experiments.invocation import Invocation, check_gpus
from experiments.plan.config import parse_experiment
from fedsim.errors import ConfigError
from fedsim.records import SimulationRecord
from fedsim.store.files import write_json
from tests.apps.cases import IMAGES, Make, merge

Have = Callable[[int], None]


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> Have:
    """``with_gpus(2)``: torch finds two."""

    def have(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return have


def test_gpus_for_a_run_folder_are_for_its_attacks(make_run: Make, with_gpus: Have) -> None:
    run = make_run(IMAGES, federation={"rounds": 1})
    for cell in run.cells:
        record = SimulationRecord(seconds=1.0, utility=(), bytes_up={}, incidents=())
        write_json(cell.folder / "simulation.json", record)
    with_gpus(1)
    found = Invocation(str(run.root), gpus=0.5).run(("attack",))
    assert [cell.folder for cell in found.cells] == [cell.folder for cell in run.cells]
    (experiment,) = found.plan.experiments
    assert (experiment.attack_stage.gpus, experiment.federation.client_gpus) == (0.5, 0.0)
    with_gpus(0)
    with pytest.raises(ConfigError, match=r"^attack_stage.gpus: 1 x 0.5 GPUs .* torch finds 0"):
        Invocation(str(run.root), gpus=0.5).run(("attack",))


def test_gpus_of_the_experiment_are_asked_for_before_anything_is_written(
    make_run: Make, with_gpus: Have
) -> None:
    run = make_run(IMAGES, federation={"client_gpus": 1.0}, attack_stage={"gpus": 1.0})
    with_gpus(0)
    with pytest.raises(ConfigError, match=r"^federation.client_gpus: .*--gpus 0 runs on the CPU"):
        Invocation(str(run.root)).run(("simulate",))
    assert not list(run.root.glob("*/captures"))
    assert Invocation(str(run.root), gpus=0.0).run(("simulate",)).cells


@pytest.mark.parametrize(
    ("gpus", "workers", "engine", "share", "fits"),
    [
        (1, 2, "ray", 0.5, True),
        (1, 2, "ray", 0.6, False),  # Ray gives no worker two halves of two GPUs
        (2, 2, "ray", 0.6, True),
        (1, 3, "ray", 1 / 3, True),
        (1, 2, "ray", 1.0, False),
        (1, 2, "in-process", 1.0, True),  # it has one worker
        (4, 2, "ray", 2.0, True),
        (3, 2, "ray", 2.0, False),
        (0, 1, "ray", 0.1, False),
        (0, 9, "ray", 0.0, True),
        (4, 1, "in-process", 1.5, False),
    ],
)
def test_what_fits_on_the_gpus(
    gpus: int, workers: int, engine: str, share: float, fits: bool, with_gpus: Have
) -> None:
    """Clients hold their GPUs until the training ends; attacks only until their job does."""
    federation = {"engine": engine, "client_workers": workers, "client_gpus": share}
    config = parse_experiment(merge(IMAGES, {"federation": federation}))
    with_gpus(gpus)
    check_gpus(config, training=False, attacking=True)
    if fits:
        check_gpus(config, training=True, attacking=False)
    else:
        with pytest.raises(ConfigError, match=r"^federation.client_gpus: "):
            check_gpus(config, training=True, attacking=False)


def test_attacks_wait_for_one_another_and_another_cluster_has_its_own(with_gpus: Have) -> None:
    with_gpus(1)
    stage = {"gpus": 1.0, "workers": 4}
    check_gpus(
        parse_experiment(merge(IMAGES, {"attack_stage": stage})), training=False, attacking=True
    )
    with_gpus(0)
    joined = {
        "attack_stage": {**stage, "address": "10.0.0.1:6379"},
        "federation": {"engine": "ray"},
    }
    check_gpus(parse_experiment(merge(IMAGES, joined)), training=True, attacking=True)
