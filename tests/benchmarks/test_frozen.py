"""What two commits made is compared place by place, without clocks and the names of options."""

import json
from pathlib import Path

from attacks import ATTACKS
from benchmarks.frozen import differences, experiments, values
from experiments.plan.config import parse_experiment
from experiments.plan.entries import entries
from fedsim.defenses import DEFENSES


def write_run(root: Path, label: str, seconds: float, guess: bytes) -> Path:
    """A run of one cell with a guess, its record and a table."""
    guesses = root / "text.none.0123abcd" / "guesses" / label
    guesses.mkdir(parents=True)
    (guesses.parent.parent / "cell.json").write_text("{}")
    (guesses / "a.safetensors").write_bytes(guess)
    record = {"attack": label, "seconds": seconds, "trace": [[1, seconds, 0.5]], "status": "done"}
    (guesses / "a.json").write_text(json.dumps(record))
    tables = root / "report" / "tables"
    tables.mkdir(parents=True)
    (tables / "jobs.csv").write_text(f"attack,done,seconds per job\nspan,1,{seconds}\n")
    return root


def test_clocks_and_names_of_options_are_not_compared(tmp_path: Path) -> None:
    before = values(write_run(tmp_path / "a", "span-0123ab", 1.0, b"words"))
    after = values(write_run(tmp_path / "b", "span", 2.0, b"words"))
    assert differences(before, after) == []
    assert before["jobs.csv/0/done"] == "1"
    assert "none/guesses/span/a.safetensors" in before


def test_a_guess_that_differs_or_is_missing_has_a_line(tmp_path: Path) -> None:
    before = values(write_run(tmp_path / "a", "span", 1.0, b"words"))
    after = values(write_run(tmp_path / "b", "span", 1.0, b"other words"))
    (line,) = differences(before, after)
    assert line.startswith("none/guesses/span/a.safetensors: ")
    (tmp_path / "b/text.none.0123abcd/guesses/span/a.json").unlink()
    assert len(differences(before, values(tmp_path / "b"))) == 2


def test_every_attack_and_every_defense_is_frozen() -> None:
    tables = experiments([], ATTACKS)
    parsed = [parse_experiment(each) for each in tables.values()]
    assert {str(e.table["name"]) for table in parsed for e in entries(table)} == ATTACKS.keys()
    defenses = [entry for table in tables.values() for entry in table.get("defenses", [])]
    assert {entry["name"] for entry in defenses} == DEFENSES.keys()


def test_a_part_is_chosen_by_attack_or_by_experiment() -> None:
    parts = experiments(["film"], ATTACKS)
    assert {attack["name"] for table in parts.values() for attack in table["attacks"]} == {"film"}
    assert len(experiments(["linear"], ATTACKS)["linear"]["attacks"]) > 1
    assert "linear" not in experiments(["film"], ATTACKS)
