"""Pages of classes are those of the classes, and look-ups import no heavy package."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from experiments.plan.config import parse_experiment
from experiments.preview.manuals import FILE, from_classes, unknown_names
from fedsim.errors import ConfigErrors

MISTAKES = """
name = "x"
defenses = [{ name = "clip", nrm = 1.0 }, { chain = [{ name = "sgn" }] }]
metrics = ["pnsr"]
task = { model = "lenet", dataset = "shapes" }
attacks = [{ name = "dlgg" }, { name = "inverting", stps = 3 }]
"""
SAID = [
    "attacks[0].name: 'dlgg' is not known. Did you mean 'dlg'?",
    "attacks[1].stps: inverting has no such option. Did you mean 'steps'?",
    "defenses[0].nrm: clip has no such option. Did you mean 'norm'?",
    "defenses[1].chain[0].name: 'sgn' is not known. Did you mean 'sign'?",
    "metrics[0]: 'pnsr' is not a metric. Did you mean 'psnr'?",
]
HEAVY = ("torch", "flwr", "ray", "transformers", "datasets", "pandas", "scipy", "matplotlib")


def test_pages_say_what_the_classes_say() -> None:
    written = json.loads(FILE.read_text("utf-8"))
    assert written == from_classes(), "python -m experiments.preview.manuals writes them anew"


def test_all_mistakes_of_a_file_are_said_at_once_the_missing_last() -> None:
    table = {**tomllib.loads(MISTAKES), "federation": {"clients": "two"}, "wrong": 3}
    table["task"].pop("model")
    with pytest.raises(ConfigErrors) as fault:
        parse_experiment(table, unknown_names)
    assert list(fault.value.lines[:-3]) == SAID
    where = [line.split(":")[0] for line in fault.value.lines[-3:]]
    assert where == ["wrong", "federation.clients", "task.model"]


ANSWERED = [
    *("--help", "run --help", "schema", "new attack mine"),
    *("list", "list attacks", "list defenses", "list models", "list datasets"),
    *("describe span", "describe dp_sgd", "describe federation"),
]
REFUSED = [
    *("ls", "show wrong.toml", "run unknown.toml", "show two.toml"),
    *("run quickstart --set federation.roundss=3", "attack of-no-model", "attack of-named-code"),
]
IN_TURN = f"""
import json, os, sys
from experiments.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["fedsim", *line.split()]
    try:
        main()
    except SystemExit as stop:
        heavy = {{*{HEAVY}}} | ({{"pydantic"}} if line == "--help" else set())
        heavy = sorted(heavy & sys.modules.keys())
        print(json.dumps((line, stop.code, heavy, os.times()[0])))
"""


def test_look_ups_import_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('nam = "x"\n[task]\nmodle = "lenet"\n')
    unknown = '[task]\nmodel = "lenet"\ndataset = "shapes"\n[[attacks]]\nname = "dlgg"\n'
    (tmp_path / "unknown.toml").write_text('name = "x"\n' + unknown)
    (tmp_path / "two.toml").write_text(
        'name = "x"\ndefenses = [{ name = "clip", norm = 1.0 }]\n' + unknown
    )
    for name, task in (("of-no-model", ""), ("of-named-code", '{"factory": "net:Net"}')):
        reply = tmp_path / name / "round-0001" / "client-0000.json"
        reply.parent.mkdir(parents=True)
        reply.write_text("{}")
        if task:
            (tmp_path / name / "task.json").write_text(task)
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN],
        input="\n".join([*ANSWERED, *REFUSED]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [(line, code) for line, code, *_ in said] == [
        *((line, 0) for line in ANSWERED),
        *((line, 2) for line in REFUSED),
    ]
    assert [(line, heavy) for line, _, heavy, _ in said if heavy] == []
    assert said[0][3] < 1.0  # seconds of processor time until --help is answered
    assert "federation.roundss: no such option. Did you mean 'rounds'?" in done.stderr
    assert "secure_aggregation: whole number at least 0, default 0" in done.stdout
