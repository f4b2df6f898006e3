"""What an attack says where it cannot attack, and under whose name the record has it."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import attacks
from attacks import ATTACKS
from fedsim.errors import CannotAttack

REFUSALS = [
    (f"{path.name}:{call.lineno}", call)
    for path in sorted(Path(attacks.__file__).parent.rglob("*.py"))
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "CannotAttack"
    if not isinstance(call.args[0], ast.Attribute)  # a refusal that is handed on
]


def written(part: ast.expr) -> str:
    """A literal's text, with ``{}`` where a value goes."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if isinstance(part, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in part.values)
    return "{}."


def test_all_refusals_are_looked_at() -> None:
    assert len(REFUSALS) > 60


@pytest.mark.parametrize(("where", "call"), REFUSALS, ids=[where for where, _ in REFUSALS])
def test_a_refusal_has_a_reason_and_advice_and_names_no_attack(where: str, call: ast.Call) -> None:
    reason, *otherwise = map(written, call.args[:2])
    granted = len(call.args) > 2 or any(keyword.arg == "missing" for keyword in call.keywords)
    assert not reason.endswith("."), where
    assert all(advice.endswith(".") for advice in otherwise), where
    assert otherwise or granted, where
    assert "server_knows" not in "".join(otherwise), f"{where}: name the fact as missing"
    first = re.split(r"[^a-z_]", reason.lower(), maxsplit=1)[0]
    assert first not in {*ATTACKS, *(cls.__name__.lower() for cls in ATTACKS.values())}, reason
    assert "observation.key" not in ast.unparse(call.args[0])


def test_a_refusal_reads_as_two_parts_and_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CannotAttack("the head is frozen", "Send it.")))
    assert (error.reason, error.advice) == ("the head is frozen", "Send it.")
    assert str(error) == "the head is frozen. Send it."
    assert error.missing == ()


def test_missing_facts_are_data_and_no_words_of_a_reason() -> None:
    """A reason may speak of training or lengths where no fact of these names would help."""
    refusal = CannotAttack("the training mixed sentences of all lengths", "Search.", ["labels"])
    error = pickle.loads(pickle.dumps(refusal))
    assert error.missing == ("labels",)
    assert error.advice == "Grant server_knows.labels. Search."
