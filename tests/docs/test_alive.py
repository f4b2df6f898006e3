"""A result whose small experiment gives something else than it did is marked where it stands."""

import inspect
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attacks import ATTACKS
from attacks.base import Reconstruction
from docs import alive, tables
from docs.measured import ROOT, read
from docs.probes import Probe, keep, probes
from docs.progress import members
from docs.sources import names
from experiments.plan.config import parse_experiment, shipped
from fedsim.metrics import METRICS
from fedsim.store.files import write_bytes

MNIST, ARENA, ARENA_PROBE = read("mnist-dlg"), read("arena"), probes()["arena"]
PROBED = Probe(date="2026-11-20", seconds=1.0, values={"none | dlg | psnr [dB]": 40.0})


@pytest.fixture
def mnist(results: Path) -> None:
    write_bytes(results / "mnist-dlg.json", MNIST.model_dump_json().encode())
    keep({"mnist-dlg": PROBED})


@pytest.mark.parametrize("name", [name for name in names() if alive.experiment_of(name)])
def test_the_small_experiment_of_each_result_is_valid(name: str) -> None:
    asked = alive.experiment_of(name)
    assert asked
    config = parse_experiment(alive.small(*asked))
    assert (config.federation.rounds, config.capture.clients) == (1, (0,))
    assert len(config.defenses) <= 2
    assert not config.sweep


def test_a_probe_is_of_a_result_and_shows_what_its_attacks_gave() -> None:
    known = probes()
    assert known.keys() <= set(names())
    for name, probe in known.items():
        asked = alive.experiment_of(name)
        scored = [p for p in probe.values if not p.endswith(f"[{alive.OBJECTIVE}]")]
        assert asked
        assert not alive.small(*asked)["attacks"] or any("global model" not in p for p in scored)


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize(
    ("now", "word"), [(38.0, "gives 38.0 today"), (39.5, ""), ("failed", "gives failed today")]
)
def test_a_probe_that_gives_something_else_marks_the_table(
    now: float | str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alive, "measure", lambda _: ({"none | dlg | psnr [dB]": now}, 2.0))
    (line,) = alive.ask(["mnist-dlg"], write=False)
    assert ("->" in line) == bool(word)
    assert ("**Stale**" in tables.source(MNIST, "mnist-dlg")) == bool(word)
    assert word in tables.source(MNIST, "mnist-dlg")
    assert {state.word for state in alive.states()} == {"stale" if word else "probed"}


@pytest.mark.usefixtures("mnist")
def test_a_result_made_again_is_stale_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    keep({"mnist-dlg": PROBED.model_copy(update={"stale": {"none | dlg | psnr [dB]": 9.0}})})
    monkeypatch.setattr(alive, "measure", lambda _: ({"none | dlg | psnr [dB]": 9.0}, 2.0))
    list(alive.ask(["mnist-dlg"], write=True))
    assert probes()["mnist-dlg"].values == {"none | dlg | psnr [dB]": 9.0}
    assert "Stale" not in tables.source(MNIST, "mnist-dlg")


@pytest.mark.slow
def test_a_change_planted_in_an_attack_turns_its_file_stale(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(results / "arena.json", ARENA.model_dump_json().encode())
    keep({"arena": ARENA_PROBE})
    right = ATTACKS["span"].reconstruct

    def backwards(*given: Any) -> list[Reconstruction]:
        return [
            replace(made, guess=replace(made.guess, inputs=made.guess.inputs.flip(1)))
            for made in right(*given)
        ]

    monkeypatch.setattr(ATTACKS["span"], "reconstruct", backwards)
    (line,) = alive.ask(["arena"], write=False)
    assert "none | span | exact_match [1]: 1.0 -> 0.0" in line
    assert "**Stale**" in tables.source(ARENA, "arena")


def test_what_was_not_scored_then_contradicts_nothing() -> None:
    assert not alive.moved({"a [1]": 0.5}, {"a [1]": 0.55, "b [1]": 1.0})
    assert alive.moved({"a [1]": 0.5}, {"b [1]": 1.0}) == {"a [1]": "nothing"}


def test_what_a_result_reaches_is_its_attack_and_not_that_of_others() -> None:
    reached = alive.reached("mnist-dlg")
    assert {"attacks/images/dlg.py", "attacks/engine/descent.py"} <= reached
    assert "attacks/texts/lamp.py" not in reached


def test_what_is_cut_and_what_is_compared_exist() -> None:
    options = {name for attack in ATTACKS.values() for name in inspect.signature(attack).parameters}
    assert alive.CAPS.keys() <= options
    assert set(alive.METRICS) <= {*METRICS, "membership_auc"}


def test_a_commit_that_no_clone_has_is_lost() -> None:
    unborn = subprocess.run(
        ["git", "commit-tree", "HEAD^{tree}", "-m", "on no branch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert not alive.exists(unborn)
    assert not alive.exists("0" * 40)


def test_each_published_experiment_is_shipped() -> None:
    for name in names():
        if asked := alive.experiment_of(name):
            assert all(member in shipped() for member in members(asked[0]))
