"""Flower's strategies behind the eavesdropper, with frozen tensors; what they cannot do."""

import re
from typing import Any

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureKey, Observation
from fedsim.types import Tensors
from tests.apps.cases import TEXT, Make, simulate

FROZEN = "bert.embeddings.word_embeddings.weight"


def models(make_run: Make, strategy: str, **options: Any) -> tuple[list[Tensors], list[Tensors]]:
    """The three global models, and the mean updates of the first two rounds."""
    federation = {"protocol": "fedavg", "rounds": 3, "strategy": strategy, **options}
    run = make_run(TEXT, federation=federation, defenses=[{"name": "freeze_embeddings"}])
    simulate(run)
    store = run.cells[0].captures

    def replies(round_: int) -> list[Observation]:
        return [store.load(key) for key in store.keys() if key.round == round_]

    sent = [store.load(CaptureKey(round=r, client=0)).sent for r in (1, 2, 3)]
    assert FROZEN not in replies(1)[0].received
    assert torch.equal(sent[0][FROZEN], sent[2][FROZEN])
    means = []
    for round_ in (1, 2):
        updates = [reply.update() for reply in replies(round_)]
        means.append({k: sum(u[k] for u in updates) / len(updates) for k in updates[0]})
    return sent, means  # type: ignore[return-value]


@pytest.mark.slow
def test_momentum_of_the_server_adds_the_round_before(make_run: Make) -> None:
    sent, means = models(make_run, "fedavgm", server_momentum=0.5)
    for name, first in means[0].items():
        expected = sent[0][name].double() - first
        torch.testing.assert_close(sent[1][name].double(), expected, rtol=0, atol=1e-6)
        expected = sent[1][name].double() - means[1][name] - 0.5 * first
        torch.testing.assert_close(sent[2][name].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.some(2)
@pytest.mark.parametrize("strategy", ["fedyogi", "fedadagrad"])
def test_adaptive_servers_step_along_the_mean_update(strategy: str, make_run: Make) -> None:
    sent, means = models(make_run, strategy)
    name = "classifier.weight"
    step = sent[0][name].double() - sent[1][name].double()
    assert torch.equal(step.sign(), means[0][name].sign())
    assert float(step.abs().max()) < 0.1 + 1e-6
    assert float((step - means[0][name]).abs().max()) > 1e-3


def test_krum_takes_one_client(make_run: Make) -> None:
    run = make_run(TEXT, federation={"protocol": "fedavg", "strategy": "krum"})
    simulate(run)
    store = run.cells[0].captures
    received = [store.load(CaptureKey(round=1, client=c)).received for c in range(3)]
    after = store.load(CaptureKey(round=2, client=0)).sent
    name = "classifier.weight"
    assert sum(torch.equal(after[name], one[name]) for one in received) == 1


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        ({"strategy": "fedprox"}, "strategy 'fedprox' with proximal_mu = 0 is FedAvg"),
        ({"strategy": "krum", "malicious_nodes": 1}, "malicious_nodes is 1; draw more clients"),
        ({"strategy": "krum", "secure_aggregation": 3}, "strategy 'krum' needs individual updates"),
        ({"local_steps": 2, "warmup_steps": 2}, "leaves none of the 2 local_steps"),
        ({"protocol": "fedsgd", "proximal_mu": 0.1}, "proximal_mu = 0.1 changes local steps"),
        ({"protocol": "fedsgd", "schedule": "cosine"}, "schedule = 'cosine' changes local steps"),
        ({"accumulation": 0}, "federation.accumulation"),
        ({"label_smoothing": 1.0}, "federation.label_smoothing"),
        ({"precision": "fp8"}, "federation.precision"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    federation: dict[str, Any], said: str, make_run: Make
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        make_run(TEXT, federation={"protocol": "fedavg", **federation})
    assert "\n" not in str(error.value)
