"""A command that is stopped, or has no room, is given again: it seals, and it submits."""

import errno
import os
from pathlib import Path

import pytest

from experiments.extras.arena import sealing
from experiments.extras.arena.grading import grade
from experiments.extras.arena.records import open_bundle
from experiments.extras.arena.sealing import SealedTrack, seal
from experiments.extras.arena.submitting import submit_attack
from fedsim.api import Run
from tests.apps.cases import files_of
from tests.experiments.conftest import Said


class Stopped(BaseException):
    """As Ctrl-C."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "calls"),
    [
        (sealing, "_run_prior", 1),
        (sealing, "write_json", 2),
        (Path, "rename", 1),
        (Path, "rename", 2),
    ],
)
def test_sealing_again_after_a_stop(
    place: object,
    name: str,
    calls: int,
    texts: SealedTrack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Said,
) -> None:
    run, count, call = Run.open(texts.bundle.parent / "run"), 0, getattr(place, name)

    def stop(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == calls:
            raise Stopped
        return call(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, stop)
        with pytest.raises(Stopped):
            seal(run, tmp_path / "t")
    code, line, error = said("seal", run.root, tmp_path / "t")
    assert (code, "sealed 6 rows" in line) == (0, True), error
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"bundle", "truth"}
    public = files_of(tmp_path / "t" / "bundle")
    assert public.keys() == files_of(texts.bundle).keys()
    sealed = open_bundle(tmp_path / "t" / "bundle")
    submit_attack(sealed, {"name": "prior_only"}, tmp_path / "guesses")
    assert grade(tmp_path / "guesses", tmp_path / "t" / "truth").n == 6
    code, _, line = said("seal", run.root, tmp_path / "t")
    assert (code, "something was sealed there already" in line) == (2, True)


def test_submitting_again_on_a_disk_that_was_full(
    texts: SealedTrack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    command = ("submit", texts.bundle, tmp_path / "mine", "--attack", "prior_only")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_room)
        code, _, line = said(*command)
    assert (code, line.count("\n"), "No space left on device" in line) == (2, 1, True), line
    assert not (tmp_path / "mine").exists()
    assert said(*command)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert grade(tmp_path / "mine", texts.truth).n == 6


def test_sealing_without_room_names_the_file(
    texts: SealedTrack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    run = texts.bundle.parent / "run"
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_room)
        code, _, line = said("seal", run, tmp_path / "t")
    assert (code, line.count("\n")) == (2, 1)
    assert "experiment.toml: cannot be written (No space left on device)" in line
    assert said("seal", run, tmp_path / "t")[0] == 0


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
