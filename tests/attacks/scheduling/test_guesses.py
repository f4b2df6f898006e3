"""What an attack returns in place of a guess fails its own job, and reaches no score."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch.nn import functional as F

from attacks.base import Reconstruction
from attacks.scheduling.guesses import Malformed, as_guess
from fedsim.config.cell import TaskConfig
from fedsim.tasks import make_task
from fedsim.tasks.base import Task
from fedsim.tasks.given import task_of
from fedsim.types import Batch, Rows

WRONG = {
    "no-guess": "a NoneType in place of a guess",
    "a-tensor": "a Tensor in place of a guess",
    "whole-numbers": r"inputs of torch\.int64, which are no fractions",
    "complex": r"inputs of torch\.complex64, which are no fractions",
    "meta": r"inputs without plain values \(torch\.strided on meta\)",
    "sparse": r"inputs without plain values \(torch\.sparse_coo on cpu\)",
    "an-array": "inputs that are a ndarray",
    "other-shape": r"images of the shape \(1, 4, 4\), and the task's have \(3, 32, 32\)",
    "no-class": "a class that is none of 10",
    "float-class": r"soft labels of the shape \(1,\), not \(batch, 10\)",
    "fewer-classes": "labels of another number",
    "a-text": r"inputs of torch\.int64, which are no fractions",
    "confidence": "a confidence of another length than 1",
}
"""Name in ``GUESSES`` -> what is said of it; the others can be compared, or end elsewhere."""
ELSEWHERE = {"no-list", "generator", "too-many", "not-finite", "float64-guess", "no-examples"} | {
    "many-examples",
    "beyond-range",
    "gradient",
    "objective",
    "steps",
    "trace",
    "scores",
}


@pytest.fixture(scope="module")
def task() -> Task:
    """Images of ten classes."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    return task_of(
        net, loss=lambda m, b: F.cross_entropy(m(b.inputs), b.labels), image_shape=(3, 32, 32)
    )


def test_every_guess_is_tried(fakes: None) -> None:
    assert WRONG.keys() | ELSEWHERE == import_module("fake_hostile").GUESSES.keys()


@pytest.mark.parametrize("act", WRONG)
def test_what_is_no_guess_is_named(act: str, task: Task, fakes: None) -> None:
    (returned,) = import_module("fake_hostile").GUESSES[act]()
    with pytest.raises(Malformed, match=f"^the attack returned {WRONG[act]}$"):
        as_guess(returned, task, "rows")


@pytest.mark.parametrize(("token", "words"), [(-1, 2000), (2000, 2000), (1 << 40, None)])
def test_a_token_that_no_tokenizer_knows(token: int, words: int | None) -> None:
    rows = Rows(("Good.",), torch.zeros(1, dtype=torch.int64), (0,))
    task = make_task(TaskConfig(model="tiny-gpt2", dataset="sentences"), rows)
    if words is None:
        task.spec.architecture.pop("vocab_size")
    guess = Batch(torch.tensor([[1, token]]), torch.tensor([0]), torch.ones(1, 2))
    with pytest.raises(Malformed, match=f"a token id that is none of {words or 1 << 31}"):
        as_guess(Reconstruction(guess), task, "rows")


@pytest.mark.parametrize(
    "labels", [torch.tensor([-1]), torch.tensor([9]), torch.full((1, 10), 0.1)]
)
def test_classes_soft_classes_and_none_are_labels(labels: torch.Tensor, task: Task) -> None:
    guess = Reconstruction(Batch(torch.zeros(1, 3, 32, 32), labels), confidence=("guess",))
    assert as_guess(guess, task, "rows") is guess


@pytest.mark.parametrize("scores", [None, torch.zeros(2, 2)])
def test_what_infers_no_rows_returns_scores(scores: torch.Tensor | None, task: Task) -> None:
    empty = Batch(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(Malformed, match="the attack returned scores"):
        as_guess(Reconstruction(empty, scores=scores), task, "membership")
    given = Reconstruction(empty, scores=torch.zeros(3))
    assert as_guess(given, task, "membership") is given


def test_types_of_tokens_are_one_a_token() -> None:
    rows = Rows(("Good.",), torch.zeros(1, dtype=torch.int64), (0,))
    task = make_task(TaskConfig(model="tiny-bert", dataset="sentences"), rows)
    ids = torch.tensor([[2, 5, 3]])
    guess = Batch(ids, torch.tensor([-1]), torch.ones_like(ids), torch.zeros_like(ids))
    assert as_guess(Reconstruction(guess), task, "rows").guess is guess
    for types in (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 3)):
        with pytest.raises(Malformed, match="types of tokens of torch"):
            as_guess(Reconstruction(replace(guess, types=types)), task, "rows")
