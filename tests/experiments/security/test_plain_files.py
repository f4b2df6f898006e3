"""A run folder from a stranger: each trick is refused in one line, and nothing is touched."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsim.store import plain_files
from fedsim.store.plain_files import memory
from tests.experiments.conftest import Said
from tests.experiments.security.cases import cell_of, state

Trick = Callable[[Path, Path], object]
READ = ("check --max rouge1=1", "open", "diff")
WORK = ("report", "score", "attack", "run", "doctor", "limits", "audit")
EVERY = (*READ, *WORK, "rm --captures --yes", "rm --yes")


def link(name: str, target: str) -> Trick:
    """Put a link in the place of ``name``; in ``target`` OUT is the opener's own folder."""

    def spoil(run: Path, out: Path) -> None:
        path = run / name.replace("CELL", cell_of(run).name)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(target.replace("OUT", str(out)))

    return spoil


def pipe(name: str) -> Trick:
    def spoil(run: Path, out: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return spoil


def plug(run: Path, out: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(run)  # the path of a socket has at most 108 bytes
        made.bind("plug")
        os.chdir(here)


def holes(name: str, size: int) -> Trick:
    """A file that takes no room on the disk and more than there is in memory."""

    def spoil(run: Path, out: Path) -> None:
        (cell_of(run) / name).parent.mkdir(exist_ok=True)
        with (cell_of(run) / name).open("wb") as file:
            file.truncate(size)

    return spoil


TRICKS: dict[str, Trick] = {
    "lock-to-file": link("jobs.lock", "OUT/precious.txt"),
    "lock-to-nothing": link("jobs.lock", "OUT/new.txt"),
    "lock-a-pipe": pipe("jobs.lock"),
    "ledger-to-file": link("jobs.sqlite", "OUT/precious.txt"),
    "ledger-a-pipe": pipe("jobs.sqlite"),
    "ledger-wal-to-file": link("jobs.sqlite-wal", "OUT/precious.txt"),
    "report-to-folder": link("report", "OUT"),
    "tables-to-folder": link("report/tables", "OUT"),
    "page-to-file": link("report/index.html", "OUT/precious.txt"),
    "gallery-to-folder": link("gallery", "OUT"),
    "cell-to-other-run": link("CELL", "OUT/other.none.00000000"),
    "captures-to-folder": link("CELL/captures", "OUT"),
    "truth-to-folder": link("CELL/truth", "OUT"),
    "guesses-to-folder": link("CELL/guesses", "OUT"),
    "prepared-to-folder": link("CELL/prepared", "OUT"),
    "truth-a-device": link("CELL/truth/round-0001-client-0000.safetensors", "/dev/zero"),
    "scores-a-device": link("scores.parquet", "/dev/zero"),
    "experiment-to-file": link("experiment.toml", "OUT/experiment.toml"),
    "provenance-to-file": link("provenance.json", "OUT/provenance.json"),
    "summary-to-nothing": link("summary.json", "OUT/summary.json"),
    "temporaries-to-folder": link(".x.tmp", "OUT"),
    "a-socket": plug,
    "tensors-of-holes": holes("captures/models/x.safetensors", 1 << 42),
    "truth-of-holes": holes("truth/round-0001-client-0000.safetensors", 1 << 42),
    "record-of-holes": holes("prepared/x.json", 1 << 30),
}


@pytest.fixture
def mine(copied: Path, tmp_path: Path) -> Path:
    """Files of the opener, outside of the run."""
    out = tmp_path / "mine"
    (out / "tables").mkdir(parents=True)
    (out / "tables" / "costs.csv").write_text("a,b\n")
    (out / "precious.txt").write_text("years of work\n")
    for name in ("experiment.toml", "provenance.json"):
        shutil.copy(copied / name, out / name)
    shutil.copytree(cell_of(copied), out / "other.none.00000000")
    return out


@pytest.mark.some(3)
@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_refused(trick: str, copied: Path, mine: Path, said: Said) -> None:
    try:
        TRICKS[trick](copied, mine)
    except OSError as error:
        pytest.skip(f"no such file on this disk: {error}")
    inside, outside = state(copied), state(mine)
    number = list(TRICKS).index(trick)  # every command has its turn
    for command in {"report", EVERY[number % len(EVERY)]}:
        name, *options = command.split()
        again = [copied] if name == "diff" else []
        code, _, line = said(name, copied, *again, *options)
        assert code == 2, command
        assert line.startswith("fedsim: "), command
        assert line.count("\n") == 1, line
        assert str(copied) in line, line
        assert state(mine) == outside, command
        assert state(copied) == inside, command


def test_the_memory_is_the_machines() -> None:
    assert 1 << 28 < memory() < 1 << 42


@pytest.mark.parametrize(
    ("membership", "limits"),
    [
        ("0::/jobs/one", {"jobs/one/memory.max": "max", "jobs/memory.max": str(1 << 20)}),
        ("0::/", {"memory.max": str(1 << 20)}),
        ("0::/of/the/host", {"memory.max": str(1 << 20)}),
        (
            "5:cpu:/\n4:memory:/one\n0::/",
            {"memory/one/memory.limit_in_bytes": str(1 << 20)},
        ),
        ("0::/one", {"one/memory.max": str(1 << 20), "memory.max": str(1 << 25)}),
    ],
)
def test_the_memory_is_no_more_than_a_container_grants(
    membership: str, limits: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, memberships = tmp_path / "groups", tmp_path / "memberships"
    memberships.write_text(f"{membership}\n")
    monkeypatch.setattr(plain_files, "_GROUPS", groups)
    monkeypatch.setattr(plain_files, "_MEMBERSHIPS", memberships)
    unlimited = memory()
    for name, limit in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{limit}\n")
    assert unlimited > memory() == 1 << 20


def test_a_run_is_not_gone_on_with_where_its_plan_is_a_link(copied: Path, said: Said) -> None:
    (copied / "experiment.toml").rename(copied.with_name("small.toml"))
    (copied / "experiment.toml").symlink_to("experiment.toml")
    code, _, line = said("run", "quickstart", "--out", copied)
    assert (code, "experiment.toml: a link" in line) == (2, True), line


def test_what_is_locked_keeps_its_content(copied: Path, said: Said) -> None:
    (copied / "jobs.lock").write_text("a note")
    assert said("report", copied)[0] == 0
    assert (copied / "jobs.lock").read_text() == "a note"


def test_a_run_may_be_named_by_a_link(copied: Path, tmp_path: Path, said: Said) -> None:
    (tmp_path / "link").symlink_to(copied)
    assert said("report", tmp_path / "link")[0] == 0


def test_a_path_that_is_not_utf8(copied: Path, tmp_path: Path, said: Said) -> None:
    odd = tmp_path / os.fsdecode(b"r\xff")
    copied.rename(odd)
    code, _, line = said("report", odd)
    assert (code, "is not valid UTF-8. Rename it." in line) == (2, True)
    code, _, line = said("run", "quickstart", "--out", f"{odd}2")
    assert (code, "is not valid UTF-8. Rename it." in line) == (2, True)


def test_a_schema_of_another_type(copied: Path, said: Said) -> None:
    path = copied / "experiment.toml"
    path.write_text(path.read_text().replace("schema = 1", "schema = true", 1))
    code, _, line = said("report", copied)
    assert (code, "a run folder of version True" in line) == (2, True)


def test_nothing_is_written_of_a_refused_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--engine", "in-process", "--set", "candidates.fresh=100000"]
    code, _, line = said("run", "quickstart", *options)
    assert (code, "candidates.fresh: 100000 are requested" in line) == (2, True)
    assert [*tmp_path.iterdir()] == []
