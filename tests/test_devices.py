"""Nothing mixes devices: attacks and clients compute on one whose tensors are not the CPU's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks import attack_classes
from attacks.base import Attack, Job
from attacks.scheduling import worker
from attacks.scheduling.worker import run_job
from benchmarks.bench_text import victim_of
from clients.train import LocalTrainer
from fedsim.config.build import build
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.conftest import pictures, victim  # noqa: F401
from tests.contract_cases import DEFENSE_CASES, IMAGES_ALONE, OTHER_MODELS, RUNS, Cell, jobs
from tests.far import FAR, Far, Generators, Watch


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Generators are of the device that they are made for, and tied parameters stay tied."""
    monkeypatch.setattr(torch, "Generator", Generators)
    torch.__future__.set_swap_module_params_on_conversion(True)
    with Watch():
        yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def test_devices_do_not_mix() -> None:
    here, there = torch.ones(2, 2), torch.ones(2, 2, device=FAR)
    assert isinstance(there @ there.mT, Far)
    assert (2 * there[torch.tensor([0])] + torch.tensor(1.0)).cpu().tolist() == [[3.0, 3.0]]
    refused: list[Callable[[], Tensor]] = [
        lambda: here + there,
        lambda: here[torch.zeros(1, dtype=torch.int64, device=FAR)],
        lambda: torch.cat([here, there]),
        lambda: there.long() @ there.long(),
        lambda: torch.randn(2, device=FAR, generator=torch.Generator()),
    ]
    for mixed in refused:
        with pytest.raises(RuntimeError):
            mixed()
    before = Far.waits
    there.cpu(), there.sum().item(), there.tolist(), there[there > 0], there.nonzero()
    assert Far.waits - before == 5
    there[torch.tensor([0])].add_(here[0].to(FAR))
    assert Far.waits - before == 5


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("closed_form", {}),
        ("inverting", {"steps": 2, "restarts": 2}),
        ("dlg", {"steps": 1}),
    ],
)
def test_an_attack_on_an_image_computes_where_it_is_told(
    name: str,
    options: dict[str, Any],
    victim: Callable[..., tuple[Task, Observation]],  # noqa: F811
    pictures: Callable[..., Batch],  # noqa: F811
) -> None:
    task, seen = victim(pictures(1, 3), labels=(3,))
    attack = build(attack_classes(), {"name": name, **options}, "attack")
    rng = torch.Generator().manual_seed(0)
    (guess,) = attack.reconstruct([seen], task, [rng], Job(device=FAR))
    assert guess.guess.inputs.shape == (1, 3, 16, 16)


def waits(attack: Attack, task: Task, seen: Observation) -> int:
    """How often a run on the device makes the CPU wait."""
    before = Far.waits
    attack.reconstruct([seen], task, [torch.Generator().manual_seed(0)], Job(device=FAR))
    return Far.waits - before


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("inverting", {}, 0),
        pytest.param("dlg", {}, 2, marks=pytest.mark.slow),
        pytest.param("lamp", {"starts": 1, "alpha_lm": 0.0}, 5, marks=pytest.mark.slow),
    ],
)
def test_a_step_waits_seldom(
    name: str,
    options: dict[str, Any],
    most: int,
    victim: Callable[..., tuple[Task, Observation]],  # noqa: F811
    pictures: Callable[..., Batch],  # noqa: F811
) -> None:
    task, seen = victim(pictures(1, 3), labels=(3,))
    if name == "lamp":
        rows = load_rows("sentences", "train[:1]", modality="text")
        config = TaskConfig(model="tiny-bert", dataset="sentences", max_length=8)
        task = make_task(config, rows)
        sentence = victim_of(task, initial_weights(task, config, 0), task.encode(rows), 0)
        seen = sentence.seen
    few, many = (
        waits(build(attack_classes(), {"name": name, "steps": steps, **options}, ""), task, seen)
        for steps in (1, 2)
    )
    assert many - few <= most


@pytest.mark.slow
def test_what_is_solved_waits_seldom(
    victim: Callable[..., tuple[Task, Observation]],  # noqa: F811
    pictures: Callable[..., Batch],  # noqa: F811
) -> None:
    task, seen = victim(pictures(3, 3, 4, 5), model="mlp", labels=(3, 4, 5))
    assert 0 < waits(build(attack_classes(), {"name": "spear"}, ""), task, seen) < 300


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_an_attack_computes_where_it_is_told(
    name: str,
    kind: Cell,
    cells: dict[Cell, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = worker._attack
    monkeypatch.setattr(worker, "_attack", lambda spec, _, report: inner(spec, FAR, report))
    for spec in jobs(cells[kind], name, tmp_path / "cell" / "guesses"):
        assert {record.status for record in run_job(spec)} == {"done"}


@pytest.mark.some(24)
@pytest.mark.parametrize("name", sorted(DEFENSE_CASES.keys() - IMAGES_ALONE - OTHER_MODELS))
def test_a_client_computes_where_it_is_told(name: str) -> None:
    rows = load_rows("sentences", "train[:2]", modality="text")
    config = TaskConfig(model="tiny-bert", dataset="sentences", max_length=8)
    task = make_task(config, rows)
    federation = FederationConfig(engine="in-process", batch_size=2)
    chain = build_chain([{"name": name, **DEFENSE_CASES[name]}], "defense")
    weights = initial_weights(task, config, 0)
    here, there = (
        LocalTrainer(task, federation, chain, 0, device).run(weights, rows, 1, 0).tensors
        for device in (torch.device("cpu"), FAR)
    )
    assert not any(isinstance(value, Far) for value in there.values())
    assert all(torch.equal(value, there[key]) for key, value in here.items())
