"""Local training against plain loops written out here."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients.train import LocalTrainer
from clients.updates import LocalUpdate
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.local.client import smoothed
from fedsim.seeds import generator
from fedsim.tasks import initial_weights, make_task
from fedsim.types import Rows, Tensors

CONFIG = TaskConfig(model="mlp", dataset="shapes")
ROWS = Rows(
    torch.randint(
        0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    ),
    torch.arange(12) % 3,
    tuple(range(100, 112)),
)
TEXTS = Rows(("a fine film .", "the plot is thin"), torch.zeros(2, dtype=torch.int64), (0, 1))
TASK = make_task(CONFIG, ROWS)
SENT = initial_weights(TASK, CONFIG, 0)


def run(
    *defense: dict[str, object], seed: int = 0, round_: int = 1, **options: object
) -> LocalUpdate:
    federation = FederationConfig.model_validate(options)
    chain = build_chain(defense, "defense")
    trainer = LocalTrainer(TASK, federation, chain, seed, torch.device("cpu"))
    return trainer.run(SENT, ROWS, round_, client=3)


def loss_of(model: nn.Module, update: LocalUpdate, step: tuple[int, ...]) -> Tensor:
    batch = update.batch[list(step)]
    return nn.functional.cross_entropy(model(batch.inputs), batch.labels)


def test_fedsgd_sends_the_gradient_of_the_mean_loss() -> None:
    update = run(batch_size=5)
    model = TASK.model(SENT)
    loss = loss_of(model, update, tuple(range(5)))
    loss.backward()
    assert update.kind == "gradient"
    assert len(update.batch) == 5
    assert update.loss == pytest.approx(loss.item())
    assert list(update.tensors) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(update.tensors[name], parameter.grad)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.0),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fedavg_sends_the_weights_of_a_plain_loop(optimizer: str) -> None:
    update = run(
        protocol="fedavg", optimizer=optimizer, batch_size=5, local_epochs=2, learning_rate=0.05
    )
    assert [len(step) for step in update.steps] == [5, 5, 2, 5, 5, 2]
    for epoch in (update.steps[:3], update.steps[3:]):
        assert sorted(i for step in epoch for i in step) == list(range(12))
    assert update.steps[0] != update.steps[3]
    model = TASK.model(SENT)
    plain = OPTIMIZERS[optimizer](list(model.parameters()))
    for step in update.steps:
        plain.zero_grad()
        loss_of(model, update, step).backward()
        plain.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(update.tensors[name], parameter)


def test_every_option_of_a_step_in_a_plain_loop() -> None:
    """Accumulation, clipping, warm-up, cosine, weight decay, smoothing and FedProx together."""
    update = run(
        protocol="fedavg",
        optimizer="momentum",
        learning_rate=0.5,
        weight_decay=0.01,
        batch_size=5,
        local_epochs=2,
        accumulation=2,
        label_smoothing=0.1,
        max_grad_norm=0.4,
        schedule="cosine",
        warmup_steps=2,
        proximal_mu=0.3,
    )
    model = TASK.model(SENT)
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    factors = [0.0, 0.5, 1.0, *((1 + math.cos(math.pi * i / 4)) / 2 for i in (1, 2, 3))]
    norms = []
    for step, factor in zip(update.steps, factors, strict=True):
        plain.zero_grad()
        middle = math.ceil(len(step) / 2)
        for part in (step[:middle], step[middle:]):
            batch = update.batch[list(part)]
            loss = nn.functional.cross_entropy(
                model(batch.inputs), batch.labels, label_smoothing=0.1
            )
            (loss / 2).backward()
        pull = sum(((p - SENT[k]) ** 2).sum() for k, p in model.named_parameters())
        (0.3 / 2 * pull).backward()  # type: ignore[union-attr]
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.4)))
        plain.param_groups[0]["lr"] = 0.5 * factor
        plain.step()
    assert min(norms[1:]) < max(norms)
    assert max(norms) > 0.4
    assert update.learning_rate == pytest.approx(0.5 * sum(factors) / 6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(update.tensors[name], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_schedule_over_rounds_is_constant_in_each() -> None:
    options: dict[str, Any] = {
        "protocol": "fedavg",
        "batch_size": 4,
        "rounds": 4,
        "schedule": "cosine",
        "schedule_over": "rounds",
    }
    rates = [run(round_=r, **options).learning_rate for r in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * i / 4)) for i in range(4)])


@pytest.mark.parametrize(("precision", "error"), [("bf16", 4e-3), ("fp16", 6e-4)])
def test_low_precision_rounds_the_gradient(precision: str, error: float) -> None:
    options: dict[str, Any] = {"batch_size": 5, "precision": precision}
    exact, rough, again = run(batch_size=5), run(**options), run(**options)
    for name, value in rough.tensors.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, again.tensors[name])
    head = exact.tensors["fc.weight"]
    distance = float((rough.tensors["fc.weight"] - head).norm() / head.norm())
    assert distance == pytest.approx(error, rel=0.5)


@pytest.mark.parametrize("kind", ["language-modelling", "masked-language-modelling"])
def test_smoothing_spreads_over_the_vocabulary(kind: str) -> None:
    model = "tiny-gpt2" if kind == "language-modelling" else "tiny-bert"
    task = make_task(TaskConfig(model=model, dataset="sentences", kind=kind), TEXTS)
    network, batch = task.build(), task.encode(TEXTS)
    logits = network(input_ids=batch.inputs, attention_mask=batch.mask).logits
    targets = batch.labels
    if kind == "language-modelling":
        logits, targets = logits[:, :-1], targets[:, 1:]
    expected = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), label_smoothing=0.2
    )
    found = task.loss(network, smoothed(task, network, batch, 0.2))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_error_feedback_sends_later_what_was_left_out() -> None:
    tables: list[dict[str, object]] = [
        {"name": "error_feedback"},
        {"name": "prune", "fraction": 0.9},
    ]
    for protocol in ("fedsgd", "fedavg"):
        federation = FederationConfig.model_validate({"protocol": protocol, "batch_size": 4})
        device = torch.device("cpu")
        trainer = LocalTrainer(TASK, federation, build_chain(tables, "defense"), 0, device)
        bare = LocalTrainer(TASK, federation, build_chain([], "defense"), 0, device)
        first = trainer.run(SENT, ROWS, 1, 3)
        second = trainer.run(SENT, ROWS, 2, 3, first.memory)
        plain = [bare.run(SENT, ROWS, r, 3).tensors for r in (1, 2)]
        base = {name: value if protocol == "fedavg" else 0 for name, value in SENT.items()}
        sign = -1 if protocol == "fedavg" else 1
        for name in SENT:
            sent = [sign * (u.tensors[name] - base[name]) for u in (first, second)]
            whole = [sign * (u[name] - base[name]) for u in plain]
            torch.testing.assert_close(
                sent[0] + sent[1] + second.memory[name], whole[0] + whole[1], rtol=1e-4, atol=1e-6
            )
        count = sum(int((value != base[name]).sum()) for name, value in first.tensors.items())
        assert count <= 0.101 * sum(value.numel() for value in SENT.values())


def test_local_steps_and_client_rows_limit_the_work() -> None:
    update = run(protocol="fedavg", batch_size=2, client_rows=4, local_steps=3)
    assert [len(step) for step in update.steps] == [2, 2, 2]
    assert len(update.batch) == 4
    assert len(set(update.positions)) == 4


def test_batches_depend_on_seed_round_and_client_alone() -> None:
    assert run(batch_size=4).positions == run(batch_size=4).positions
    assert run(batch_size=4).positions != run(batch_size=4, seed=1).positions
    assert run(batch_size=4).positions != run(batch_size=4, round_=2).positions


def defended_mean(update: LocalUpdate, transform: Callable[[Tensor], Tensor]) -> Tensors:
    model = TASK.model(SENT)
    sums: Tensors = {}
    for i in range(len(update.batch)):
        model.zero_grad()
        loss_of(model, update, (i,)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            sums[name] = sums.get(name, torch.zeros(())) + transform(parameter.grad.clone())
    return {name: value / len(update.batch) for name, value in sums.items()}


def test_a_sample_stage_defense_acts_before_the_mean() -> None:
    update = run({"name": "sign", "stage": "sample"}, batch_size=3)
    for name, value in defended_mean(update, torch.sign).items():
        assert torch.allclose(update.tensors[name], value)
    after = run({"name": "sign"}, batch_size=3)
    first = next(iter(after.tensors))
    assert set(after.tensors[first].unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert not torch.equal(after.tensors[first], update.tensors[first])


def test_a_client_stage_defense_of_fedavg_acts_on_the_difference() -> None:
    options: dict[str, Any] = {"protocol": "fedavg", "batch_size": 4, "learning_rate": 0.05}
    plain = run(**options)
    signed = run({"name": "sign"}, **options)
    for name, sent in SENT.items():
        expected = sent - torch.sign(sent - plain.tensors[name])
        assert torch.equal(signed.tensors[name], expected)


def test_noise_differs_between_rounds_and_repeats_with_the_seed() -> None:
    noise = {"name": "gaussian_noise", "std": 0.5}
    first = next(iter(SENT))
    once, again = run(noise), run(noise)
    assert torch.equal(once.tensors[first], again.tensors[first])
    clean = run()
    residual = once.tensors[first] - clean.tensors[first]
    assert residual.std().item() == pytest.approx(0.5, rel=0.1)


BN_CONFIG = TaskConfig(model="resnet20", dataset="shapes")
BN_ROWS = Rows(
    torch.randint(
        0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    ),
    torch.arange(4) % 2,
    tuple(range(4)),
)


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_batch_statistics_are_sent_in_train_mode_only(protocol: str) -> None:
    task = make_task(BN_CONFIG, BN_ROWS)
    sent = initial_weights(task, BN_CONFIG, 0)
    buffers = {name for name, _ in task.build().named_buffers()}
    for train_mode in (False, True):
        options = {"protocol": protocol, "train_mode": train_mode, "batch_size": 4}
        federation = FederationConfig.model_validate(options)
        chain = build_chain([], "defense")
        trainer = LocalTrainer(task, federation, chain, 0, torch.device("cpu"))
        tensors = trainer.run(sent, BN_ROWS, 1, 0).tensors
        assert set(tensors) & buffers == (buffers if train_mode else set())
        mean = "bn1.running_mean" if "bn1.running_mean" in buffers else sorted(buffers)[1]
        if train_mode:
            assert not torch.equal(tensors[mean], sent[mean])


def test_steps_of_dp_sgd_are_those_by_hand() -> None:
    options = {"protocol": "fedavg", "local_steps": 3, "optimizer": "momentum", "batch_size": 4}
    tables = [
        {"name": "dp_sgd", "clip": 0.1, "noise_multiplier": 0.5},
        {"name": "gaussian_noise", "std": 0.01},
    ]
    federation = FederationConfig.model_validate(options)
    chain = build_chain(tables, "defense")
    client = LocalTrainer(TASK, federation, chain, 0, torch.device("cpu"))
    found = client.run(SENT, ROWS, 1, 3)
    batch = TASK.encode(ROWS.take(found.positions))
    rng, model = generator(0, "defense", 1, 3), TASK.model(SENT)
    optimizer = torch.optim.SGD(model.parameters(), lr=client.config.learning_rate, momentum=0.9)
    for step in found.steps:
        total: Tensors = {}
        for i in step:
            more = chain.on_gradient(TASK.gradient(model, batch[i]), rng)
            total = {k: total[k] + value for k, value in more.items()} if total else more
        total = chain.on_sum(total, rng)
        for name, parameter in model.named_parameters():
            parameter.grad = total[name] / len(step)
        optimizer.step()
    moved = {name: SENT[name] - p.detach() for name, p in model.named_parameters()}
    for name, value in chain.on_update(moved, rng).items():
        assert torch.equal(found.tensors[name], SENT[name] - value)
