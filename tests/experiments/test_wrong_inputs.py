"""A stranger's mistakes: each one line with the place, the value and the fix, exit code 2."""

import csv
import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from experiments import cli
from experiments.invocation import Invocation
from experiments.pipeline import execute
from fedsim.models import TEXT_MODELS
from tests.apps.mistakes import BASE, COMMANDS, OPTIONS, TEXT


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with experiments, runs, models and data sets, most of them broken."""
    root = tmp_path_factory.mktemp("shop")
    texts = {
        "base.toml": BASE,
        "text.toml": TEXT,
        "cut.toml": 'name = "x"\n[task\n',
        "empty.toml": "",
        "note.txt": "hello",
        "stuff/note.txt": "hello",
        "suite-none.toml": "suite = []",
        "suite-lost.toml": 'suite = ["base.toml", "vanished"]',
        "suite-suite.toml": 'suite = ["quickstart"]',
        "suite-twice.toml": 'suite = ["base.toml", "base.toml"]',
        "suite-more.toml": 'seeds = [1]\nsuite = ["base.toml"]',
        "suite-name.toml": 'name = 3\nsuite = ["base.toml"]',
        "models/words/config.json": (TEXT_MODELS["tiny-bert"] / "config.json").read_text(),
        "models/cut/config.json": "{",
        "models/mamba/config.json": json.dumps({"model_type": "mamba"}),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "binary.toml").write_bytes(b"\xff\xfe")
    shutil.copytree(TEXT_MODELS["tiny-bert"], root / "models" / "bare")
    for split in ("train", "test"):
        _table(root / "numbers" / f"{split}.csv", {"number": [1, 2], "label": [0, 1]})
        columns: dict[str, list[object]] = {
            "text": [f"{split} a", "b"],
            "mood": ["x", "y"],
            "score": [0.5, 0.7],
        }
        _table(root / "moods" / f"{split}.csv", columns)
    _make_runs(root)
    return root


def _table(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def _make_runs(root: Path) -> None:
    """One simulated run and copies of it with a fault."""
    run = Invocation(str(root / "base.toml"), out=root / "run").run(("simulate",))
    execute(run, ("simulate",), quiet=True)
    for name in ("lost-cell", "cut-run", "wrong-run", "other-run", "new-run"):
        shutil.copytree(run.root, root / name)
    shutil.rmtree(next((root / "lost-cell").glob("small.none.*")))
    plan = (run.root / "experiment.toml").read_text()
    for name, changed in (
        ("cut-run", plan[: plan.index(" = ", len(plan) // 2)]),
        ("wrong-run", plan.replace("clients = 2", "clients = 0")),
        ("other-run", plan.replace("clients = 2", "clients = 3")),
        ("new-run", plan.replace("schema = 1", "schema = 99")),
    ):
        assert changed != plan
        (root / name / "experiment.toml").write_text(changed)


@pytest.fixture
def at_shop(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work there, without a network, and with a data set cache of one's own."""
    import datasets

    def no_network(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.chdir(shop)
    monkeypatch.delenv("FEDSIM_HUB", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return shop


def complaint(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """The lines on stderr; nothing else is printed, and no file is made, changed or lost."""
    before = _stamps(Path.cwd())
    monkeypatch.setattr(sys, "argv", ["fedsim", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capfd.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    lines = printed.err.splitlines()  # one, or one for each mistake of a file
    assert all(line.startswith("fedsim: ") for line in lines), printed.err
    assert _stamps(Path.cwd()) == before
    return printed.err.removesuffix("\n")


def _stamps(root: Path) -> dict[Path, int]:
    """When each file was written, 0 for folders; opening a ledger touches it."""
    paths = [path for path in root.rglob("*") if not path.name.startswith("jobs.")]
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


def check(line: str, where: str, value: str, fix: str) -> None:
    assert line.startswith(f"fedsim: {where}"), line
    assert re.search(r"[.?]$", line), line
    assert not re.search(r"[^.]\.\.($|[^.])", line), line
    assert value in line, line
    assert fix in line[len("fedsim: ") + len(where) :], line


@pytest.mark.some(8)
@pytest.mark.parametrize(("change", "where", "value", "fix"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_a_wrong_option(
    change: str,
    where: str,
    value: str,
    fix: str,
    at_shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = complaint(["run", "base.toml", "--set", change], monkeypatch, capfd)
    check(line, f"{where}: ", value, fix)


@pytest.mark.parametrize(
    ("change", "where", "fix"),
    [
        ("federation.rounds=" + "9" * 5000, "--set federation.rounds", "Write less."),
        ("seeds=" + "[" * 1500, "--set seeds", "Write less."),
        (".".join("a" * 1500) + "=1", "a.a.a", "nested too deeply. Remove the inner levels."),
        ("name=\udcff", "name", "'\\udcff' is not valid Unicode. Write it in UTF-8."),
        ("\udcff=1", "the experiment", "'\\udcff' is not valid Unicode."),
    ],
    ids=["digits", "brackets", "levels", "surrogate", "surrogate key"],
)
def test_what_python_cannot_parse(
    change: str,
    where: str,
    fix: str,
    at_shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = complaint(["run", "base.toml", "--set", change], monkeypatch, capfd)
    check(line, where, "", fix)
    assert len(line) < 200


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("command", "where", "value", "fix"), COMMANDS, ids=[command[0] for command in COMMANDS]
)
def test_a_wrong_command(
    command: str,
    where: str,
    value: str,
    fix: str,
    at_shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    check(complaint(command.split(), monkeypatch, capfd), where, value, fix)


def test_a_hub_folder_that_is_none(
    at_shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSIM_HUB", "note.txt")
    line = complaint(["run", "base.toml", "--set", "task.model=a/b"], monkeypatch, capfd)
    assert line == "fedsim: FEDSIM_HUB: 'note.txt' is not a folder. Correct it or unset it."


def test_weights_of_a_round_that_was_not_run(
    at_shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cell = next(Path("run").glob("small.none.*"))
    change = f"task.weights={cell}@2"
    line = complaint(["run", "base.toml", "--set", change], monkeypatch, capfd)
    check(
        line,
        "task.weights: ",
        f"{str(cell)!r} holds no capture of round 2",
        "Choose one of its rounds: 1.",
    )


def test_a_client_that_fails_is_one_line_too(
    at_shop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr("clients.train.LocalTrainer.run", fail)
    line = complaint(["run", "base.toml", "--out", str(tmp_path / "run")], monkeypatch, capfd)
    said = "round 1, client 0: RuntimeError: out of memory."
    check(line, said, "", "correct the cause and run the same command again.")


def test_the_experiments_of_the_table_are_right(at_shop: Path) -> None:
    """What is complained about is the mistake alone."""
    for name in ("base.toml", "text.toml"):
        assert Invocation(name).plan().experiments
