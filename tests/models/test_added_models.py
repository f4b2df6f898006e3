"""Image models that another package adds by entry point, as functions of ``num_classes``."""

from dataclasses import replace

import pytest
import torch

from experiments.pipeline import execute
from experiments.preview.manuals import CATALOGS
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.tasks import initial_weights, make_task
from tests.apps.cases import IMAGES, Make


def config(model: str, **options: str) -> TaskConfig:
    return TaskConfig.model_validate({"model": model, "dataset": "shapes", **options})


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_an_added_model_is_trained_captured_and_attacked(make_run: Make) -> None:
    federation = {"rounds": 1, "clients": 2, "batch_size": 1}
    run = make_run(IMAGES, task={"model": "fake_small"}, federation=federation)
    outcome = execute(run, ("simulate", "attack", "score", "report"), quiet=True)
    assert outcome.statuses == {"done": 4}
    (cell,) = run.cells
    seen = cell.captures.load(cell.captures.keys()[0])
    assert seen.received["5.weight"].shape == (10, 128)


@pytest.mark.usefixtures("fakes")
def test_the_seed_draws_the_weights_of_an_added_model() -> None:
    rows = load_rows("shapes", "train[:2]", modality="image")
    task = make_task(config("fake_small"), rows)
    before = torch.get_rng_state()
    first, again, other = (
        initial_weights(task, config("fake_small"), seed)["0.weight"] for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.usefixtures("fakes")
def test_an_added_model_that_does_not_fit_is_refused() -> None:
    rows = load_rows("shapes", "train[:2]", modality="image")
    with pytest.raises(
        ConfigError, match=r"^task.model: 'fake_deaf' turns an image into \(1, 1000\)"
    ):
        make_task(config("fake_deaf"), rows)
    assert isinstance(rows.inputs, torch.Tensor)
    grey = replace(rows, inputs=rows.inputs[:, :1])
    with pytest.raises(ConfigError, match=r"^task.model: 'fake_small' does not take images of \(1"):
        make_task(config("fake_small"), grey)
    with pytest.raises(ConfigError, match=r"no pretrained weights for the added 'fake_small'"):
        initial_weights(
            make_task(config("fake_small"), rows), config("fake_small", weights="pretrained"), 0
        )
    with pytest.raises(ConfigError, match=r"'fake_small', a foreign image model"):
        make_task(config("fake_small", kind="language-modelling"), rows)


@pytest.mark.usefixtures("fakes")
def test_added_models_are_listed() -> None:
    assert "fake_small" in CATALOGS["models"]()
