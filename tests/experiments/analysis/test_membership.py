"""Findings about membership: what is called told, by round, and how often by chance."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from attacks.base import Job
from attacks.membership.membership import Membership
from experiments.analysis.membership import Finding, inferred
from experiments.stages.membership import ranked
from fedsim.capture import CaptureKey, Observation
from fedsim.knowledge import Knowledge
from fedsim.records import ScoreRow
from fedsim.tasks.base import TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch

CLIENTS, BATCH = 8, 8
ATTACKS = (Membership(), Membership(statistic="cosine"), Membership(statistic="loss_change"))


def row(value: float, client: int = 0, **changes: Any) -> ScoreRow:
    columns: dict[str, Any] = {
        **{"run": "r", "cell": "c", "seed": 0, "task": "image-classification", "model": "mlp"},
        **{"dataset": "shapes", "split": "train", "protocol": "fedsgd", "batch_size": BATCH},
        **{"local_steps": 1, "defense": "none", "defense_options": "[]", "attack": "membership"},
        **{"attack_options": '{"statistic":"cosine"}', "adaptive": False, "control": "none"},
        **{"round": 1, "probe": "none", "example": 0, "metric": "membership_auc", "unit": "1"},
        **{"status": "done", "reason": "", "objective": None, "certified": None, "level": None},
    }
    columns |= {"client": client, "value": value, "seconds": 0.0, **changes}
    return ScoreRow(**columns)


def found(rows: list[ScoreRow]) -> list[Finding]:
    return inferred(rows, {"c": ""})


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
            told = attack.reconstruct(seen, task, [rng] * CLIENTS, job)
            for client, one in enumerate(told):
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
