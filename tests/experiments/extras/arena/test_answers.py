"""Public code takes part with nothing but a bundle; its own checkout is stood in for here."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import foreign
from experiments.extras.arena.grading import grade
from experiments.extras.arena.records import open_bundle
from experiments.extras.arena.sealing import SealedTrack
from experiments.extras.arena.submitting import submit_guesses


class Grey:
    """In place of ``PublicInverting``: it is handed a gradient and no class."""

    def __init__(self, checkout: Path, network: torch.nn.Module, **options: float) -> None:
        del checkout, network
        assert options["steps"] == 7

    def reconstruct(self, gradient: list[Tensor], label: object, shape: tuple[int, ...]) -> Tensor:
        assert label is None
        assert all(isinstance(value, Tensor) for value in gradient)
        return torch.full((1, *shape), 0.5)


def test_guesses_of_public_code_are_made_without_the_truth(
    images: SealedTrack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(foreign, "project_of", lambda _: "invertinggradients")
    monkeypatch.setattr(foreign, "PublicInverting", Grey)
    away = images.truth.rename(images.truth.with_name("away"))
    try:
        path = tmp_path / "theirs"
        foreign.main([str(tmp_path), str(images.bundle), "--out", str(path), "--steps", "7"])
    finally:
        away.rename(images.truth)
    assert "--name 'Inverting Gradients (public code)'" in capsys.readouterr().out
    bundle = open_bundle(images.bundle)
    submit_guesses(bundle, path.with_suffix(".safetensors"), "theirs", 1.0, tmp_path / "out")
    graded = grade(tmp_path / "out", images.truth)
    assert graded.n == 6
    assert graded.score == graded.nulls["prior_only"]  # which is grey, too


def test_length_and_class_are_read_off_the_update() -> None:
    table = torch.zeros(8, 4)
    table[:5] = 1.0
    received = {
        "bert.embeddings.position_embeddings.weight": table,
        "classifier.bias": torch.tensor([0.3, -0.3]),
    }
    assert foreign._length(received) == 5
    assert foreign._label(received).tolist() == [1]
