"""Membership scores on batches whose members are known, and along a whole run."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

from attacks.base import Job
from attacks.membership.membership import Membership, Regression
from experiments.analysis.membership import inferred
from experiments.pipeline import execute
from experiments.stages.membership import ranked
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.records import ScoreRow
from fedsim.seeds import seeded
from fedsim.store.capture import CaptureKey, CaptureStore, Observation
from fedsim.store.files import load_tensors
from fedsim.store.rows import read_rows
from fedsim.tasks.base import Task, TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch
from tests.apps.cases import IMAGES, TEXT, Make

MEMBERS = 6
KEY = CaptureKey(round=1, client=0)
RNG = torch.Generator().manual_seed(0)
ROWS = Batch(torch.rand(32, 1, 8, 8, generator=RNG), torch.arange(32) % 4)


@pytest.fixture(autouse=True)
def _same_weights() -> Iterator[None]:
    """Networks are drawn; else their weights depend on the tests that ran before."""
    with seeded(0):
        yield


@pytest.fixture
def task() -> Task:
    architecture = {"width": 64, "depth": 1}
    return ImageClassification(
        TaskSpec(
            kind="image-classification",
            model="mlp",
            architecture=architecture,
            num_classes=4,
            input_shape=(1, 8, 8),
        )
    )


def scores(task: Task, statistic: str, network: nn.Module | None = None) -> torch.Tensor:
    """Of thirty candidates, for the mean gradient of the first six and two others."""
    network = network or task.build()
    gradient = task.gradient(network, ROWS[[*range(MEMBERS), 30, 31]])
    seen = Observation(
        KEY,
        state(network),
        gradient,
        "gradient",
        Knowledge(num_examples=MEMBERS + 2, learning_rate=0.1),
    )
    attack = Membership(statistic=statistic)  # type: ignore[arg-type]
    recovered = attack.reconstruct([seen], task, [RNG], Job(candidates=lambda: ROWS[:30]))
    assert recovered[0].scores is not None
    return recovered[0].scores


@pytest.mark.parametrize("statistic", ["likelihood", "residual"])
def test_members_come_before_all_others(task: Task, statistic: str) -> None:
    scored = scores(task, statistic)
    assert scored[:MEMBERS].min() > scored[MEMBERS:].max()


def test_members_are_scored_higher_on_average(task: Task) -> None:
    scored = scores(task, "cosine")
    assert scored[:MEMBERS].mean() > scored[MEMBERS:].mean()


def after_adam(task: Task, steps: int) -> Observation:
    """A reply of weights after steps of AdamW, from weights that are drawn."""
    network, batch = task.build(), ROWS[[*range(MEMBERS), 30, 31]]
    sent = {name: value.clone() for name, value in state(network).items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(network, batch).backward()
        optimizer.step()
    known = Knowledge(num_examples=MEMBERS + 2, optimizer="adamw")
    return Observation(KEY, sent, state(network), "weights", known)


def auc(attack: Membership, seen: Observation, task: Task) -> float:
    scores = attack.reconstruct([seen], task, [RNG], Job(candidates=rows))[0].scores
    assert scores is not None
    return float((scores[:MEMBERS, None] > scores[None, MEMBERS:]).double().mean())


@pytest.mark.parametrize("steps", [1, 3])
def test_members_come_first_after_steps_of_adam(task: Task, steps: int) -> None:
    replies = [after_adam(task, steps) for _ in range(5)]
    assert min(auc(Membership(), seen, task) for seen in replies) > 0.85
    # The sign of one step tells little: .56 to .88 by the weights that are drawn, .5 by chance.
    assert fmean(auc(Membership(statistic="cosine"), seen, task) for seen in replies) > 0.6


def rows() -> Batch:
    return ROWS[:30]


def test_others_centre_the_scores_of_rows_that_nobody_used(task: Task) -> None:
    network, seen = task.build(), []
    for client in range(5):
        rows = [2 * client, 2 * client + 1]
        gradient = task.gradient(network, ROWS[rows])
        key = CaptureKey(round=1, client=client)
        facts = Knowledge(num_examples=2, learning_rate=0.1, all_rows=True)
        seen.append(Observation(key, state(network), gradient, "gradient", facts))
    attack, job = Membership(statistic="others"), Job(candidates=lambda: ROWS[:30])
    recovered = attack.reconstruct(seen, task, [RNG] * 5, job)
    for client, one in enumerate(recovered):
        assert one.scores is not None
        members, fresh = one.scores[2 * client : 2 * client + 2], one.scores[10:]
        assert members.mean() > fresh.mean() + fresh.std()
        assert abs(float(fresh.mean())) < 1
    with pytest.raises(CannotAttack, match="2 replies"):
        attack.reconstruct(seen[:2], task, [RNG] * 2, job)


@pytest.mark.parametrize("defend", [torch.sign, lambda v: v * (v.abs() > v.abs().median())])
def test_signs_and_pruning_leave_members_first(task: Task, defend: Any) -> None:
    network = task.build()
    gradient = task.gradient(network, ROWS[:MEMBERS])
    sent = {name: defend(value) for name, value in gradient.items()}
    seen = Observation(KEY, state(network), sent, "gradient", Knowledge(num_examples=MEMBERS))
    found = Membership().reconstruct([seen], task, [RNG], Job(candidates=lambda: ROWS))[0].scores
    assert found is not None
    assert found[:MEMBERS].min() > found[MEMBERS:].max()


def of_rounds(task: Task, count: int) -> list[Observation]:
    """A client trains on its first six rows in every round."""
    found = []
    with seeded(0):
        network = task.build()
    for number in range(1, count + 1):
        gradient = task.gradient(network, ROWS[:MEMBERS])
        key = CaptureKey(round=number, client=0)
        noise = {k: v + 0.02 * torch.randn(v.shape, generator=RNG) for k, v in gradient.items()}
        known = Knowledge(num_examples=MEMBERS, learning_rate=1.0, all_rows=True)
        found.append(Observation(key, state(network), noise, "gradient", known))
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.sub_(0.5 * gradient[name])
    return found


def test_scores_add_up_over_the_rounds_of_the_same_rows(task: Task) -> None:
    rounds = of_rounds(task, 3)
    job = Job(candidates=lambda: ROWS)
    alone = Membership().reconstruct(rounds[:1], task, [RNG], job)[0].scores
    recovered = Membership(over_rounds=True).reconstruct(rounds, task, [RNG] * 3, job)
    last = recovered[2].scores
    assert alone is not None
    assert last is not None
    standard = (alone - alone.mean()) / alone.std()
    torch.testing.assert_close(recovered[0].scores, standard)
    assert last[:MEMBERS].mean() > 2 * standard[:MEMBERS].mean()


def test_t_values_of_orthogonal_gradients_are_their_shares() -> None:
    update = torch.zeros(100).index_add_(0, torch.arange(2), torch.tensor([1.0, 0.5]))
    t = Regression.on(torch.eye(3, 100)).t_values(update)
    assert t.tolist() == pytest.approx([1.0, 0.5, 0.0], rel=1e-6)


def test_without_candidates_it_cannot_attack(task: Task) -> None:
    with pytest.raises(CannotAttack, match=r"it needs candidate rows.* candidates.fresh = 200"):
        Job().candidates()


def test_ranks_and_rates() -> None:
    fresh = torch.arange(100.0)
    assert ranked(99.5, fresh) == {
        "membership_auc": 1.0,
        "membership_tpr_1": 1.0,
        "membership_tpr_01": None,  # takes 999 fresh rows
    }
    assert ranked(99.0, fresh)["membership_tpr_1"] == 0.0
    assert ranked(49.5, fresh)["membership_auc"] == 0.5


@pytest.mark.parametrize("base", [TEXT, pytest.param(IMAGES, marks=pytest.mark.slow)])
def test_a_run_tells_members_from_fresh_rows(base: dict[str, object], make_run: Make) -> None:
    run = make_run(
        base,
        task={"heldout_rows": 40},
        candidates={"fresh": 24, "share": 1.0},
        federation={"rounds": 1, "batch_size": 2},
        attacks=[{"name": "membership"}],
    )
    execute(run, ("simulate", "attack", "score"), quiet=True)
    captures = CaptureStore(run.cells[0].folder / "captures")
    candidates = captures.candidates()
    assert candidates is not None
    assert len(candidates) == 3 * 2 + 24
    names = set(load_tensors(captures.root / "candidates.safetensors"))
    assert names <= {"inputs", "labels", "mask"}  # and nothing that tells them apart
    rows = read_rows(run.root / "membership.parquet", ScoreRow)
    labels = {cell.name: "" for cell in run.cells}
    means = {
        (f.control, f.metric): f.mean
        for f in inferred(rows, labels, {c.name: c.config for c in run.cells})
    }
    assert means["the update", "membership_auc"] > 0.9
    assert means["other client's update", "membership_auc"] < 0.8
    assert 0.1 < means["fresh rows for members", "membership_auc"] < 0.9
    assert ("the update", "membership_tpr_1") not in means  # 24 fresh rows cannot show it
    assert read_rows(run.root / "scores.parquet", ScoreRow) == []


def test_too_few_held_out_rows_are_refused(make_run: Make, tmp_path: Path) -> None:
    run = make_run(IMAGES, candidates={"fresh": 9}, attacks=[{"name": "membership"}])
    with pytest.raises(Exception, match=r"candidates.fresh: 9 are requested, but only \d held-out"):
        execute(run, ("simulate",), quiet=True)
