"""Findings about membership: what is called told, by round, and how often by chance."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from attacks.base import Job
from attacks.membership.membership import Membership
from experiments.analysis.membership import Finding, by_ranks, inferred
from experiments.analysis.statistics import mean
from experiments.stages.membership import ranked
from fedsim.config.cell import CandidatesConfig, CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.records import ScoreRow
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks.base import TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch
from tests.experiments.analysis.membership_rows import BATCH, CLIENTS, row

ATTACKS = (Membership(), Membership(statistic="cosine"), Membership(statistic="residual"))


def found(rows: list[ScoreRow], fresh: int = 100) -> list[Finding]:
    cell = CellConfig(
        seed=0,
        task=TaskConfig(model="mlp", dataset="shapes"),
        auxiliary=None,
        federation=FederationConfig(),
        capture=CaptureConfig(),
        candidates=CandidatesConfig(fresh=fresh),
        server_knows=ServerKnows(),
        defense=(),
    )
    return inferred(rows, {"c": ""}, {"c": cell})


def test_an_auc_above_chance_is_told() -> None:
    (whole,) = found([row(0.8 + 0.01 * client, client) for client in range(5)])
    assert (whole.round, whole.n, whole.clients, whole.tells) == (None, 5, 5, True)
    assert whole.mean == pytest.approx(0.82)
    (even,) = found([row(0.3 + 0.1 * client, client) for client in range(5)])
    assert not even.tells


def test_rounds_follow_all_of_them() -> None:
    rows = [row(0.1 * number, client, round=number) for number in (1, 3) for client in range(3)]
    assert [(one.round, round(one.mean, 3)) for one in found(rows)] == [
        (None, 0.2),
        (1, 0.1),
        (3, 0.3),
    ]


def ranked_rows(
    rng: np.random.Generator, fresh: int, *, gain: float, shared: bool
) -> list[ScoreRow]:
    """Eight clients with eight members each, whose scores are higher by a gain.

    An attack that reads no update gives a row the same score for each client, and so do its
    controls; else another client's update gives other scores.
    """
    beside = rng.normal(size=fresh)
    rows = []
    for client in range(8):
        for example in range(8):
            member = rng.normal() + gain
            turns = {"none": (beside, member)}
            wrong = (beside, member) if shared else (rng.normal(size=fresh), rng.normal())
            turns["other_client"] = wrong
            if not shared:
                turns["none"] = (rng.normal(size=fresh), member)
            rows += [
                row(float((others < score).mean()), client, example=example, control=control)
                for control, (others, score) in turns.items()
            ]
    return rows


def told(fresh: int, runs: int, *, gain: float, shared: bool) -> int:
    rng = np.random.default_rng(fresh)
    drawn = (ranked_rows(rng, fresh, gain=gain, shared=shared) for _ in range(runs))
    return sum(
        any(one.tells for one in found(rows, fresh) if one.control == "the update")
        for rows in drawn
    )


@pytest.mark.some(10)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fresh", [4, 20, 100])
def test_few_fresh_rows_make_no_blind_attack_tell(fresh: int, shared: bool) -> None:
    # Before: 15 % of the blind attacks beside 4 fresh rows, 7 % beside 20.
    assert told(fresh, 60, gain=0.0, shared=shared) <= 3


def test_members_are_told_by_the_update_or_the_weights() -> None:
    # By the update above another client's, even beside few fresh rows; by the weights if strongly.
    assert told(20, 10, gain=2.5, shared=False) == 10
    assert told(100, 10, gain=1.5, shared=True) == 10
    assert told(4, 10, gain=0.3, shared=True) <= 1


def test_a_rate_beside_few_fresh_rows_is_one_of_their_draw() -> None:
    # All of 99 fresh rows rank low by chance in one of a hundred draws: then many members pass.
    passing = [row(float(i % 25 == 0), i, metric="membership_tpr_1") for i in range(500)]
    assert not any(one.tells for one in found(passing, 99))
    assert any(one.tells for one in found(passing, 9999))


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "fresh"), [(5, 20), (20, 4)])
def test_members_ranked_by_chance_keep_the_level(clients: int, fresh: int) -> None:
    rng, calls = np.random.default_rng(0), 0
    for _ in range(1000):
        ranked_first = rng.uniform(size=clients)[:, None] > rng.uniform(size=fresh)
        chance = by_ranks(mean(ranked_first.mean(axis=1).tolist(), range(clients)), fresh)
        calls += chance <= 0.05
    assert calls <= 64  # 5 % are 50, with two standard errors


def audits(count: int) -> Iterator[list[ScoreRow]]:
    """Three attacks on updates of eight clients, where every candidate is fresh."""
    spec = TaskSpec(
        kind="image-classification",
        model="mlp",
        architecture={"width": 32, "depth": 1},
        num_classes=4,
        input_shape=(1, 8, 8),
    )
    task = ImageClassification(spec)
    network = task.build()
    sent, known = state(network), Knowledge(num_examples=BATCH, learning_rate=0.1)
    for seed in range(count):
        rng = torch.Generator().manual_seed(seed)
        size = CLIENTS * BATCH + 100
        rows = Batch(
            torch.rand(size, 1, 8, 8, generator=rng), torch.randint(0, 4, (size,), generator=rng)
        )
        seen = [
            Observation(
                CaptureKey(round=1, client=client),
                sent,
                task.gradient(network, rows[client * BATCH : (client + 1) * BATCH]),
                "gradient",
                known,
            )
            for client in range(CLIENTS)
        ]
        job = Job(candidates=partial(rows.__getitem__, slice(CLIENTS * BATCH, None)))
        made = []
        for attack in ATTACKS:
            recovered = attack.reconstruct(seen, task, [rng] * CLIENTS, job)
            for client, one in enumerate(recovered):
                assert one.scores is not None
                for pretended in range(4 * client, 4 * client + 4):
                    values = ranked(float(one.scores[pretended]), one.scores[4 * CLIENTS :])
                    options = f'{{"statistic":"{attack.statistic}"}}'
                    made.append(
                        row(values["membership_auc"] or 0.0, client, attack_options=options)
                    )
        yield made


@pytest.mark.slow
def test_false_calls_in_200_null_audits_keep_their_level() -> None:
    calls = [any(one.tells for one in found(rows)) for rows in audits(200)]
    print(f"{sum(calls)} of {len(calls)} null audits called")
    assert sum(calls) <= 11  # 2.5 % are 5; more than 11 have a chance of less than 1 %
