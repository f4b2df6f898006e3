"""Runs whose folder is in an object store, and what two machines make of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from pyarrow.fs import FileSelector, FileSystem

from experiments.invocation import Invocation
from experiments.mirror import Mirror, local_folder
from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.errors import ConfigError, StoreError
from tests.apps.cases import IMAGES, files_of, merge
from tests.experiments.cases import told
from tests.experiments.stages.cases import scores
from tests.kills import made
from tests.object_store import bucket

KILLED_AT = (0.1, 0.4, 0.55, 0.7, 0.85)
"""Shares of the run's files that are in the store."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with bucket(monkeypatch) as url:
        yield url


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's folder, which the command works in."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def both(store: str, folder: Path) -> tuple[Mirror, Mirror]:
    """Two machines that work on one run."""
    return Mirror(f"{store}/run", folder / "a"), Mirror(f"{store}/run", folder / "b")


def listed(store: str) -> list[str]:
    """Paths of the files of the run in the store."""
    opened, root = FileSystem.from_uri(f"{store}/run")
    infos = opened.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return [info.path for info in infos if info.is_file]


def stored(store: str) -> dict[str, bytes]:
    """Each file of the run, by its name without folders."""
    opened, _ = FileSystem.from_uri(store)
    return {Path(path).name: opened.open_input_stream(path).read() for path in listed(store)}


def test_a_change_on_one_side_reaches_the_other(store: str, tmp_path: Path) -> None:
    a, b = both(store, tmp_path)
    a.pull()
    for name in ("x", "cell/truth/y", ".z.tmp", "jobs.lock", "jobs.sqlite"):
        write(tmp_path / "a" / name, name)
    a.push(working=True)
    assert stored(store).keys() == {"x", "y"}
    a.push()
    b.pull()
    assert (tmp_path / "b/jobs.sqlite").read_text() == "jobs.sqlite"
    assert (tmp_path / "b/cell/truth").stat().st_mode & 0o777 == 0o700
    write(tmp_path / "b/x", "changed")
    (tmp_path / "b/jobs.sqlite").unlink()
    b.push()
    assert stored(store) == {"x": b"changed", "y": b"cell/truth/y"}
    a.pull()
    assert (tmp_path / "a/x").read_text() == "changed"


def test_what_another_machine_wrote_is_never_overwritten(store: str, tmp_path: Path) -> None:
    a, b = both(store, tmp_path)
    write(tmp_path / "a/x", "from a")
    write(tmp_path / "b/x", "from b, later")
    a.pull()
    b.pull()
    a.push()
    with pytest.raises(StoreError, match=r"another command wrote x meanwhile.*run it again"):
        b.push()
    b.pull()
    assert (tmp_path / "b/x").read_bytes() == stored(store)["x"] == b"from a"


def test_a_copy_that_was_cut_off_is_gone_on_with(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = both(store, tmp_path)
    a.pull()
    write(tmp_path / "a/x", "made before")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(a, "_note", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a.push()
    write(tmp_path / "a/y", "made after")
    again, _ = both(store, tmp_path)
    again.pull()
    again.push()
    assert stored(store) == {"x": b"made before", "y": b"made after"}


def test_folders_that_stay_where_they_are(store: str, tmp_path: Path) -> None:
    a, _ = both(store, tmp_path)
    write(tmp_path / "a/cell/truth/y", "private")
    write(tmp_path / "a/cell/x", "captured")
    a.push()
    attacker = Mirror(f"{store}/run", tmp_path / "b", {"truth"})
    attacker.pull()
    assert [path.name for path in (tmp_path / "b/cell").iterdir()] == ["x"]
    attacker.push()
    assert stored(store).keys() == {"x", "y"}


def test_urls_that_name_no_store() -> None:
    assert local_folder("s3://bucket/a//run?region=x") == Path("runs/s3/bucket/a/run")
    keys = "s3://key:se/cret@bucket/run"
    for url in ("s3://", "s3://key:secret@bucket/run", keys, "s3://bucket/../run"):
        with pytest.raises(ConfigError, match=r"s3://\.\.\.: no folder of a store"):
            local_folder(url)
    for url, fault in (("nothing://x/run", "cannot be opened"), ("file:///x", "Write its path")):
        with pytest.raises(ConfigError, match=fault):
            Mirror(url, Path("run"))


def test_keys_of_a_url_are_not_told() -> None:
    with pytest.raises(ConfigError, match="cannot be opened") as error:
        Mirror("s3://bucket/run?secret_key=se/cret&x=1", Path("run"))
    assert "cret" not in str(error.value)


@pytest.mark.parametrize("name", ["cell//x", "../../x", "./x"])
def test_a_stranger_s_object_names_no_file_of_this_machine(
    name: str, store: str, tmp_path: Path
) -> None:
    import boto3

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.put_object(Bucket=store.removeprefix("s3://"), Key=f"run/{name}", Body=b"x")
    with pytest.raises(StoreError, match=r"^s3://[^ ]*: "):
        Mirror(f"{store}/run", tmp_path / "deep" / "er" / "run").pull()
    assert not list(tmp_path.rglob("x"))


CHANGES = {"federation": {"rounds": 1}, "attacks": [{"name": "inverting", "steps": 4}]}


def finished(folder: Path, **changes: object) -> tuple[Path, Path]:
    """An experiment's file, and the folder of a run of it that was never in a store."""
    file = folder / "experiment.toml"
    file.write_text(tomli_w.dumps(merge(merge(IMAGES, CHANGES), changes)))
    run = Invocation(str(file), out=folder / "expected").run(STAGES)
    execute(run, STAGES[:3], quiet=True)
    return file, run.root


def assert_equal(run: Path, expected: Path) -> None:
    """The same captures, truth, guesses and scores; other times."""
    assert made(run, "simulate") == made(expected, "simulate")
    assert made(run, "attack") == made(expected, "attack")
    assert scores(run) == scores(expected)


def test_a_run_by_stages_on_two_machines(store: str, at: Path) -> None:
    file, expected = finished(at)
    url = f"{store}/some/run"
    assert told(["simulate", str(file), "--out", url, "--quiet"]) == (0, "")
    here = local_folder(url)
    here.rename("first-machine")
    assert told(["attack", url, "--quiet"]) == (0, "")
    assert not [*here.glob("*/truth")]
    assert told(["score", url, "--quiet"]) == (0, "")
    assert_equal(here, expected)
    assert told(["show", url])[1].endswith(f"then name {here}.\n")
    code, said = told(["run", str(file), "--out", "s3://elsewhere/run"])
    assert (code, said.count("\n")) == (2, 1)
    assert "there is no bucket 'elsewhere'" in said


@pytest.mark.slow
def test_a_machine_that_dies_is_replaced_by_an_empty_one(store: str, at: Path) -> None:
    file, expected = finished(
        at,
        federation={"rounds": 3},
        attacks=[{"name": "inverting", "steps": 60}, {"name": "prior_only"}],
        attack_stage={"group_size": 1},
    )
    code = "from experiments import cli, mirror; mirror.PERIOD = 0.2; cli.main()"
    command = [sys.executable, "-c", code, "run", str(file), "--out", f"{store}/run", "--quiet"]
    whole, seen = len(files_of(expected)), []
    for number, share in enumerate([*KILLED_AT, 1.0]):
        (machine := at / f"machine-{number}").mkdir()
        process = subprocess.Popen(command, cwd=machine)
        while share < 1 and len(listed(store)) < share * whole:
            assert process.poll() is None
            time.sleep(0.05)
        if share < 1:
            process.kill()
        assert process.wait() == (-signal.SIGKILL if share < 1 else 0)
        seen.append(len(listed(store)))
    print(f"files in the store after each machine: {seen}")
    assert_equal(machine / local_folder(f"{store}/run"), expected)
