"""The null baseline knows the auxiliary rows and nothing of the update."""

from __future__ import annotations

import torch

from attacks.base import Job
from attacks.prior_only import PriorOnly
from fedsim.capture import CaptureKey, Observation
from fedsim.knowledge import Knowledge
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch

IMAGES = ImageClassification(
    TaskSpec(
        kind="image-classification",
        model="lenet",
        architecture={},
        num_classes=3,
        input_shape=(1, 2, 2),
    )
)


class Words(ImageClassification):
    """A task that calls itself text; the baseline asks for no more."""

    modality = "text"


TEXT = Words(IMAGES.spec.model_copy(update={"kind": "text-classification", "input_shape": (6,)}))


def guess(task: Task, auxiliary: Batch | None, **facts: object) -> Batch:
    knowledge = Knowledge.model_validate({"auxiliary": auxiliary is not None, **facts})
    # An update that holds nothing: reading it would raise.
    seen = Observation(CaptureKey(round=1, client=0), {}, {}, "gradient", knowledge)
    job = Job() if auxiliary is None else Job(auxiliary=lambda: auxiliary)
    (found,) = PriorOnly().reconstruct([seen], task, [torch.Generator()], job)
    assert found.objective is None
    return found.guess


def test_grey_image() -> None:
    made = guess(IMAGES, None)
    assert torch.equal(made.inputs, torch.full((1, 1, 2, 2), 0.5))
    assert made.labels.tolist() == [-1]


def test_mean_image_and_usual_class() -> None:
    rows = Batch(torch.rand(5, 1, 2, 2), torch.tensor([2, 0, 2, 1, 2]))
    made = guess(IMAGES, rows, num_examples=2)
    assert torch.equal(made.inputs[0], rows.inputs.mean(0))
    assert made.inputs.shape == (2, 1, 2, 2)
    assert made.labels.tolist() == [2, 2]
    assert guess(IMAGES, rows, num_examples=2, labels=(0, 1)).labels.tolist() == [0, 1]


def test_usual_token_of_each_position() -> None:
    inputs = torch.tensor([[9, 4, 5, 8, 0], [9, 4, 8, 0, 0], [9, 6, 5, 7, 8]])
    mask = (inputs > 0).long()
    rows = Batch(inputs, torch.tensor([1, 1, 0]), mask)
    made = guess(TEXT, rows, num_examples=2)
    assert made.inputs.tolist() == [[9, 4, 5, 7]] * 2
    assert made.mask is not None
    assert made.mask.tolist() == [[1, 1, 1, 1]] * 2
    assert made.labels.tolist() == [1, 1]


def test_granted_lengths_are_kept_as_far_as_there_are_words() -> None:
    inputs = torch.tensor([[9, 4, 5, 8, 0], [9, 4, 8, 0, 0], [9, 6, 5, 7, 8]])
    rows = Batch(inputs, torch.tensor([1, 1, 0]), (inputs > 0).long())
    made = guess(TEXT, rows, num_examples=2, lengths=(2, 7))
    assert made.inputs.tolist() == [[9, 4, 0, 0, 0], [9, 4, 5, 7, 8]]
    assert made.mask is not None
    assert made.mask.sum(1).tolist() == [2, 5]


def test_empty_sentence() -> None:
    made = guess(TEXT, None)
    assert made.inputs.shape == (1, 0)
    assert made.mask is not None
    assert made.mask.shape == (1, 0)
