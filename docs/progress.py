"""Which shipped experiments have a result file at their size, and which are left."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tomli_w

from docs.measured import HEADLINES, RESULTS, read
from experiments.plan.config import shipped
from experiments.wording.names import duration
from fedsim.files import write_bytes
from fedsim.toml_source import read_toml

ESTIMATES = RESULTS / "estimates.toml"
RUN = re.compile(r"fedsim (?:run|calibrate|seal) ([\w-]+)([^;]*)")


class CpuTime(NamedTuple):
    """CPU time of an experiment.

    Attributes:
        at_most: whether an attack of unknown cost counts with its whole time budget.
    """

    seconds: float
    at_most: bool

    def text(self) -> str:
        """As a reader wants it."""
        return f"{'at most ' * self.at_most}{duration(self.seconds)}"


class ExperimentProgress(NamedTuple):
    """Names of experiments; a suite stands for its members.

    Attributes:
        done: experiment -> the result files that hold it at its size.
        smaller: experiment -> the result files of a command that changes it with ``--set``.
        remaining: experiments that no file holds at their size.
    """

    done: dict[str, list[str]]
    smaller: dict[str, list[str]]
    remaining: list[str]


def members(name: str) -> list[str]:
    """The experiments of a suite; the experiment alone if it is none."""
    names: list[str] = read_toml(shipped()[name]).get("suite", [name])
    return names


def progress() -> ExperimentProgress:
    """How far the shipped experiments are, by the commands of the result files."""
    done: dict[str, list[str]] = {}
    smaller: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem == HEADLINES:
            continue
        for name, options in RUN.findall(read(path.stem).command):
            kind = smaller if "--set" in options or "--seed" in options else done
            for member in members(name) if name in shipped() else ():
                kind.setdefault(member, []).append(path.stem)
    alone = [name for name in shipped() if members(name) == [name]]
    return ExperimentProgress(done, smaller, [name for name in alone if name not in done])


def needs(name: str) -> list[str]:
    """The shipped experiments whose trained weights this one starts from."""
    table = read_toml(shipped()[name])
    named = [
        table.get("task", {}).get("weights", ""),
        *table.get("sweep", {}).get("task.weights", []),
    ]
    runs = (re.fullmatch(r"runs/([\w-]+)(?:/.+)?@\d+", command) for command in named)
    return list(dict.fromkeys(run[1] for run in runs if run))


def estimates() -> dict[str, CpuTime]:
    """CPU times that ``fedsim show`` expects, as far as it was asked."""
    if not ESTIMATES.exists():
        return {}
    table = tomllib.loads(ESTIMATES.read_text(encoding="utf-8"))
    return {name: CpuTime(**fields) for name, fields in table.items()}


def keep_estimates(by_name: Mapping[str, CpuTime]) -> None:
    """Write them, by name."""
    table = {name: by_name[name]._asdict() for name in sorted(by_name)}
    write_bytes(ESTIMATES, tomli_w.dumps(table).encode())


def cheapest_first(names: Iterable[str]) -> list[str]:
    """By expected CPU time, the unknown last."""
    known = estimates()
    return sorted(set(names), key=lambda name: (name not in known, known.get(name), name))


def rows() -> list[list[str]]:
    """Lines of the table of the page: the experiments that have no result file at their size."""
    now, known = progress(), estimates()
    remaining = []
    for name in cheapest_first(now.remaining):
        expected = known[name].text() if name in known else ""
        part = ", ".join(f"`{file}`" for file in now.smaller.get(name, []))
        remaining.append([f"`{name}`", expected, part])
    return remaining
