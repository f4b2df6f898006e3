"""Whether a change moved a guess: ``python -m benchmarks.frozen --against main [--only span]``.

The experiments of ``frozen.toml`` run at this checkout and at a commit, on this machine, since sums
of floats differ between processors. Compared are the hashes of captures, truths, guesses and
records without their clocks, and the cells of the report's tables. What a state of the files gave
is kept below the user's cache, so that it is run once. New files count once git knows them.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w

from fedsim.visible import say

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = Path(__file__).with_name("frozen.toml")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedsim-frozen"
Values: TypeAlias = dict[str, str]
"""What was made, by its place -> a hash or the words of a cell."""

_UNCOMPARED = {"seal", "seconds", "peak_bytes", "attack", "trace", "seconds per job"}
"""Clocks, memory and labels, which a change of a default renames; the guess has its own hash."""
_LABEL = re.compile(r"(-[0-9a-f]{6}|\.[0-9a-f]{8})$")
"""Hash of the options in the name of an attack's folder, or of the config in that of a cell's."""


def experiments(only: Iterable[str], known: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The tables of ``frozen.toml`` with those attacks that both sides know.

    Args:
        only: names of attacks or of experiments; all if there are none.
        known: attacks that both sides have.
    """
    chosen, both = set(only), set(known)
    tables = tomllib.loads(EXPERIMENTS.read_text(encoding="utf-8"))
    for name, table in tables.items():
        wanted = both if not chosen or name in chosen else both & chosen
        table["name"] = name
        table["federation"]["engine"] = "in-process"
        table["attacks"] = [attack for attack in table["attacks"] if attack["name"] in wanted]
    return {name: table for name, table in tables.items() if table["attacks"]}


def values(run: Path) -> Values:
    """What a finished run made, by place: ``none/guesses/span/round-0001-client-0000.json``."""
    made: Values = {}
    for cell in sorted(path.parent for path in run.glob("*/cell.json")):
        defense = _LABEL.sub("", cell.name).partition(".")[2]
        for path in sorted(cell.glob("*/**/*")):
            if path.is_file():
                inner = path.relative_to(cell)
                place = "/".join(_LABEL.sub("", part) for part in inner.parts[:-1])
                made[f"{defense}/{place}/{inner.name}"] = digest(path)
    for path in sorted((run / "report" / "tables").glob("*.csv")):
        made |= {f"{path.name}/{place}": cell for place, cell in _cells(path)}
    return made


def digest(path: Path) -> str:
    """Hash of a file; of JSON, without clocks, memory and labels."""
    content = path.read_bytes()
    if path.suffix == ".json":
        content = json.dumps(_compared(json.loads(content)), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _compared(value: object) -> object:
    if isinstance(value, dict):
        return {key: _compared(inner) for key, inner in value.items() if key not in _UNCOMPARED}
    return [_compared(inner) for inner in value] if isinstance(value, list) else value


def _cells(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            for column, cell in row.items():
                if column not in _UNCOMPARED or column == "attack":
                    yield f"{number}/{column}", cell


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """One line for each place that is missing on a side or differs."""
    changed: list[str] = []
    for place in sorted(before.keys() | after.keys()):
        old, new = before.get(place, "nothing"), after.get(place, "nothing")
        if old != new:
            changed.append(f"{place}: {old[:40]} -> {new[:40]}")
    return changed


class Side:
    """A state of the project in which experiments run, with this interpreter."""

    def __init__(self, commit: str, folder: Path) -> None:
        """Check the commit out into a folder that does not exist."""
        self.folder = folder
        self.tree = _git("rev-parse", "--verify", f"{commit}^{{tree}}")
        _git("worktree", "add", "--detach", str(folder), commit)

    def remove(self) -> None:
        """Forget the folder."""
        _git("worktree", "remove", "--force", str(self.folder))

    def attacks(self) -> set[str]:
        """Names of the built-in attacks."""
        program = "from attacks import ATTACKS; print(*ATTACKS)"
        return set(self._python("-c", program).stdout.split())

    def values(self, table: Mapping[str, Any]) -> Values:
        """What an experiment makes here, or once made."""
        text = tomli_w.dumps(table)
        machine = f"{platform.machine()} {platform.node()} {sys.version}"
        key = hashlib.sha256(f"{machine} {text}".encode()).hexdigest()
        kept = CACHE / self.tree / f"{key}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(self._run(text)), encoding="utf-8")
        return dict(json.loads(kept.read_text(encoding="utf-8")))

    def _run(self, text: str) -> Values:
        with tempfile.TemporaryDirectory() as folder:
            file, run = Path(folder, "frozen.toml"), Path(folder, "run")
            file.write_text(text, encoding="utf-8")
            self._python("-m", "fedsim", "run", str(file), "--out", str(run), "--quiet")
            return values(run)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, **threads, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1):  # 1: some jobs have failed, which is compared
            sys.exit(f"{self.folder}: {' '.join(arguments)} failed.\n{done.stdout}{done.stderr}")
        return done


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def sides(*commits: str) -> Iterator[list[Side]]:
    """A checkout of each commit, for a while."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        opened: list[Side] = []
        for number, commit in enumerate(commits):
            opened.append(Side(commit, Path(folder, str(number))))
            stack.callback(opened[-1].remove)
        yield opened


def compare(against: str, only: list[str]) -> list[str]:
    """The differences between a commit and this checkout as it is, printed by experiment."""
    changed: list[str] = []
    now = _git("stash", "create") or "HEAD"
    with sides(against, now) as (before, after):
        known = before.attacks(), after.attacks()
        say(f"attacks of one side alone: {', '.join(sorted(known[0] ^ known[1])) or 'none'}")
        for name, table in experiments(only, known[0] & known[1]).items():
            values = before.values(table)
            lines = differences(values, after.values(table))
            say(
                "\n".join([f"{name}: {len(values)} values, {len(lines)} differ", *lines]),
                flush=True,
            )
            changed += lines
    return changed


def main() -> None:
    """Print what differs, and end with 1 if anything does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frozen", description=__doc__)
    parser.add_argument("--against", default="main", help="commit of the other side")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks or experiments")
    chosen = parser.parse_args()
    changed = compare(chosen.against, chosen.only)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"{len(changed)} differ; {used.ru_utime + used.ru_stime:.0f} CPU seconds")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
