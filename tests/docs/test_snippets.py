"""What the pages tell a reader to type works: Python runs, experiments parse, commands exist."""

import re
import shlex
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from typer.main import get_command

import attacks
from benchmarks.__main__ import app as benchmarks
from benchmarks.measure import PARTS
from docs.hooks import linked, outside
from docs.manuals import commands
from docs.measured import HEADLINES, RESULTS, ROOT, read
from docs.tables import pages
from experiments.pipeline import execute
from experiments.plan.config import load_plan, parse_experiment, shipped
from experiments.plan.folder import STAGES
from experiments.preview.describe import manual
from experiments.preview.manuals import CATALOGS
from fedsim import data, defenses, metrics, models
from fedsim.models import transformer
from tests.apps.cases import Make

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^ *|\$\()(fedsim [^\n]*)", re.MULTILINE)
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*pages(), ROOT / "CONTRIBUTING.md"]
}


class Snippet(NamedTuple):
    """A fenced block."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


SNIPPETS = [
    Snippet(page, number, found[2], found[3])
    for page, text in TEXTS.items()
    for number, found in enumerate(FENCE.finditer(text))
]


def of(language: str) -> list[Snippet]:
    return [snippet for snippet in SNIPPETS if snippet.language == language]


@pytest.mark.parametrize("snippet", of("python"), ids=str)
def test_python_compiles(snippet: Snippet) -> None:
    compile(snippet.text, str(snippet), "exec")


@pytest.mark.parametrize("snippet", of("toml"), ids=str)
def test_toml_is_an_experiment(snippet: Snippet) -> None:
    table = tomllib.loads(snippet.text)
    if "project" in table:
        (group,) = table["project"]["entry-points"]
        assert group in {
            f"fedsim.{kind}"
            for kind in ("attacks", "commands", "defenses", "metrics", "tasks", "models")
        }
    else:
        assert parse_experiment(table).name == table["name"]


def typed() -> list[tuple[str, str]]:
    """Every command that a page, or a result file, tells a reader to type, with its place."""
    found = []
    for snippet in of(""):
        text = snippet.text.replace("\\\n", " ")
        found += [(str(snippet), match[1]) for match in COMMAND.finditer(text)]
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem != HEADLINES:
            found += [(path.stem, command) for command in read(path.stem).command.split(";")]
    return found


ELSEWHERE = {"captures", "updates", "canary-rows"}
"""Folders of another application."""
OF_OTHERS = {"ls", "schema", "init", "new", "submit", "grade", "trees"}
"""Commands that name no experiment."""


@pytest.mark.some(4)
@pytest.mark.parametrize(("place", "command"), typed())
def test_a_command_and_its_options_exist(place: str, command: str) -> None:
    text = command.split("); do")[0].partition(" > ")[0].strip()
    if text.startswith("python -m benchmarks "):
        options = get_command(benchmarks).make_context("benchmarks", shlex.split(text)[3:]).params
        assert options["what"] in {"", *PARTS}
        return
    if text.startswith("python -m benchmarks."):
        import_module(text.split()[2]).parser().parse_args(shlex.split(text)[3:])
        return
    program, name, *arguments = shlex.split(text, comments=True)
    assert program == "fedsim", place
    given: dict[str, Any] = commands()[name].make_context(name, arguments).params
    keys = ("experiment", "captures", "what", "name")
    subject = str(next((given[key] for key in keys if given.get(key)), ""))
    if name == "list":
        assert subject in CATALOGS
    elif name == "describe":
        assert manual(subject).options
    elif name in OF_OTHERS or subject in ELSEWHERE:
        pass
    elif run := given.get("run") or given.get("before"):
        assert str(run).startswith("runs/") or str(run) in ELSEWHERE
    elif not (subject.endswith(".toml") or subject.startswith("runs/")):
        assert subject in shipped()
        load_plan(subject, given.get("sets") or [])


def test_links_to_files_outside_the_documentation_hold() -> None:
    assert len(linked()) > 40
    assert [path for path in linked() if not (ROOT / path).is_file()] == []
    assert outside("decisions", "../../", "attacks/base.py") == "attacks/base.py"
    assert outside("results", "../", "tutorial/first-run.md") is None
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?:\]\(|src(?:set)?=\")([\w./-]+)[)\"]", TEXTS[page]):
            assert (ROOT / target).exists(), (page, target)


def test_links_between_pages_hold_in_a_checkout() -> None:
    """Pages that are made with the site alone are dead links where the sources are read."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([\w./-]+\.md)[)#]", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def defined(page: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the first Python block of a page makes."""
    snippet = next(snippet for snippet in of("python") if snippet.page == f"docs/{page}")
    module = ModuleType(Path(page).stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(snippet.text, page, "exec"), vars(module))
    return module


MINE: dict[str, Any] = {
    "name": "mine",
    "task": {"model": "two-layers", "dataset": "stripes", "heldout_rows": 8},
    "auxiliary": {"split": "public", "rows": 20},
    "federation": {"engine": "in-process", "clients": 2},
    "metrics": ["psnr", "mae"],
    "defenses": [{"name": "none"}, {"name": "laplacian_noise", "scale": 0.1}],
    "attacks": [{"name": "inverting", "steps": 2}, {"name": "prior_only"}],
}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tutorials add, under the names that they give it."""
    network = defined("tutorial/own-model.md", monkeypatch).TwoLayers
    rows = defined("tutorial/own-data-set.md", monkeypatch).Stripes
    noise = defined("tutorial/own-defense.md", monkeypatch).LaplacianNoise
    error = defined("tutorial/own-metric.md", monkeypatch).MeanAbsoluteError
    monkeypatch.setitem(models.IMAGE_MODELS, "two-layers", network)
    monkeypatch.setitem(models.MODELS, "two-layers", network)
    monkeypatch.setitem(data.DATASETS, "stripes", rows)
    monkeypatch.setitem(defenses.DEFENSES, "laplacian_noise", noise)
    monkeypatch.setitem(metrics.METRICS, "mae", error)


def test_the_audits_of_a_gradient_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = models.TEXT_MODELS["tiny-gpt2"]
    tokenizer = transformer.tokenizer(str(folder))
    network: Any = transformer.build(
        transformer.architecture(str(folder), 0), "language-modelling", seed=1
    )
    tokenizer.save_pretrained(tmp_path)
    network.save_pretrained(tmp_path)
    text, image, *_ = (one for one in of("python") if one.page == "docs/how-to/audit.md")
    torch.manual_seed(0)
    for snippet in (text, image):
        source = snippet.text.replace('"gpt2"', repr(str(tmp_path)))
        exec(compile(source, str(snippet), "exec"), {})
    said = capsys.readouterr().out
    assert "('My PIN is 4471.',) (True,)" in said
    assert "span: rouge1 1, rougeL 1, exact_match 1 on 1 examples" in said
    assert re.search(r"\(3,\) closed_form: psnr (100|[6-9]\d)", said)


@pytest.mark.usefixtures("registered")
def test_the_tutorials_model_data_defense_and_metric_run_together(make_run: Make) -> None:
    run = make_run(MINE)
    outcome = execute(run, STAGES, quiet=True)
    assert not outcome.failed
    assert outcome.statuses == {"done": 8}
    scores = (run.root / "report" / "index.html").read_text(encoding="utf-8")
    assert "laplacian noise" in scores


@pytest.mark.usefixtures("registered")
def test_the_tutorials_attack_runs(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = defined("tutorial/own-attack.md", monkeypatch).ClassMean
    monkeypatch.setitem(attacks.ATTACKS, "class_mean", mine)
    run = make_run({**MINE, "attacks": [{"name": "class_mean"}, {"name": "prior_only"}]})
    outcome = execute(run, STAGES[:3], quiet=True)
    assert outcome.statuses == {"done": 8}
