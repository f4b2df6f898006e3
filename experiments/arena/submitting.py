"""``fedsim submit``: the guesses of an attack, or of a file, at a bundle. No truth is read."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attacks import attacks_for
from attacks.scheduling.jobs import Demand, JobSpec, plan
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.serial import run_serial
from experiments.arena.answers import asked_parts, check_answer, read_answers
from experiments.arena.bundle import OpenBundle
from experiments.arena.records import BUNDLE, LABEL, SUBMISSION, Submission
from fedsim import __version__
from fedsim.build import build, options_of
from fedsim.errors import ConfigError
from fedsim.files import digest, load_tensors, read_bytes, save_tensors, write_bytes, write_json
from fedsim.manifest import hashes
from fedsim.plain_files import digest_plain
from fedsim.records import JobRecord
from fedsim.types import Tensors

_ATTACK_SEED = 0


def submit_attack(
    bundle: OpenBundle, table: Mapping[str, Any], out: Path, name: str = ""
) -> Submission:
    """Run an attack, built in or installed, on every capture, and measure its CPU time.

    Args:
        bundle: what is attacked.
        table: the attack's name and options.
        out: a new folder.
        name: on the board; the attack's own if empty.

    Raises:
        ConfigError: the attack does not exist, infers something else, or left no guess.
    """
    _check_new(out)
    attack = build(attacks_for(table), table, "--attack")
    rules = bundle.manifest.rules
    if attack.infers != rules.asked:
        raise ConfigError(
            f"--attack {table['name']}: it infers {attack.infers}, and the track asks for "
            f"{rules.asked}. Choose another attack."
        )
    demand = Demand(budget=60 * rules.cpu_minutes / len(rules.answers))
    with tempfile.TemporaryDirectory() as temporary:
        working, before = Path(temporary), _cpu()
        specs = plan(bundle.captures.root, working / "raw", LABEL, table, _ATTACK_SEED, demand)
        with Ledger(working / "jobs.sqlite") as ledger:
            records = run_serial(specs, ledger)
        seconds = _cpu() - before
        made = [record for record in records if record.sha256 is not None]
        guesses = {str(one.key): load_tensors(_path(specs[0], one), one.sha256) for one in made}
    if not guesses:
        raise ConfigError(f"--attack {table['name']}: left no guess. {_reason(records)}")
    parts = asked_parts(rules, bundle.task)
    return _write(
        bundle,
        out,
        {name: {part: one[part] for part in parts & one.keys()} for name, one in guesses.items()},
        name=name or str(table["name"]),
        options=options_of(attack),
        code=source_hash(type(attack)),
        cpu_seconds=seconds,
        measured=True,
    )


def submit_guesses(
    bundle: OpenBundle, path: Path, name: str, cpu_seconds: float, out: Path
) -> Submission:
    """Take the guesses of a file, made by whatever code, with the cost that its owner states.

    Raises:
        ConfigError: the guesses break the rules of the track.
        StoreError: the file is missing or broken.
    """
    _check_new(out)
    answers = read_answers(path, bundle.task)
    if not answers:
        raise ConfigError(f"{path}: holds no guess. Write at least one.")
    return _write(
        bundle,
        out,
        answers,
        name=name,
        options={},
        code=digest_plain(path),
        cpu_seconds=cpu_seconds,
        measured=False,
    )


def source_hash(cls: type) -> str:
    """SHA-256 over the Python files of the package that a class is from, or of its one file."""
    module = sys.modules[cls.__module__]
    top = sys.modules[cls.__module__.partition(".")[0]]
    root = Path(str(top.__file__))
    if root.name != "__init__.py":
        return digest_plain(Path(str(module.__file__)))
    files = sorted(root.parent.rglob("*.py"))
    names = [path.relative_to(root.parent).as_posix() for path in files]
    return digest(*(f"{n} {digest_plain(p)}\n".encode() for n, p in zip(names, files, strict=True)))


def _write(
    bundle: OpenBundle,
    out: Path,
    answers: Mapping[str, Tensors],
    **stated: Any,  # noqa: ANN401
) -> Submission:
    """Check every guess, then write them with the bundle's manifest."""
    rules, task = bundle.manifest.rules, bundle.task
    checked = {key: check_answer(key, one, rules, task) for key, one in answers.items()}
    made = Submission(
        fedsim=__version__, bundle=bundle.sha256, files={}, **stated
    )  # refuses a name before anything is written
    for key, tensors in checked.items():
        save_tensors(out / "guesses" / f"{key}.safetensors", tensors)
    write_bytes(out / BUNDLE, read_bytes(bundle.root / BUNDLE))
    made = made.model_copy(update={"files": hashes(out / "guesses")})
    write_json(out / SUBMISSION, made)
    return made


def _path(spec: JobSpec, record: JobRecord) -> Path:
    return spec.guess_path(record.key)


def _check_new(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out}: exists. Name a new folder.")


def _cpu() -> float:
    """User and system seconds of this process and of its children that have ended."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _reason(records: list[JobRecord]) -> str:
    return next((record.reason for record in records if record.reason), "")
