"""Whether published results still hold: ``python -m docs.alive``; ``make probe`` asks them all.

A probe is the experiment of a result file made small: the first value of each sweep, two defenses,
one seed, one client in one round, few steps, first weights. It takes the same road through the code
in some seconds, and what it gave when it was written stands in ``docs/results/probes.toml``. A
result whose probe gives something else is marked stale below its table, until it is made again.
"""

import argparse
import inspect
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import grimp

from attacks import ATTACKS
from docs.measured import ROOT, read
from docs.probes import Probe, Values, keep, probes
from docs.progress import RUN, members
from docs.sources import names
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment, shipped
from experiments.plan.folder import STAGES, Run
from experiments.plan.overrides import override, set_value
from fedsim.config.toml_source import read_toml
from fedsim.errors import FedsimError

CAPS = {
    **dict.fromkeys(("steps", "latent_steps", "weight_steps", "generator_steps"), 10),
    **dict.fromkeys(("phrase_steps", "token_steps", "proposals", "substitutions"), 10),
    **dict.fromkeys(("starts", "beams"), 8),
    **dict.fromkeys(("epochs", "restarts"), 2),
    **dict.fromkeys(("size", "updates", "width", "orders", "evaluations", "pseudo"), 200),
    "work": 10_000,
}
"""Largest values of an attack's options: how long it searches, never what it reads."""
_COHORTS = {"secure_aggregation", "malicious_nodes", "classes_per_client"}
_SIZES = {"local_steps", "client_rows"}
CLIENTS = 4
"""At the most, where no cohorts are drawn of them."""
_ROWS = (("auxiliary", "rows", 200), ("task", "heldout_rows", 200), ("candidates", "fresh", 100))
"""Public, held-out and unused rows at the most."""
OBJECTIVE = "objective"
METRICS = (
    *("psnr", "rougeL", "rougeL_special", "rougeL_best", "exact_match", "label_accuracy"),
    "membership_auc",
)
TOLERANCE = {"dB": 1.0, OBJECTIVE: 1e-6}
"""By unit; of shares .1, and a twentieth of what an attack minimises: room for processors that
round otherwise. How much these need was not measured."""
_SHARE = 0.1
_RELATIVE = {OBJECTIVE: 0.05, "perplexity": 0.05, "loss": 0.05}
_SCORING = ("experiments.stages.score", "experiments.stages.simulate", "server.eavesdropper")


class State(NamedTuple):
    """How far one result can be relied on.

    Attributes:
        word: ``untouched``, ``probed``, ``touched``, ``stale`` or ``lost``.
        touched: files of the code that it reaches which have changed since it was made.
    """

    name: str
    word: str
    touched: int | None


def small(experiment: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The table of an experiment as its probe runs it.

    Args:
        experiment: shipped; of a suite the first member.
        options: ``--set`` of the command that made the result.
    """
    table = override(read_toml(shipped()[members(experiment)[0]]), options)
    for key, choices in table.pop("sweep", {}).items():
        set_value(table, key, choices[0], key)
    table["defenses"] = table.get("defenses", [{"name": "none"}])[:2]
    table["seeds"] = table.get("seeds", [0])[:1]
    table["attacks"] = [_capped(attack) for attack in table.get("attacks", [])]
    table["capture"] = {**table.get("capture", {}), "rounds": [1], "clients": [0]}
    table["attack_stage"] = {**table.get("attack_stage", {}), "control_jobs": 0, "when": "end"}
    federation = {**table.get("federation", {}), "rounds": 1, "engine": "in-process"}
    if not _COHORTS & federation.keys():
        federation.pop("participation", None)  # so that the first client is there
        federation["clients"] = min(federation.get("clients", CLIENTS), CLIENTS)
    if federation.get("protocol") == "fedavg" and not _SIZES & federation.keys():
        federation["local_steps"] = 2
    table["federation"] = federation
    if str(table["task"].get("weights", "")).startswith("runs/"):
        del table["task"]["weights"]
    table.pop("probes", None)
    for section, key, most in _ROWS:
        if section in table:
            table[section][key] = min(table[section].get(key) or most, most)
    return table


def _capped(attack: Mapping[str, Any]) -> dict[str, Any]:
    """An attack's table with its searches cut short, and without variants."""
    defaults = inspect.signature(ATTACKS[attack["name"]]).parameters
    full = {name: parameter.default for name, parameter in defaults.items()} | dict(attack)
    cut = {
        key: most
        for key, most in CAPS.items()
        if key in full and (full[key] is None or full[key] > most)
    }
    return {key: value for key, value in (dict(attack) | cut).items() if key != "variants"}


def measure(table: Mapping[str, Any]) -> tuple[Values, float]:
    """Run a small experiment here, without a report; returns what it gave, and its CPU seconds.

    Raises:
        FedsimError: it cannot be run, as where its data is not on this machine.
    """
    started = time.process_time()
    experiment = parse_experiment(table)
    plan = Plan(name=experiment.name, experiments=(experiment,))
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(plan, Path(folder, "run"))
        execute(run, STAGES[:3], quiet=True)
        return values(run), round(time.process_time() - started, 1)


def values(run: Run) -> Values:
    """The means of a run's metrics and objectives, by defense, attack and metric."""
    gathered: dict[str, list[float]] = {}
    statuses: dict[str, str] = {}
    for row in (*run.scores, *run.membership):
        if row.control != "none" or row.metric not in METRICS:
            continue
        measured = {f"{row.metric} [{row.unit}]": row.value, f"[{OBJECTIVE}]": row.objective}
        for metric, value in measured.items():
            place = f"{row.defense} | {row.attack} | {metric}"
            if value is not None:
                gathered.setdefault(place, []).append(value)
            elif row.value is None:
                statuses[place] = row.status
    for point in run.utility:
        place = f"{point.defense} | global model | {point.metric} [{point.metric}]"
        gathered.setdefault(place, []).append(point.value)
    means = {place: float(f"{fmean(some):.4g}") for place, some in gathered.items()}
    return dict(sorted((statuses | means).items()))


def moved(before: Values, now: Values) -> Values:
    """What is given now where it differs from what was, beyond the tolerance of its unit."""
    return {
        place: now.get(place, "nothing")
        for place, value in sorted(before.items())
        if not _alike(value, now.get(place, "nothing"), place)
    }


def _alike(before: float | str, now: float | str, place: str) -> bool:
    if isinstance(before, str) or isinstance(now, str):
        return before == now
    unit = place.rpartition("[")[2].rstrip("]")
    near = _RELATIVE.get(unit, 0.0) * max(abs(before), abs(now))
    return abs(before - now) <= max(near, TOLERANCE.get(unit, _SHARE))


def experiment_of(name: str) -> tuple[str, list[str]] | None:
    """The experiment that a result file's command runs first, and its ``--set`` options."""
    for experiment, rest in RUN.findall(read(name).command):
        if experiment in shipped():
            words = shlex.split(rest)
            return experiment, [value for word, value in pairwise(words) if word == "--set"]
    return None


def ask(chosen: Iterable[str], *, write: bool) -> Iterator[str]:
    """Run the probes of these results, one line each; keep what they gave.

    Args:
        chosen: result files.
        write: take what is given now as right, as for a result that was just made.
    """
    for name in chosen:
        known = probes()
        if (asked := experiment_of(name)) is None or not (write or name in known):
            continue
        try:
            now, seconds = measure(small(*asked))
        except FedsimError as error:
            yield f"{name}: {error}"
            continue
        if write:
            known[name] = Probe(date=date.today().isoformat(), seconds=seconds, values=now)
        else:
            known[name] = known[name].model_copy(update={"stale": moved(known[name].values, now)})
        keep(known)
        changes = (
            f"{place}: {known[name].values.get(place)} -> {value}"
            for place, value in known[name].stale.items()
        )
        yield "; ".join([f"{name}: {len(now)} values, {seconds} CPU s", *changes])


def states() -> list[State]:
    """The state of each result file."""
    known = probes()
    return [_state(name, known.get(name)) for name in names()]


def _state(name: str, probe: Probe | None) -> State:
    commit = read(name).commit
    if not exists(commit):
        return State(name, "not known" if shallow() else "lost", None)
    files = sorted(reached(name))
    touched = (
        _git("diff", "--name-only", commit, "HEAD", "--", *files).splitlines() if files else []
    )
    if probe and probe.stale:
        return State(name, "stale", len(touched))
    word = "probed" if probe else "touched"
    return State(name, word if touched else "untouched", len(touched))


def reached(name: str) -> set[str]:
    """Paths of the modules that made a result: of its attacks, or of its benchmark."""
    if asked := experiment_of(name):
        table = read_toml(shipped()[members(asked[0])[0]])
        modules = [ATTACKS[attack["name"]].__module__ for attack in table.get("attacks", [])]
        modules += _SCORING
    else:
        words = read(name).command.split()
        last = next((word for word in words if word.startswith("benchmarks")), "")
        modules = (
            [last if "." in last else f"benchmarks.bench_{words[words.index(last) + 1]}"]
            if last
            else []
        )
    graph = _imports()
    upstream = {
        m
        for module in modules
        if module in graph.modules
        for m in graph.find_upstream_modules(module)
    }
    return {_path(module) for module in upstream | set(modules)}


@cache
def _imports() -> grimp.ImportGraph:
    """Who imports whom, but for the registry of attacks, through which each would reach all."""
    graph = grimp.build_graph("attacks", "fedsim", "experiments", "clients", "server", "benchmarks")
    for attack in graph.find_modules_directly_imported_by("attacks"):
        graph.remove_import(importer="attacks", imported=attack)
    return graph


def _path(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def exists(commit: str) -> bool:
    """Whether the commit is among those that lead to this checkout's, so that a clone has it."""
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True).returncode == 0


def shallow() -> bool:
    """Whether this clone was cut off, so that it lacks old commits."""
    return _git("rev-parse", "--is-shallow-repository") == "true"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """List the states, or ask the probes; 1 if a result is stale or lost."""
    parser = argparse.ArgumentParser(prog="python -m docs.alive", description=__doc__)
    parser.add_argument("names", nargs="*", help="result files; all by default")
    parser.add_argument("--ask", action="store_true", help="run the probes and mark what is stale")
    parser.add_argument(
        "--write", action="store_true", help="write the probes of results just made"
    )
    asked = parser.parse_args(arguments)
    if asked.ask or asked.write:
        for line in ask(asked.names or names(), write=asked.write):
            print(line, flush=True)
    now = [state for state in states() if not asked.names or state.name in asked.names]
    for state in now:
        print(f"{state.name:36} {state.word:10} {'' if state.touched is None else state.touched}")
    counted = {
        word: sum(state.word == word for state in now)
        for word in dict.fromkeys(s.word for s in now)
    }
    print(", ".join(f"{count} {word}" for word, count in counted.items()))
    return int(any(state.word in ("stale", "lost") for state in now))


if __name__ == "__main__":
    sys.exit(main())
