"""Clipping hides the length of an update: who ignores it may not care, who needs it finds it."""

import pytest
import torch

from attacks.base import Job
from attacks.images.image_losses import matching_loss
from attacks.images.inverting import Inverting
from attacks.observed.replay import replay
from attacks.solved.embedding_rows import EmbeddingRows
from attacks.span.span import Span
from fedsim.defenses.clip import Clip
from fedsim.magnitudes import squared_norm
from fedsim.store.capture import Observation
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.types import Tensors
from tests.apps.cases import IMAGES, TEXT, Make, merge, simulate

NORM = 1e-3


def test_a_long_update_is_scaled_and_a_short_one_is_not() -> None:
    update: Tensors = {
        "a": torch.tensor([3.0, 0.0]),
        "n": torch.tensor(9),
        "b": torch.tensor([4.0]),
    }
    cut = Clip(norm=2.5).on_update(update, torch.Generator())
    assert cut["a"].tolist() == [1.5, 0.0]
    assert cut["b"].tolist() == [2.0]
    assert cut["n"].item() == 9
    tensors = Clip(norm=5.0).on_update(update, torch.Generator())
    assert all(torch.equal(tensors[name], update[name]) for name in update)
    soft = Clip(norm=2.5).surrogate(update)
    assert all(torch.equal(soft[name], cut[name]) for name in update)


def pair(make_run: Make, base: dict[str, object]) -> tuple[Task, Observation, Observation]:
    """The same client's update, clipped and not."""
    changes = {
        "federation": {"rounds": 1, "clients": 1},
        "defenses": [{"name": "none"}, {"name": "clip", "norm": NORM}],
    }
    run = make_run(base, **changes)
    simulate(run)
    plain, clipped = (cell.captures.load(cell.captures.keys()[0]) for cell in run.cells)
    assert float(squared_norm(clipped.received).sqrt()) == pytest.approx(NORM, rel=1e-5)
    assert float(squared_norm(plain.received).sqrt()) > 10 * NORM
    return load_task(run.cells[0].captures.root), plain, clipped


@pytest.mark.slow
def test_attacks_on_text_that_know_no_scale_do_not_care(make_run: Make) -> None:
    task, plain, clipped = pair(make_run, TEXT)
    for attack in (Span(), EmbeddingRows()):
        first, second = (
            attack.reconstruct([seen], task, [torch.Generator().manual_seed(0)], Job())[0]
            for seen in (plain, clipped)
        )
        assert torch.equal(first.guess.inputs, second.guess.inputs)
        assert first.confidence == second.confidence


def test_the_cosine_of_images_does_not_care(make_run: Make) -> None:
    base = merge(IMAGES, {"server_knows": {"auxiliary": False}})
    task, plain, clipped = pair(make_run, base)
    objectives = []
    for seen, adaptive in ((plain, False), (clipped, False), (clipped, True)):
        loss = matching_loss(replay(seen, task, torch.device("cpu")), seen, adaptive=adaptive)
        assert loss.form == "cosine"
        source = [torch.Generator().manual_seed(0)]
        recovered = Inverting(steps=2, adaptive=adaptive).reconstruct([seen], task, source, Job())
        objectives.append([objective for _, _, objective in recovered[0].trace])
    for other in objectives[1:]:
        assert other == pytest.approx(objectives[0], rel=1e-3)


def test_the_labels_of_a_clipped_batch_are_found_by_an_adaptive_attack(make_run: Make) -> None:
    base = merge(IMAGES, {"federation": {"client_rows": 8, "batch_size": 8}})
    base = merge(base, {"server_knows": {"auxiliary": False}})
    task, plain, clipped = pair(make_run, base)
    assert plain.knowledge.labels is None
    labels = []
    for seen, adaptive in ((plain, False), (clipped, True), (clipped, False)):
        source = [torch.Generator().manual_seed(0)]
        (recovered,) = Inverting(steps=1, adaptive=adaptive).reconstruct(
            [seen], task, source, Job()
        )
        labels.append(recovered.guess.labels.tolist())
    assert len(set(labels[0])) > 2
    assert labels[0] == labels[1] != labels[2]
