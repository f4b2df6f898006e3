"""The how-to page of a hospital that runs NVFlare's PercentilePrivacy, walked from end to end."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsim.defenses.percentile_privacy import PercentilePrivacy
from tests.experiments.captures.test_reply_kinds import CLIENTS, Net, Step, capture, image
from tests.experiments.conftest import Said

NAMED = ["--model", "tests.experiments.captures.test_reply_kinds:Net"]
LOSS = ["--loss", "tests.experiments.captures.test_reply_kinds:loss"]
OPTIONS = [*NAMED, *LOSS, "--attacks", "closed_form"]


def filtered(step: Step) -> OrderedDict[str, torch.Tensor]:
    """The reply as NVFlare's filter leaves it."""
    update = {name: value - step.weights[name] for name, value in step.sent.items()}
    left = PercentilePrivacy(percentile=10, gamma=0.01).on_update(update, torch.Generator())
    return OrderedDict((name, value - left[name]) for name, value in step.sent.items())


def write(folder: Path, replied: bool) -> None:
    """An NVFlare-type folder of state dicts, and the examples that a test federation knows."""
    torch.manual_seed(0)
    sent = Net().state_dict()
    for place in (folder / "round-1", folder.with_name("truth") / "round-1"):
        place.mkdir(parents=True, exist_ok=True)
    manifest = 'kind = "weights"\nlearning_rate = 0.1\nnum_examples = 1\nimage_shape = [1, 8, 8]\n'
    (folder / "updates.toml").write_text(manifest)
    save_file(dict(sent), folder / "round-1" / "before.safetensors")
    for client in range(CLIENTS):
        step = Step(sent, client)
        reply = filtered(step) if replied else step.weights
        save_file(dict(reply), folder / "round-1" / f"site-{client}.safetensors")
        truth = {"inputs": image(client), "labels": torch.tensor([client % 4])}
        save_file(truth, folder.with_name("truth") / "round-1" / f"site-{client}.safetensors")


@pytest.mark.slow
def test_a_folder_of_state_dicts_with_and_without_the_filter(tmp_path: Path, said: Said) -> None:
    for name, replied, most in (("plain", False, 1), ("filtered", True, 0)):
        updates = tmp_path / name / "updates"
        write(updates, replied)
        code, text, _ = said("attack", updates, *OPTIONS)
        certified = text.count("closed_form: 1 image, 1 certified")
        assert (code, certified) == (0, 0 if replied else CLIENTS), text
        truth = tmp_path / name / "truth"
        assert said("score", updates, "--truth", truth)[0] == 0
        run = updates / "captures" / "run"
        assert said("check", run, "--max-verbatim", "0")[0] == most
    out = tmp_path / "federation.toml"
    assert said("init", updates, "--out", out, "--model", NAMED[1])[0] == 0
    text = out.read_text("utf-8")
    assert 'protocol = "fedavg"' in text
    assert f"clients = 12  # {CLIENTS} captured in a round" in text


@pytest.mark.slow
def test_the_same_as_a_flower_app(tmp_path: Path, said: Said) -> None:
    capture(tmp_path / "captures", filtered)
    facts = ["--image-shape", "1,8,8", "--knows", "learning_rate=0.1"]
    facts += ["--knows", "num_examples=1"]
    _, text, _ = said("attack", tmp_path / "captures", *OPTIONS, *facts)
    assert text.count("closed_form: ") == CLIENTS
    assert "1 certified" not in text
