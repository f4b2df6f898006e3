"""The page on which a guess forms, and what it takes of a search."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import torch

from attacks.scheduling.jobs import Progress
from experiments.extras.watch.recording import Recording
from experiments.pipeline import execute
from tests.apps.cases import IMAGES, Make, files_of
from tests.experiments.conftest import Said


def test_frames_are_thinned_evenly() -> None:
    frames, image = Recording(), torch.zeros(1, 2, 2, dtype=torch.uint8)
    for step in range(1000):
        frames.note(Progress("reconstruct", step, 1.0, image=image))
        frames.note(Progress("reconstruct", step, 1.0))  # nothing to see
    steps = [frame.step for frame in frames.shown]
    assert 50 < len(steps) <= 121
    assert steps == list(range(0, 1000, steps[1]))


def test_a_search_of_a_run_is_played(make_run: Make, said: Said, tmp_path: Path) -> None:
    run = make_run(IMAGES, "played", federation={"clients": 1, "rounds": 1, "client_rows": 1})
    assert not execute(run, ("simulate", "attack"), quiet=True).failed
    before, page = files_of(run.root), tmp_path / "page.html"
    assert said("play", run.root, "inverting", "--out", page)[:2] == (0, f"{page}\n")
    assert files_of(run.root) == before
    text = page.read_text()
    assert "It ended with the guess of the run." in text
    assert text.count("<article>") >= 1
    assert len(re.findall(r'<img src="data:image/png;base64,', text)) >= 3
    assert "http:" not in text
    assert "https:" not in text
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    assert f"script-src 'sha256-{b64encode(sha256(script[1].encode()).digest()).decode()}'" in text
    code, _, fault = said("play", run.root, "prior_only", "--out", page)
    assert (code, "no guess before its end" in fault) == (2, True)
    code, _, fault = said("play", run.root, "nothing", "--out", page)
    assert (code, "Its attacks are inverting" in fault) == (2, True)
    assert "is no page" in said("play", run.root, "--out", tmp_path / "page")[2]
