"""A defense that another package adds goes through all stages, oblivious and adaptive."""

import csv

import pytest
import torch

from attacks.images.image_losses import matching_loss
from attacks.observed.replay import replay
from experiments.pipeline import execute
from fedsim.errors import ConfigError
from fedsim.tasks import load_task
from tests.apps.cases import IMAGES, Make

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_a_defense_added_by_entry_point_runs_to_the_summary(make_run: Make) -> None:
    run = make_run(
        IMAGES,
        task={"model": "mlp", "split": "train[:4]"},
        auxiliary=None,
        federation={"clients": 2, "rounds": 1, "batch_size": 1},
        server_knows={"labels": True},
        metrics=["psnr"],
        defenses=[{"name": "none"}, {"name": "fake_rectify", "floor": 1e-6}],
        attacks=[{"name": "inverting", "steps": 3, "variants": [{"adaptive": True}]}],
    )
    outcome = execute(run, ("simulate", "attack", "score", "report"), quiet=True)
    assert not outcome.failed
    # Two defenses, clients and variants each, and as many controls: the clients' labels differ.
    assert outcome.statuses == {"done": 16}

    path = run.root / "report" / "tables" / "adaptive.csv"
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["defense"] for line in lines] == ["none", "fake rectify (floor=1e-6)"]
    for line in lines:
        assert line["attack"] == "Inverting Gradients (adaptive)"
        assert min(float(line["oblivious"]), float(line["adaptive"])) > 0
    assert "fake rectify" in (run.root / "report" / "index.html").read_text()

    # Through the surrogate the truth fits what was received, and without it does not.
    cell = next(cell for cell in run.cells if "fake_rectify" in cell.name)
    key = cell.captures.keys()[0]
    seen, truth, task = cell.captures.load(key), cell.truth.load(key), load_task(cell.captures.root)
    oblivious, aware = (
        float(loss(truth.inputs, truth.labels, seen.received))
        for adaptive in (False, True)
        for loss in [matching_loss(replay(seen, task, CPU), seen, adaptive=adaptive)]
    )
    assert aware == pytest.approx(0, abs=1e-6)
    assert oblivious > 0.1


def test_without_the_package_its_name_is_not_known(make_run: Make) -> None:
    with pytest.raises(ConfigError, match=r"defenses\[0\]\.name: 'fake_rectify' is not known"):
        make_run(IMAGES, defenses=[{"name": "fake_rectify"}])
