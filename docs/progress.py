"""Which shipped experiments have a result file at their size, and which are left."""

import re
from typing import NamedTuple

from docs.measured import HEADLINES, RESULTS, read
from experiments.plan.config import shipped
from fedsim.config.toml_source import read_toml

RUN = re.compile(r"fedsim (?:run|calibrate|seal) ([\w-]+)([^;]*)")


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


def rows() -> list[list[str]]:
    """Lines of the table of the page: the experiments that have no result file at their size."""
    now = progress()
    return [
        [f"`{name}`", ", ".join(f"`{file}`" for file in dict.fromkeys(now.smaller.get(name, [])))]
        for name in sorted(now.remaining)
    ]
