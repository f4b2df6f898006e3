"""DP-SGD at the client: the clipping, the noise, and what the two cost and leave."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from clients.train import LocalTrainer
from experiments.checks.capture_check import examine
from experiments.plan.rehearsal import rehearse
from experiments.stages.utility import spent, utility
from fedsim.accountant import Schedule, epsilon
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.errors import ConfigError
from fedsim.seeds import generator
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Rows, Tensors
from tests.apps.cases import IMAGES, Make, simulate
from tests.defenses.cases import text_task

MLP = TaskConfig(model="mlp", dataset="shapes")
PIXELS = torch.randint(
    0, 256, (10, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
ROWS = Rows(PIXELS, torch.arange(10) % 3, tuple(range(10)))
TASK = make_task(MLP, ROWS)
SENT = initial_weights(TASK, MLP, 0)
BATCH = TASK.encode(ROWS)
EVERY = (tuple(range(10)),)


def trainer(task: Task = TASK, seed: int = 0, **options: Any) -> LocalTrainer:
    """A trainer with options of ``dp_sgd``, which is left out without any, and a federation's."""
    own = {"clip", "noise_multiplier", "epsilon", "delta"} & options.keys()
    table = {"name": "dp_sgd", **{key: options.pop(key) for key in own}}
    chain = build_chain([table] if own else [], "defense")
    federation = FederationConfig.model_validate({"batch_size": 10, **options})
    return LocalTrainer(task, federation, chain, seed, torch.device("cpu"))


def reply(batch: Batch = BATCH, **options: Any) -> Tensors:
    plan = (tuple(range(len(batch))),)
    return trainer(**options).defend(SENT, batch, plan, 1, 3).tensors


def examples(batch: Batch = BATCH) -> list[Tensors]:
    """Each example's gradient, by an autograd call of its own."""
    model = TASK.model(SENT)
    return [TASK.gradient(model, batch[i]) for i in range(len(batch))]


def largest_and_median_norm() -> tuple[float, float]:
    norms = torch.stack([norm(gradient) for gradient in examples()])
    return norms.max().item(), norms.median().item()


def norm(update: Tensors) -> Tensor:
    flat = torch.cat([value.flatten().double() for value in update.values()])
    return flat.square().sum().sqrt()


def difference(first: Tensors, second: Tensors) -> Tensors:
    return {name: first[name] - second[name] for name in first}


def test_a_gradient_is_cut_to_the_clip_over_all_tensors_together_and_a_short_one_is_kept() -> None:
    gradient = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    rng = torch.Generator()
    halved = DpSgd(clip=2.5, noise_multiplier=0.0).on_gradient(gradient, rng)
    assert halved["a"].tolist() == [1.5, 0.0]
    assert halved["b"].tolist() == [[2.0]]
    tensors = DpSgd(clip=5.1, noise_multiplier=0.0).on_gradient(gradient, rng)
    assert all(torch.equal(tensors[name], gradient[name]) for name in gradient)
    zero = DpSgd(clip=1.0, noise_multiplier=0.0).on_gradient({"a": torch.zeros(3)}, rng)
    assert zero["a"].tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay(dtype: torch.dtype) -> None:
    given = {"a": torch.ones(4, dtype=dtype), "b": torch.ones(2, 2, dtype=dtype)}
    defense = DpSgd(clip=0.5, noise_multiplier=1.0)
    for result in (defense.on_gradient(given, torch.Generator()), defense.surrogate(given)):
        assert {v.dtype for v in result.values()} == {dtype}
    assert defense.on_sum(given, torch.Generator())["b"].dtype == dtype


def test_no_example_weighs_more_than_the_clip() -> None:
    _, clip = largest_and_median_norm()
    defense = DpSgd(clip=clip, noise_multiplier=0.0)
    clipped = [norm(defense.on_gradient(g, torch.Generator())).item() for g in examples()]
    assert max(clipped) == pytest.approx(clip, rel=1e-6)
    assert min(clipped) < 0.99 * clip
    whole = reply(clip=clip, noise_multiplier=0.0)
    for i in range(10):
        others = [j for j in range(10) if j != i]
        part = reply(BATCH[others], clip=clip, noise_multiplier=0.0)
        moved = norm({name: 10 * whole[name] - 9 * part[name] for name in whole}).item()
        assert moved == pytest.approx(clipped[i], rel=1e-3)
        assert moved <= clip * (1 + 1e-3)
    far = BATCH.inputs.clone()
    far[0] = 1 - far[0]
    changed = reply(Batch(far, BATCH.labels), clip=clip, noise_multiplier=0.0)
    assert 0 < 10 * norm(difference(whole, changed)).item() <= 2 * clip


def test_the_reply_is_the_mean_of_the_clipped_gradients() -> None:
    _, clip = largest_and_median_norm()
    sent = reply(clip=clip, noise_multiplier=0.0)
    for name, value in sent.items():
        parts = [g[name] * min(1.0, clip / norm(g).item()) for g in examples()]
        torch.testing.assert_close(value, torch.stack(parts).mean(0))
    longest, _ = largest_and_median_norm()
    assert norm(sent).item() < norm(reply(clip=longest, noise_multiplier=0.0)).item()


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_without_noise_and_with_a_huge_clip_nothing_changes(protocol: str) -> None:
    options: dict[str, Any] = {"protocol": protocol, "batch_size": 4, "local_epochs": 2}
    plain = trainer(**options).run(SENT, ROWS, 1, 3)
    quiet = trainer(clip=1e6, noise_multiplier=0.0, **options).run(SENT, ROWS, 1, 3)
    assert quiet.steps == plain.steps
    assert quiet.loss == pytest.approx(plain.loss)
    for name, value in plain.tensors.items():
        torch.testing.assert_close(quiet.tensors[name], value)


def test_noise_has_the_deviation_on_the_sum_and_is_divided_by_the_batch() -> None:
    clip, multiplier = 0.5, 1.5
    quiet = reply(clip=clip, noise_multiplier=0.0)
    noisy = reply(clip=clip, noise_multiplier=multiplier)
    noise = torch.cat([(10 * v).flatten() for v in difference(noisy, quiet).values()])
    count, std = noise.numel(), clip * multiplier
    assert count > 5000
    assert abs(noise.std().item() - std) < 3 * std / math.sqrt(2 * count)
    assert abs(noise.mean().item()) < 3 * std / math.sqrt(count)
    for name, value in difference(noisy, quiet).items():  # no tensor is left out
        assert (value != 0).float().mean() > 0.99, name


def test_noise_depends_on_seed_round_and_client_alone() -> None:
    def drawn(seed: int = 0, round_: int = 1, client: int = 3) -> Tensor:
        first = trainer(clip=1.0, noise_multiplier=1.0, seed=seed)
        return first.defend(SENT, BATCH, EVERY, round_, client).tensors["fc.weight"]

    assert torch.equal(drawn(), drawn())
    for other in (drawn(seed=1), drawn(round_=2), drawn(client=4)):
        assert not torch.equal(drawn(), other)


def test_fedavg_clips_and_covers_every_step() -> None:
    _, clip = largest_and_median_norm()
    options: dict[str, Any] = {"protocol": "fedavg", "batch_size": 4, "learning_rate": 0.05}
    client = trainer(clip=clip, noise_multiplier=0.7, **options)
    plan = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    sent = client.defend(SENT, BATCH, plan, 2, 1).tensors
    model, rng = TASK.model(SENT), generator(0, "defense", 2, 1)
    for step in plan:
        total = {name: torch.zeros_like(value) for name, value in SENT.items()}
        for i in step:
            gradient = TASK.gradient(model, BATCH[i])
            for name, value in gradient.items():
                total[name] += value * min(1.0, clip / norm(gradient).item())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = 0.7 * clip * torch.randn(parameter.shape, generator=rng)
                parameter.sub_(0.05 * (total[name] + noise) / len(step))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(sent[name], parameter.detach())


def test_the_tied_head_of_gpt2_counts_once() -> None:
    task, sent, batch = text_task("tiny-gpt2")
    model = task.model(sent)
    assert model.get_parameter("lm_head.weight") is model.get_parameter("transformer.wte.weight")
    gradient = task.gradient(model, batch[0])
    clip = norm(gradient).item() / 3
    client = trainer(task, clip=clip, noise_multiplier=0.0)
    cut = client.defend(sent, batch[0], ((0,),), 1, 0).tensors
    assert list(cut) == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in cut
    assert norm(cut).item() == pytest.approx(clip, rel=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(cut[name], value / 3, rtol=1e-4, atol=1e-7)


def test_frozen_embeddings_are_neither_sent_nor_counted() -> None:
    task, sent, batch = text_task("tiny-bert")
    tables: list[dict[str, object]] = [
        {"name": "freeze_embeddings"},
        {"name": "dp_sgd", "clip": 1e-3, "noise_multiplier": 0.0},
    ]
    chain = build_chain(tables, "defense")
    one = LocalTrainer(task, FederationConfig(), chain, 0, torch.device("cpu"))
    cut = one.defend(sent, batch[0], ((0,),), 1, 0).tensors
    assert "bert.embeddings.word_embeddings.weight" not in cut
    assert norm(cut).item() == pytest.approx(1e-3, rel=1e-5)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)


def test_batch_statistics_in_train_mode_are_refused() -> None:
    defense, model = DpSgd(clip=1.0, noise_multiplier=1.0), Normalised()
    with pytest.raises(ConfigError) as caught:
        defense.on_model(model.train())
    assert str(caught.value) == (
        "dp_sgd: 'first' of Normalised is a batch normalisation layer in train mode, whose "
        "statistics mix the examples that epsilon is to tell apart. Set federation.train_mode = "
        "false, choose a model without batch normalisation, or protect whole clients by dp_client."
    )
    defense.on_model(model.eval())
    defense.on_model(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout()).train())


def test_batch_statistics_are_refused_before_anything_is_trained(make_run: Make) -> None:
    def run(*, mode: bool) -> None:
        changes: dict[str, Any] = {
            "task": {"model": "resnet20"},
            "federation": {"train_mode": mode},
            "defenses": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}],
        }
        rehearse(make_run(IMAGES, folder=f"mode-{mode}", **changes).cells)

    run(mode=False)
    with pytest.raises(ConfigError, match="'bn1' of ResNet20 is a batch normalisation"):
        run(mode=True)


def test_the_surrogate_is_the_clipping_and_has_its_derivative() -> None:
    defense = DpSgd(clip=1.0, noise_multiplier=3.0)
    gradient = examples()[0]
    ours = DpSgd(clip=0.1, noise_multiplier=3.0).surrogate(gradient)
    clipped = DpSgd(clip=0.1, noise_multiplier=0.0).on_gradient(gradient, torch.Generator())
    assert all(torch.equal(ours[name], clipped[name]) for name in gradient)

    def first(value: Tensor) -> Tensor:
        result: Tensor = defense.surrogate({"w": value})["w"][0]
        return result

    values = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    slopes = vmap(grad(first))(values)
    # d(x / |x|)/dx = (y^2, -x y) / |x|^3 where it is cut, and (1, 0) where it is not.
    expected = torch.tensor([[16 / 125, -12 / 125], [1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(slopes, expected)


def test_a_budget_becomes_noise_for_the_rows_and_rounds_of_a_client() -> None:
    options: dict[str, Any] = {"protocol": "fedavg", "batch_size": 4, "rounds": 5}
    client = trainer(clip=1.0, epsilon=4.0, delta=1e-6, **options)
    few, many = (client.fit(rows).chain for rows in (10, 100))
    for chain, rows in ((few, 10), (many, 100)):
        schedule = Schedule.of(client.config, rows)
        found = chain.epsilon_after(schedule)
        assert found == pytest.approx(4.0, abs=1e-2)
        (table,) = chain.tables
        assert table["epsilon"] is None
        noise = table["noise_multiplier"]
        steps, rate = schedule.steps, schedule.rate
        again = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=1e-6)
        assert again == found
    assert few.tables[0]["noise_multiplier"] > many.tables[0]["noise_multiplier"]
    assert trainer(clip=1.0, noise_multiplier=2.0).fit(10).chain.tables[0]["epsilon"] is None
    assert trainer().fit(10).chain.epsilon_after(Schedule(0.5, 3, 3)) is None


def test_a_budget_that_was_not_turned_into_noise_is_named() -> None:
    budget = DpSgd(clip=1.0, epsilon=4.0)
    with pytest.raises(ConfigError) as caught:
        budget.on_sum({"w": torch.zeros(2)}, torch.Generator())
    assert str(caught.value) == (
        "dp_sgd.epsilon: 4.0 is a budget for a whole run, and the noise that it requires depends "
        "on the client's rows and steps. Call fit first, or set noise_multiplier."
    )
    with pytest.raises(ConfigError, match=r"dp_sgd\.epsilon: 4\.0 is a budget for a whole run"):
        budget.epsilon_after(Schedule(1.0, 1, 1))


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_utility_rows_tell_epsilon_so_far_and_captures_replay(
    protocol: str, make_run: Make
) -> None:
    defenses = [
        {"name": "none"},
        {"name": "dp_sgd", "clip": 1.0, "epsilon": 6.0},
        {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.0},
    ]
    federation = {"protocol": protocol, "batch_size": 2, "client_rows": 0, "rounds": 3}
    changes = {"task": {"split": "train[:24]"}, "federation": federation, "defenses": defenses}
    run = make_run(IMAGES, **changes)
    simulate(run)
    assert examine(run).faults == 0
    found = [{row.round: row.epsilon for row in utility(cell)} for cell in run.cells]
    plain, budget, quiet = found
    assert set(plain.values()) == {None}
    assert spent(run.cells[0]) == {}
    assert quiet == {0: 0.0, 1: math.inf, 2: math.inf, 3: math.inf}
    values = [budget[round_] or 0.0 for round_ in range(4)]
    assert values[0] == 0.0 < values[1] < values[2] < values[3]
    assert values[3] == pytest.approx(6.0, abs=1e-2)


def test_what_a_run_has_spent_is_what_another_library_says(make_run: Make) -> None:
    from opacus.accountants import PRVAccountant

    changes: dict[str, Any] = {
        "task": {"model": "mlp", "split": "train[:24]"},
        "auxiliary": None,
        "federation": {"protocol": "fedavg", "batch_size": 2, "client_rows": 0, "rounds": 2},
        "defenses": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.9, "delta": 1e-6}],
    }
    run = make_run(IMAGES, **changes)
    simulate(run)
    (cell,) = run.cells
    for round_, found in spent(cell).items():
        other = PRVAccountant()
        for _ in range(4 * round_):  # eight rows, two a step
            other.step(noise_multiplier=0.9, sample_rate=1 / 4)
        expected = other.get_epsilon(1e-6, eps_error=1e-3) if round_ else 0.0
        assert found.epsilon == pytest.approx(expected, abs=1e-2)


def test_rounds_that_a_client_sat_out_cost_it_nothing(make_run: Make) -> None:
    changes: dict[str, Any] = {
        "task": {"split": "train[:24]"},
        "federation": {"participation": 0.34, "rounds": 3},
        "defenses": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}],
    }
    run = make_run(IMAGES, **changes)
    simulate(run)
    (cell,) = run.cells
    counts = [0, 0, 0]
    for round_, found in spent(cell).items():
        for key in cell.captures.keys():
            counts[key.client] += key.round == round_
        expected = epsilon(steps=max(counts), rate=1 / 8, noise_multiplier=1.0, delta=1e-5)
        assert found.epsilon == expected
    assert sum(counts) == 3
    assert max(counts) < 3
