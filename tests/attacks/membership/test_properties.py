"""Classes and words of a client, inferred from its updates of several rounds."""

from collections.abc import Sequence

import pytest
import torch

from attacks.base import Job
from attacks.membership.properties import Properties
from experiments.stages.properties import classes_told, words_told
from fedsim.capture import CaptureKey, Observation
from fedsim.cell import TaskConfig
from fedsim.data.sentences import Sentences
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Rows, Tensors

RNG = torch.Generator().manual_seed(0)


def told(task: Task, sent: Tensors, batches: Sequence[Rows], of: str) -> list[torch.Tensor]:
    """Of a client that uses one batch a round."""
    seen = [
        Observation(
            CaptureKey(round=number, client=0),
            sent,
            task.gradient(task.model(sent), task.encode(rows)),
            "gradient",
            Knowledge(num_examples=len(rows)),
        )
        for number, rows in enumerate(batches, 1)
    ]
    attack = Properties(of=of)  # type: ignore[arg-type]
    recovered = attack.reconstruct(seen, task, [RNG] * len(seen), Job())
    return [one.scores for one in recovered if one.scores is not None]


def test_class_shares_add_up_over_the_rounds() -> None:
    config = TaskConfig(model="lenet", dataset="shapes")
    pixels = (64 * torch.arange(8)).reshape(8, 1, 1, 1).expand(8, 1, 8, 8).byte()
    rows = Rows(pixels, torch.tensor([0, 0, 0, 0, 1, 1, 2, 0]), (*range(8),))
    task = make_task(config, rows)
    sent = initial_weights(task, config, 0)
    first, second = told(task, sent, [rows.take(range(4)), rows.take(range(4, 8))], "classes")
    assert first.tolist() == [1, 0, 0]
    assert second.tolist() == [0.625, 0.25, 0.125]
    with pytest.raises(CannotAttack, match=r'images have no words. Set of = "classes"'):
        told(task, sent, [rows], "words")


def test_words_of_both_rounds_are_held() -> None:
    config = TaskConfig(model="tiny-gpt2", dataset="sentences", max_length=24)
    rows = Rows(*Sentences().read("train", range(6)), (*range(6),))
    task = make_task(config, rows)
    sent = initial_weights(task, config, 0)
    first, second = told(task, sent, [rows.take([0, 1]), rows.take([2, 3])], "words")
    assert bool((second >= first).all())
    batch = task.encode(rows.take(range(4)))
    assert batch.mask is not None
    held = batch.inputs[batch.mask == 1].unique()
    before, after = words_told(first, held), words_told(second, held)
    assert before["word_recall"] is not None
    assert after["word_recall"] is not None
    assert after["word_recall"] > before["word_recall"] > 0.2
    assert after["word_precision"] is not None
    assert after["word_precision"] > 0.8
    with pytest.raises(CannotAttack, match="the task has no classes"):
        told(task, sent, [rows], "classes")


def test_scores_of_told_properties() -> None:
    assert classes_told(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])) == {
        "class_distance": 0.5
    }
    assert classes_told(None, torch.tensor([1.0, 0.0])) == {"class_distance": 0.5}
    probabilities = torch.tensor([0.9, 0.9, 0.9, 0.3, 0.0], dtype=torch.float64)
    assert words_told(probabilities, torch.tensor([0, 1, 4])) == {
        "word_precision": pytest.approx(2 / 3),
        "word_recall": pytest.approx(2 / 3),
        "word_calibration": pytest.approx((0.7 + 0.3) / 4),
    }
