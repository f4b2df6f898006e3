"""DLG recovers pixels and labels; its guess, budget and restarts behave as said."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.images.dlg import DLG, IDLG
from attacks.observed.distance import squared_error
from attacks.observed.replay import observed_gradient, replay
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.magnitudes import squared_norm
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.images.cases import error, rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


@pytest.mark.some(2)
@pytest.mark.parametrize("step_size", [None, 0.5])
def test_recovers_image_and_label(
    victim: Victim, pictures: Pictures, step_size: float | None
) -> None:
    batch = pictures(1, 6, channels=1)
    task, seen = victim(batch, step_size=step_size)
    (recovered,) = DLG().reconstruct([seen], task, [rng()], Job())
    assert recovered.guess.labels.tolist() == [6]
    assert (recovered.guess.inputs - batch.inputs).square().mean() < 1e-4
    assert recovered.guess.inputs.dtype == torch.float32
    assert not recovered.expired
    assert recovered.steps == len(recovered.trace) < 300


def defended(seen: Observation, *defense: dict[str, object]) -> Observation:
    """The same client, whose update passes through these defenses."""
    update = build_chain(defense, "defense").on_update(seen.update(), rng())
    if seen.kind == "weights":
        update = {name: seen.sent[name] - value for name, value in update.items()}
    known = seen.knowledge.model_copy(update={"defense": defense})
    return replace(seen, received={k: v.float() for k, v in update.items()}, knowledge=known)


def attacked(task: Task, seen: Observation, steps: int) -> tuple[Reconstruction, Reconstruction]:
    """Guesses of the oblivious attack, after 10 steps, and of the adaptive one."""
    oblivious, adaptive = (
        DLG(adaptive=own, steps=steps if own else 10).reconstruct([seen], task, [rng()], Job())[0]
        for own in (False, True)
    )
    return oblivious, adaptive


CLIP = {"name": "clip", "norm": 0.5}
STILL = {"name": "gaussian_noise", "std": 0.0, "stage": "sample"}


@pytest.mark.slow
@pytest.mark.parametrize(("step_size", "first"), [(None, (STILL,)), (0.5, ())])
def test_only_an_adaptive_attack_recovers_from_a_clipped_update(
    victim: Victim,
    pictures: Pictures,
    step_size: float | None,
    first: tuple[dict[str, object], ...],
) -> None:
    batch = pictures(1, 6, channels=1)
    task, seen = victim(batch, step_size=step_size)
    clipped = defended(seen, *first, CLIP)
    oblivious, adaptive = attacked(task, clipped, 60)
    assert error(adaptive, batch) < 1e-3
    assert adaptive.objective is not None
    assert adaptive.objective < 1e-4 * float(squared_norm(observed_gradient(clipped)))
    assert error(oblivious, batch) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "step_size"), [("largest", None), ("random", 0.5)])
def test_only_an_adaptive_attack_recovers_from_a_pruned_update(
    victim: Victim, pictures: Pictures, keep: str, step_size: float | None
) -> None:
    batch, prune = pictures(1, 6, channels=1), {"name": "prune", "fraction": 0.9, "keep": keep}
    task, seen = victim(batch, step_size=step_size)
    oblivious, adaptive = attacked(task, defended(seen, prune, CLIP), 60)
    assert error(adaptive, batch) < 1e-3
    assert error(oblivious, batch) > 0.02


@pytest.mark.slow
def test_where_noise_hides_what_was_pruned_the_guess_is_pruned_by_its_own_size(
    victim: Victim, pictures: Pictures
) -> None:
    batch, prune = pictures(1, 6, channels=1), {"name": "prune", "fraction": 0.7}
    task, seen = victim(batch)
    noisy = defended(seen, prune, {"name": "gaussian_noise", "std": 1e-6})
    assert all((value != 0).all() for value in noisy.received.values())
    oblivious, adaptive = attacked(task, noisy, 60)
    assert error(adaptive, batch) < 0.1 * error(oblivious, batch)


@pytest.mark.slow
def test_examples_pruned_alone_and_clipped_together(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(2, 6, 3, channels=1)
    task, seen = victim(batch, step_size=0.5, labels=(6, 3))
    network = task.model(seen.sent)
    prune = {"name": "prune", "fraction": 0.5, "stage": "sample"}
    chain = build_chain([prune, CLIP], "defense")
    single = [chain.on_gradient(task.gradient(network, batch[i]), rng()) for i in range(2)]
    update = {name: 0.5 * (single[0][name] + single[1][name]) / 2 for name in single[0]}
    update = chain.on_update(update, rng())
    known = seen.knowledge.model_copy(update={"defense": (prune, CLIP)})
    received = {name: seen.sent[name] - value for name, value in update.items()}
    seen = replace(seen, received=received, knowledge=known)
    oblivious, adaptive = attacked(task, seen, 30)
    assert error(adaptive, batch) < 0.5 * error(oblivious, batch)


@pytest.mark.slow
def test_recovers_a_colour_image(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3, size=32)
    task, seen = victim(batch)
    (recovered,) = DLG().reconstruct([seen], task, [rng()], Job())
    assert recovered.guess.labels.tolist() == [3]
    assert (recovered.guess.inputs - batch.inputs).square().mean() < 1e-3


def test_objective_is_that_of_the_guess(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3, channels=1))
    (recovered,) = IDLG(steps=40).reconstruct([seen], task, [rng()], Job())
    model = replay(seen, task, torch.device("cpu"), torch.float64)
    guess = Batch(recovered.guess.inputs.double(), recovered.guess.labels)
    again = float(squared_error(model.pure_gradient(guess), observed_gradient(seen)))
    norm = float(sum(value.square().sum() for value in observed_gradient(seen).values()))
    # Clamping and float32 move a converged guess by less than the tolerance of the search.
    assert recovered.objective is not None
    assert recovered.objective == pytest.approx(again, abs=1e-8 * norm)
    assert recovered.objective < 1e-8 * norm
    objectives = [objective for _, _, objective in recovered.trace]
    assert objectives == sorted(objectives, reverse=True)
    assert recovered.objective == objectives[-1]


@pytest.mark.slow
def test_restarts_replace_a_start_that_runs_away(
    victim: Victim, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attacks.images.dlg._PATIENCE", 5)
    task, seen = victim(pictures(1, 6, size=32))
    once, more = (
        DLG(restarts=restarts, steps=25).reconstruct([seen], task, [rng(3)], Job())[0]
        for restarts in (1, 8)
    )
    assert once.objective is not None
    assert more.objective is not None
    assert more.objective < 0.01 * once.objective
    first, second = ([objective for _, _, objective in found.trace] for found in (once, more))
    assert first[:5] == second[:5]
    assert len(first) == len(second) == 25


@pytest.mark.slow
def test_grey_start_inverts_two_images(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(2, 6, 3, size=32)
    task, seen = victim(batch)
    errors = {}
    for start in ("normal", "grey"):
        attack = DLG(start=start, restarts=1, steps=10)
        (recovered,) = attack.reconstruct([seen], task, [rng()], Job())
        errors[start] = (recovered.guess.inputs - batch.inputs).square().mean()
    assert errors["grey"] < 0.03
    assert errors["normal"] > 0.1


def test_deadline_returns_the_best_so_far(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6))
    (recovered,) = DLG().reconstruct([seen], task, [rng()], Job(deadline=time.monotonic()))
    assert (recovered.expired, recovered.steps) == (True, 1)
    assert recovered.guess.inputs.isfinite().all()


def test_non_finite_update_still_ends(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6, channels=1))
    broken = {name: value * float("nan") for name, value in seen.received.items()}
    attack = DLG(steps=3)
    (recovered,) = attack.reconstruct([replace(seen, received=broken)], task, [rng()], Job())
    assert recovered.objective == float("inf")
    assert recovered.guess.inputs.isfinite().all()


def test_batch_and_its_labels(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 6, 6, channels=1))
    (joint,) = DLG(steps=1).reconstruct([seen], task, [rng()], Job())
    (inferred,) = IDLG(steps=1).reconstruct([seen], task, [rng()], Job())
    assert joint.guess.inputs.shape == (2, 1, 16, 16)
    assert joint.guess.labels.shape == (2,)
    assert inferred.guess.labels.tolist() == [6, 6]
    assert 0 <= joint.guess.inputs.min() <= joint.guess.inputs.max() <= 1


@pytest.mark.slow
def test_granted_labels_are_used_unless_joint(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6, channels=1), labels=(4,))
    guesses = {
        option: DLG(steps=8, labels=option).reconstruct([seen], task, [rng()], Job())[0]
        for option in ("auto", "joint")
    }
    assert {option: g.guess.labels.item() for option, g in guesses.items()} == {
        "auto": 4,
        "joint": 6,
    }


def test_fedavg_needs_the_step_size(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6), step_size=0.1, learning_rate=None)
    message = "the scale of a FedAvg update needs learning_rate, which the server does not know"
    with pytest.raises(CannotAttack, match=re.escape(message)):
        DLG().reconstruct([seen], task, [rng()], Job())
