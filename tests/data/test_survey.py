"""The built-in table: values come back from inputs, and metrics judge each column by its grid."""

import pytest
import torch
from torch import Tensor

from fedsim.columns import SURVEY, decoded, encoded
from fedsim.config.cell import TaskConfig
from fedsim.data.builtin import Survey
from fedsim.data.rows import load_rows
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.match import nothing
from fedsim.tasks import make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch


@pytest.fixture(scope="module")
def task() -> Task:
    rows = load_rows("survey", "train", modality="image")
    return make_task(TaskConfig(model="mlp", dataset="survey"), rows)


def _inputs(split: str) -> Tensor:
    inputs = load_rows("survey", split, modality="image").inputs
    assert isinstance(inputs, Tensor)
    return inputs


def test_the_table_is_whole_and_its_values_lie_on_their_grids() -> None:
    inputs = torch.cat([_inputs(split) for split in Survey.sizes])
    assert inputs.shape == (944, 33, 1, 1)
    assert 0 <= inputs.min() < inputs.max() <= 1
    values = decoded(SURVEY, inputs.flatten(1))
    assert values.max(0).values.tolist() == [7300, 7, 7, 7, 7, 6, 91, 7, 24]
    torch.testing.assert_close(encoded(SURVEY, values), inputs.flatten(1), rtol=0, atol=0)
    assert len({tuple(row) for row in values.tolist()}) == 943


def test_a_value_is_right_within_half_a_step_of_its_grid(task: Task) -> None:
    rows = task.encode(load_rows("survey", "train[:2]", modality="image"))
    near, far = rows.inputs.clone(), rows.inputs.clone()
    near[0, 0] += 0.4 / 7300
    near[:, 30] += 0.4 / 80
    far[0, 0] += 0.6 / 7300
    far[1, 23:30] = 1 / 7  # no party is likelier than another
    truth = task.examples(rows)
    scores = {
        name: METRICS[name]().score(task.examples(Batch(far, rows.labels)), truth).tolist()
        for name in ("exact_row", "exact_columns", "exact_population", "exact_party", "exact_age")
    }
    assert METRICS["exact_row"]().score(Examples(Batch(near, rows.labels)), truth).tolist() == [
        1,
        1,
    ]
    assert scores["exact_row"] == [0, 0]
    assert scores["exact_columns"] == pytest.approx([8 / 9, 8 / 9])
    assert scores["exact_population"] == [0, 1]
    assert scores["exact_party"] == [1, 0]
    assert scores["exact_age"] == [1, 1]
    assert METRICS["exact_party"]().score(nothing(truth, "image"), truth).tolist() == [0, 0]


def test_metrics_that_do_not_fit_are_named_with_the_reason(task: Task) -> None:
    shapes = load_rows("shapes", "train[:2]", modality="image")
    pictures = make_task(TaskConfig(model="mlp", dataset="shapes"), shapes)
    assert task.unfit(METRICS["exact_age"]()) == ""
    assert task.unfit(METRICS["ssim"]()) == "needs images of 6 pixels a side, and the task's have 1"
    assert pictures.unfit(METRICS["exact_age"]()) == "measures tables, and the task has images"
    assert pictures.unfit(METRICS["ssim"]()) == ""
