"""The null baseline knows the auxiliary rows and nothing of the update."""

import pytest
import torch

from attacks.base import Job
from attacks.prior_only import PriorOnly
from fedsim.columns import SURVEY, decoded
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.metrics.sentences import overlaps
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import make_task
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.images import ImageClassification
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows

IMAGES = ImageClassification(
    TaskSpec(
        kind="image-classification",
        model="lenet",
        architecture={},
        num_classes=3,
        input_shape=(1, 2, 2),
    )
)


def sentences(model: str) -> tuple[TextTask, Rows]:
    """A text task with the built-in sentences."""
    rows = load_rows("sentences", "train", modality="text")
    task = make_task(TaskConfig(model=model, dataset="sentences", max_length=32), rows)
    assert isinstance(task, TextTask)
    return task, rows


def texts(task: TextTask, made: Batch) -> tuple[str, ...]:
    return task.examples(made).words


def guess(task: Task, auxiliary: Batch | None, **facts: object) -> Batch:
    knowledge = Knowledge.model_validate({"auxiliary": auxiliary is not None, **facts})
    # An update that holds nothing: reading it would raise.
    seen = Observation(CaptureKey(round=1, client=0), {}, {}, "gradient", knowledge)
    job = Job() if auxiliary is None else Job(auxiliary=lambda: auxiliary)
    (recovered,) = PriorOnly().reconstruct([seen], task, [torch.Generator()], job)
    assert recovered.objective is None
    return recovered.guess


def test_grey_image() -> None:
    guessed = guess(IMAGES, None)
    assert torch.equal(guessed.inputs, torch.full((1, 1, 2, 2), 0.5))
    assert guessed.labels.tolist() == [-1]


def test_usual_values_of_a_table() -> None:
    rows = load_rows("survey", "public", modality="image")
    task = make_task(TaskConfig(model="mlp", dataset="survey"), rows)
    public = task.encode(rows)
    usual = decoded(SURVEY, public.inputs.flatten(1)).mode(0).values
    assert torch.equal(decoded(SURVEY, guess(task, public).inputs.flatten(1))[0], usual)


def test_mean_image_and_usual_class() -> None:
    rows = Batch(torch.rand(5, 1, 2, 2), torch.tensor([2, 0, 2, 1, 2]))
    guessed = guess(IMAGES, rows, num_examples=2)
    assert torch.equal(guessed.inputs[0], rows.inputs.mean(0))
    assert guessed.inputs.shape == (2, 1, 2, 2)
    assert guessed.labels.tolist() == [2, 2]
    assert guess(IMAGES, rows, num_examples=2, labels=(0, 1)).labels.tolist() == [0, 1]


def test_the_mean_image_of_a_granted_class() -> None:
    rows = Batch(torch.rand(5, 1, 2, 2), torch.tensor([2, 0, 2, 0, 0]))
    guessed = guess(IMAGES, rows, num_examples=3, labels=(0, 1, 2))
    for image, label in zip(guessed.inputs, (0, 1, 2), strict=True):
        known = rows.inputs[rows.labels == label]  # none is of class 1
        assert torch.equal(image, (known if len(known) else rows.inputs).mean(0))


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
def test_a_blind_text_overlaps_more_than_any_auxiliary_text(model: str) -> None:
    task, rows = sentences(model)
    public, private = rows.take(range(60)), rows.take(range(60, 100))
    (words,) = texts(task, guess(task, task.encode(public)))
    known, hidden = public.inputs, private.inputs
    assert isinstance(known, tuple)
    assert isinstance(hidden, tuple)
    overlap = overlaps((words, *known), hidden).mean(1)
    assert overlap[0] > overlap[1:].max()
    assert words == texts(task, guess(task, task.encode(public)))[0]


def test_granted_lengths_and_classes_choose_the_texts() -> None:
    task, _ = sentences("tiny-bert")
    lines = ("no.", "no no.", "boats leave at dawn.", "we saw boats leave.", "boats at dawn.")
    rows = Rows(lines, torch.tensor([0, 0, 1, 1, 1]), tuple(range(5)))
    auxiliary = task.encode(rows)
    assert auxiliary.mask is not None
    made = guess(task, auxiliary, num_examples=2, labels=(0, 1))
    first, second = texts(task, made)
    assert "no" in first
    assert "boats" in second
    lengths = (3, 7)
    limited = guess(task, auxiliary, num_examples=2, lengths=lengths).mask
    assert limited is not None
    assert all(made <= most for made, most in zip(limited.sum(1), lengths, strict=True))


def test_a_single_auxiliary_text_is_the_guess() -> None:
    task, rows = sentences("tiny-bert")
    alone = task.encode(rows.take([3]))
    assert torch.equal(guess(task, alone).inputs, alone.inputs)


def test_empty_sentence() -> None:
    guessed = guess(sentences("tiny-bert")[0], None)
    assert guessed.inputs.shape == (1, 0)
    assert guessed.mask is not None
    assert guessed.mask.shape == (1, 0)
