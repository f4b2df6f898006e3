"""Learning To Invert: what is simulated is what clients send, and victims play no part in it."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from attacks.base import Job
from attacks.learned import inverter_training
from attacks.learned.inverter import Pixels, TokenOutput, assigned, words_of
from attacks.learned.inverter_training import SimulatedUpdates
from attacks.learned.lti import LTI
from attacks.learned.simulated_client import SimulatedClient
from attacks.observed.replay import observed_gradient
from attacks.prior_only import PriorOnly
from attacks.scheduling.jobs import plan
from attacks.scheduling.worker import run_job
from experiments.plan.folder import Run
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors
from tests.apps.cases import IMAGES, Make, simulate
from tests.attacks.learned.cases import SIGN, client, described, owning, rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
QUICK = LTI(width=64, epochs=2, updates=32)


EXACT: list[tuple[list[dict[str, object]], int, bool]] = [
    ([], 1, True),
    ([], 3, True),
    ([SIGN], 1, True),
    ([SIGN], 3, False),
    ([{**SIGN, "stage": "sample"}], 3, True),
    ([{"name": "prune", "fraction": 0.9}], 1, True),
    ([{"name": "prune", "fraction": 0.9, "stage": "sample"}, SIGN], 3, False),
    ([{"name": "dp_sgd", "clip": 0.5, "noise_multiplier": 0.0}], 3, True),
]


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize(("tables", "size", "kept"), EXACT)
def test_what_is_simulated_is_what_the_client_sends(
    victim: Victim,
    rows: Batch,
    tables: list[dict[str, object]],
    size: int,
    kept: bool,
    protocol: str,
) -> None:
    task, other = victim(rows[:1], classes=4)
    seen = client(task, other.sent, rows[:size], *tables, protocol=protocol)
    description = described(task, seen, size)
    simulated = SimulatedUpdates(description, rows[:30], rng())
    assert (simulated.linear is not None or simulated.finished is not None) == kept
    expected = description.coordinates.flatten(observed_gradient(seen)).float()
    (features,) = simulated(torch.arange(size)[None], rng())
    scale = float(expected.abs().max())
    near = (features - expected).abs() < 1e-3 * scale
    assert float(near.float().mean()) > 0.995  # a sign of what is nearly 0 may differ
    assert float(expected.abs().sum()) > 0


def test_what_is_kept_is_what_would_be_computed_anew(
    victim: Victim, rows: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = victim(rows[:2], classes=4, defense=({**SIGN, "stage": "sample"},))
    description = described(task, seen, 2)
    groups = torch.tensor([[4, 9], [0, 3]])
    updates = SimulatedUpdates(description, rows[:20], rng())
    monkeypatch.setattr(inverter_training, "MEMORY", 0)
    anew = SimulatedUpdates(description, rows[:20], rng())
    assert updates.linear is not None
    assert anew.linear is None
    torch.testing.assert_close(updates(groups, rng()), anew(groups, rng()))


def test_updates_of_a_large_network_are_simulated_few_at_a_time(
    victim: Victim, rows: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = victim(rows[:1], classes=4, defense=())
    description = described(task, seen, 1)
    at_once = SimulatedUpdates(description, rows[:20], rng())
    sizes: list[int] = []
    linear = SimulatedClient.linear

    def counted(self: SimulatedClient, batch: Batch, draw: torch.Generator) -> torch.Tensor:
        sizes.append(len(batch))
        return linear(self, batch, draw)

    monkeypatch.setattr(SimulatedClient, "linear", counted)
    monkeypatch.setattr(inverter_training, "_SLICE_BYTES", 12 * description.coordinates.count)
    few = SimulatedUpdates(description, rows[:20], rng())
    assert sizes[-7:] == [3] * 6 + [2]
    assert few.finished is not None
    torch.testing.assert_close(few.finished, at_once.finished)


@pytest.mark.parametrize(("stage", "variance"), [("client", 0.04), ("sample", 0.02)])
def test_noise_is_drawn_anew_with_the_declared_variance(
    victim: Victim, rows: Batch, stage: str, variance: float
) -> None:
    noise = {"name": "gaussian_noise", "std": 0.2, "stage": stage}
    task, seen = victim(rows[:2], classes=4, defense=(noise,))
    count = sum(value.numel() for value in seen.received.values())
    description = described(task, seen, 2, torch.arange(count) // 2)
    simulated, draw = SimulatedUpdates(description, rows[:20], rng()), rng()
    group = torch.tensor([[4, 9]])
    first, second = simulated(group, draw), simulated(group, draw)
    # Two coordinates a bin, and the difference of two draws.
    assert float((first - second).square().mean()) == pytest.approx(4 * variance, rel=0.05)
    assert described(task, seen, 2, defended=False).variance == 0


SUMMED: list[list[dict[str, object]]] = [
    [],
    [SIGN],
    [{"name": "prune", "fraction": 0.9}],
    [{"name": "quantize", "kind": "int8"}],
    [{"name": "dp_client", "clip": 0.1, "noise_multiplier": 0.0}],
]


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("tables", SUMMED)
def test_what_is_simulated_is_the_mean_of_what_a_cohorts_clients_send(
    victim: Victim, rows: Batch, tables: list[dict[str, object]], protocol: str
) -> None:
    task, other = victim(rows[:1], classes=4)
    parts = [
        client(task, other.sent, rows[start : start + 2], *tables, protocol=protocol)
        for start in (0, 2, 4)
    ]
    mean = {
        name: torch.stack([part.received[name].double() for part in parts]).mean(0)
        for name in parts[0].received
    }
    known = parts[0].knowledge.model_copy(update={"num_examples": 6, "cohort": 3})
    seen = replace(parts[0], received=mean, knowledge=known)
    description = described(task, seen, 6)
    expected = description.coordinates.flatten(observed_gradient(seen)).float()
    (update,) = SimulatedUpdates(description, rows[:30], rng())(torch.arange(6)[None], rng())
    near = (update - expected).abs() < 2e-3 * float(expected.abs().max())
    assert float(near.float().mean()) > 0.99
    if not tables:
        torch.testing.assert_close(
            update, expected, rtol=0, atol=1e-3 * float(expected.abs().max())
        )


def training(
    victim: Victim, rows: Batch, *tables: dict[str, object], **facts: object
) -> tuple[Task, Observation]:
    """A FedAvg client whose steps have size 1, or a cohort of such clients."""
    task, seen = victim(rows, classes=4, step_size=1.0, defense=tables)
    return task, replace(seen, knowledge=seen.knowledge.model_copy(update=facts))


@pytest.mark.parametrize(
    ("table", "variance"),
    [
        # Of two clients' means, each of four steps on two examples: two epochs.
        ({"name": "dp_sgd", "clip": 0.5, "noise_multiplier": 0.4}, 0.2**2 / 2**2 / 4 / 2),
        ({"name": "gaussian_noise", "std": 0.2, "stage": "sample"}, 0.2**2 / 2 / 4 / 2),
        # The update is four times the mean gradient.
        ({"name": "dp_client", "clip": 0.5, "noise_multiplier": 0.4}, 0.2**2 / 4**2 / 2),
        ({"name": "gaussian_noise", "std": 0.2}, 0.2**2 / 4**2 / 2),
    ],
)
def test_noise_is_that_of_all_steps_and_clients(
    victim: Victim, rows: Batch, table: dict[str, object], variance: float
) -> None:
    facts = {"batch_size": 2, "local_steps": 4, "cohort": 2}
    task, seen = training(victim, rows[:8], table, **facts)
    simulated, draw = SimulatedUpdates(described(task, seen, 8), rows[:20], rng()), rng()
    group = torch.arange(8)[None]
    first, second = simulated(group, draw), simulated(group, draw)
    assert float((first - second).square().mean()) == pytest.approx(2 * variance, rel=0.05)


def test_an_example_of_a_small_step_counts_more(victim: Victim, rows: Batch) -> None:
    task, seen = training(victim, rows[:3], batch_size=2, local_steps=2)
    description = described(task, seen, 3, defended=False)
    simulated = SimulatedUpdates(description, rows[:20], rng())
    assert simulated.linear is not None
    network = task.model(seen.sent)
    steps = [
        description.coordinates.flatten(task.gradient(network, rows[part]))
        for part in ([4, 9], [7])
    ]
    features = simulated(torch.tensor([[4, 9, 7]]), rng())
    torch.testing.assert_close(features[0], (steps[0] + steps[1]) / 2, rtol=1e-3, atol=1e-5)


def test_examples_that_cannot_be_told_apart(victim: Victim, rows: Batch) -> None:
    uneven = {"batch_size": 2, "local_steps": 1, "cohort": 2}
    unknown = {"batch_size": None, "local_steps": 3}
    for facts in (uneven, unknown):
        task, seen = training(victim, rows[:3], SIGN, **facts)
        with pytest.raises(CannotAttack, match="how 3 examples were spread over"):
            described(task, seen, 3)
        assert described(task, seen, 3, defended=False).size == 3
        task, seen = training(victim, rows[:3], **facts)
        assert described(task, seen, 3).size == 3


def test_a_cohort_of_unknown_shares_is_noted(victim: Victim, rows: Batch) -> None:
    attack, job = replace(QUICK, epochs=1), owning(rows[100:160])
    for count, note in (
        (4, "the 2 clients of a cohort were taken to have equally many examples"),
        (2, ""),
    ):
        task, seen = victim(rows[:count], classes=4, defense=(SIGN,), cohort=2)
        prepared = attack.prepare(seen, task, job, 0)
        assert (
            attack.reconstruct([seen], task, [rng()], replace(job, prepared=prepared))[0].note
            == note
        )


def test_the_best_of_all_assignments() -> None:
    for size in (1, 2, 4, 5):
        costs = torch.rand(6, size, size, generator=rng(size))
        expected = [
            min(sum(cost[i, j] for i, j in enumerate(o)) / size for o in permutations(range(size)))
            for cost in costs
        ]
        torch.testing.assert_close(assigned(costs), torch.stack(expected))


def test_pixels() -> None:
    output = Pixels((1, 2, 2))
    truths = output.truths(Batch(torch.rand(2, 1, 2, 2, generator=rng()), torch.zeros(2)))
    costs = output.costs(truths[None], truths[None])
    assert costs.diagonal(dim1=1, dim2=2).tolist() == [[0, 0]]
    assert float(costs[0, 0, 1]) == pytest.approx(float((truths[0] - truths[1]).square().mean()))
    guesses = output.layers(3, 2)(torch.randn(5, 3, generator=rng())).detach()
    assert guesses.shape == (5, 2, 4)
    assert 0 < float(guesses.min()) < float(guesses.max()) < 1


def test_tokens_are_read_as_they_were_written() -> None:
    ids = torch.tensor([[7, 3, 9, 3], [9, 7, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    batch = Batch(ids, torch.zeros(2), mask)
    output = TokenOutput(5, words_of(batch), 8)
    assert output.words.tolist() == [3, 7, 9]
    truths = output.truths(batch)
    assert truths.tolist() == [[2, 1, 3, 1, 0], [3, 2, 0, -1, -1]]
    unknown = TokenOutput(5, torch.tensor([3, 9]), 8).truths(batch)
    assert unknown.tolist() == [[-1, 1, 2, 1, 0], [2, -1, 0, -1, -1]]
    logits = 50.0 * torch.nn.functional.one_hot(truths.clamp(min=0), 4).float()
    costs = output.costs(logits[None], truths[None])
    assert costs.diagonal(dim1=1, dim2=2).max() < 1e-6
    assert costs[0, 0, 1] > 10
    guess = output.read(logits, None)
    assert guess.mask is not None
    assert guess.mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert guess.inputs.tolist() == [[7, 3, 9, 3, 0], [9, 7, 0, 0, 0]]
    granted = output.read(logits, (1, 3))
    assert granted.mask is not None
    assert granted.mask.sum(1).tolist() == [3, 1]
    assert output.layers(6, 2)(torch.zeros(3, 6)).shape == (3, 2, 5, 4)


def test_the_network_adds_to_the_mean_image_and_to_its_start(
    victim: Victim, rows: Batch, sent: Callable[..., tuple[Task, Tensors]]
) -> None:
    task, weights = sent(victim)
    attack = LTI(width=128, epochs=8, patience=8, updates=32, bins=0.3)
    private, public = rows[280:], rows[100:280]
    seen = [client(task, weights, private[i]) for i in range(20)]
    prepared = attack.prepare(seen[0], task, owning(public), 0)
    recovered = attack.reconstruct(
        seen, task, [rng()] * 20, replace(owning(public), prepared=prepared)
    )
    guesses = torch.cat([own.guess.inputs for own in recovered])
    error = float((guesses - private.inputs).square().mean())
    mean = float((public.inputs.mean(0) - private.inputs).square().mean())
    untrained = replace(attack, epochs=1, learning_rate=1e-9)
    start = untrained.prepare(seen[0], task, owning(public), 0)
    assert error < 0.2 * min(mean, float(start["heldout"]))
    assert recovered[0].objective == pytest.approx(error, rel=0.5)
    assert recovered[0].steps > 0  # the best epoch is not the start
    assert [own.guess.labels.tolist() for own in recovered] == private.labels[:, None].tolist()


@pytest.mark.slow
def test_tokens_of_a_language_model_beyond_the_usual_ones() -> None:
    text = load_rows("sentences", "public[:208]", modality="text")
    config = TaskConfig(model="transformer3", dataset="sentences", max_length=6)
    task = make_task(config, text)
    weights = initial_weights(task, config, 0)
    rows = task.encode(text)
    frozen = {"name": "freeze_embeddings", "head": True}
    seen = [client(task, weights, rows[i], frozen) for i in range(200, 208)]
    attack, public = LTI(bins=0.005, width=64, channels=16, epochs=20, updates=16), rows[:200]
    prepared = attack.prepare(seen[0], task, owning(public), 0)
    recovered = attack.reconstruct(seen, task, [rng()] * 8, Job(prepared=prepared))
    usual = PriorOnly().reconstruct(seen, task, [rng()] * 8, owning(public))
    scores = [
        sum(
            float((guess.guess.inputs[0, 1:5] == rows.inputs[i, 1:5]).float().mean())
            for i, guess in enumerate(guesses, 200)
        )
        for guesses in (recovered, usual)
    ]
    assert scores[0] > 2 * scores[1] > 0


def test_several_images_come_back_in_any_order(victim: Victim, rows: Batch) -> None:
    task, first = victim(rows[:2], classes=4, train_mode=False)
    attack = LTI(width=128, epochs=12, updates=32, adaptive=False)
    prepared = attack.prepare(first, task, owning(rows[100:280]), 0)
    errors, means = [], []
    for start in range(280, 300, 2):
        batch = rows[start : start + 2]
        _, seen = victim(batch, classes=4)
        (recovered,) = attack.reconstruct([seen], task, [rng()], Job(prepared=prepared))
        costs = Pixels((3, 16, 16)).costs(
            recovered.guess.inputs.flatten(1)[None], batch.inputs.flatten(1)[None]
        )
        errors.append(assigned(costs))
        means.append((rows.inputs.mean(0) - batch.inputs).square().mean())
    assert torch.cat(errors).mean() < 0.6 * torch.stack(means).mean()


def inverters(run: Run, guesses: Path) -> list[dict[str, bytes]]:
    """The prepared files of each round, by name."""
    files: list[dict[str, bytes]] = []
    table = {"name": "lti", "width": 8, "epochs": 1}
    captures = run.cells[0].folder / "captures"
    for number in (1, 2):
        specs = plan(captures, guesses / str(number) / "guesses", "lti", table, 0)
        records = [r for s in specs if s.keys[0].round == number for r in run_job(s)]
        assert {record.status for record in records} == {"done"}
        folder = guesses / str(number) / "prepared"
        files.append({path.name: path.read_bytes() for path in folder.glob("*.safetensors")})
    return files


@pytest.mark.slow
def test_an_inverter_belongs_to_weights_and_not_to_victims(make_run: Make, tmp_path: Path) -> None:
    first, second = (
        make_run(IMAGES, folder=split, task={"split": split}, federation={"clients": 2})
        for split in ("train[:40]", "train[40:80]")
    )
    simulate(first)
    simulate(second)
    (one, later), (again, _) = inverters(first, tmp_path / "a"), inverters(second, tmp_path / "b")
    assert len(one) == len(later) == 1
    assert one == again  # other victims, the same name and the same bytes
    assert one.keys() != later.keys()  # other weights


def test_training_goes_on_where_it_was_cut_off(
    victim: Victim, rows: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = victim(rows[100], classes=4)
    attack, public = LTI(width=16, epochs=4, patience=4, updates=16, adaptive=False), rows[:60]
    whole = attack.prepare(seen, task, owning(public), 0)
    monkeypatch.setattr(inverter_training, "CHECKPOINTED", 0.0)
    saved: list[Tensors] = []

    def keep(tensors: Tensors) -> None:
        saved.append({name: value.clone() for name, value in tensors.items()})

    def stop(epoch: int, loss: float, text: str) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack.prepare(seen, task, owning(public, keep=keep, report=stop), 0)
    assert len(saved) == 3
    epochs: list[int] = []
    job = owning(public, resume=saved.pop, report=lambda epoch, *_: epochs.append(epoch))
    resumed = attack.prepare(seen, task, job, 0)
    assert epochs == [3, 4]
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_patience_ends_the_training(victim: Victim, rows: Batch) -> None:
    task, seen = victim(rows[100], classes=4)
    attack = replace(QUICK, adaptive=False, epochs=20, patience=2, learning_rate=1e-9)
    epochs: list[int] = []
    job = owning(rows[:60], report=lambda epoch, *_: epochs.append(epoch))
    prepared = attack.prepare(seen, task, job, 0)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job(prepared=prepared))
    assert epochs[-1] == recovered.steps + 2 < 20
    assert recovered.note == ""


def test_the_budget_ends_the_training(victim: Victim, rows: Batch) -> None:
    task, seen = victim(rows[100], classes=4)
    attack = replace(QUICK, adaptive=False, epochs=50)
    prepared = attack.prepare(seen, task, owning(rows[:60], deadline=0.0), 0)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job(prepared=prepared))
    assert recovered.note == "the clock ended the training, best in epoch 0 of 50"
    assert recovered.expired
    assert recovered.steps == 0


def refused(attack: LTI, seen: Observation, task: Task, job: Job, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        attack.prepare(seen, task, job, 0)


def test_what_cannot_be_attacked(victim: Victim, rows: Batch) -> None:
    task, seen = victim(rows[100], classes=4)
    oblivious, job = replace(QUICK, adaptive=False), owning(rows[:60])
    refused(QUICK, seen, task, job, "an adaptive attack needs the client's defense")
    refused(oblivious, seen, task, Job(), "it needs auxiliary rows")
    few = "2 auxiliary rows are too few for batches of 1 to learn from and to be held out."
    refused(replace(oblivious, size=2), seen, task, job, few)
    unigram = "auxiliary: 'unigram' rows are no images. Choose 'dct', or 'rows'."
    refused(replace(oblivious, auxiliary="unigram"), seen, task, job, unigram)
    budget = ({"name": "dp_sgd", "clip": 1.0, "epsilon": 3.0},)
    _, private = victim(rows[100], classes=4, defense=budget)
    refused(QUICK, private, task, job, "cannot be simulated (dp_sgd.epsilon: 3.0 is a budget")
    _, weights = victim(rows[100], classes=4, step_size=0.1, local_steps=None)
    refused(oblivious, weights, task, job, "the scale of a FedAvg update needs local_steps")
    prepared = oblivious.prepare(seen, task, job, 0)
    _, pair = victim(rows[100:102], classes=4)
    with pytest.raises(CannotAttack, match="an update of 8 tensors and 2 examples is not what the"):
        oblivious.reconstruct([pair], task, [rng()], replace(job, prepared=prepared))
