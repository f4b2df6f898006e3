"""``fedsim submit``: the guesses of an attack, or of a file, at a bundle. No truth is read."""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.extras.arena.answers import asked_parts, check_answer, read_answers
from experiments.extras.arena.records import BUNDLE, LABEL, SUBMISSION, OpenBundle, Submission
from fedsim import __version__
from fedsim.api.calls import attack_captures, named_attack
from fedsim.config.build import explain, options_of
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.files import copy_files, digest, hashes, load_tensors, save_tensors, write_json
from fedsim.store.plain_files import digest_plain
from fedsim.types import Tensors
from fedsim.visible import say

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
    attack = named_attack(table, "--attack")
    rules = bundle.manifest.rules
    if attack.infers != rules.asked:
        raise ConfigError(
            f"--attack {table['name']}: it infers {attack.infers}, and the track asks for "
            f"{rules.asked}. Choose another attack."
        )
    share = 60 * rules.cpu_minutes / len(rules.answers)
    with tempfile.TemporaryDirectory() as temporary:
        raw, before, store = Path(temporary) / "raw", _cpu(), bundle.captures.root
        records = attack_captures(store, raw, LABEL, table, _ATTACK_SEED, share)
        seconds = _cpu() - before
        answers = {str(record.key): _answer(raw, record, bundle) for record in records}
    guesses = {key: answer for key, answer in answers.items() if not isinstance(answer, str)}
    lost = [f"{key}: {answer}" for key, answer in answers.items() if isinstance(answer, str)]
    if not guesses:
        raise ConfigError(f"--attack {table['name']}: left no guess. {lost[0]}")
    for line in lost:
        say(f"fedsim: {line}; it counts as a blank guess", error=True)
    return _write(
        bundle,
        out,
        guesses,
        name=name or str(table["name"]),
        options=options_of(attack),
        code=source_hash(type(attack)),
        cpu_seconds=seconds,
        measured=True,
    )


def _answer(raw: Path, record: JobRecord, bundle: OpenBundle) -> Tensors | str:
    """What a job left of one capture, or why it does not count.

    Of more guesses than there are rows the first count, as an attack knows which are the best.
    """
    if record.sha256 is None:
        return record.reason or record.status
    rules, name = bundle.manifest.rules, str(record.key)
    tensors = load_tensors(raw / LABEL / f"{name}.safetensors", record.sha256)
    most = rules.answers[name]
    cut = {part: tensors[part][:most] for part in asked_parts(rules, bundle.task) & tensors.keys()}
    try:
        return check_answer(name, cut, rules, bundle.task)
    except ConfigError as error:
        return str(error)


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
    """Check every guess, then write them with the bundle's manifest: all of it, or nothing."""
    rules, task = bundle.manifest.rules, bundle.task
    checked = {key: check_answer(key, answer, rules, task) for key, answer in answers.items()}
    try:  # before anything is written
        submission = Submission(fedsim=__version__, bundle=bundle.sha256, files={}, **stated)
    except ValidationError as error:
        raise ConfigError(explain(error, "submit")) from None
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a command that was stopped
    for key, tensors in checked.items():
        save_tensors(part / "guesses" / f"{key}.safetensors", tensors)
    copy_files(bundle.root / BUNDLE, part / BUNDLE)
    submission = submission.model_copy(update={"files": hashes(part / "guesses")})
    write_json(part / SUBMISSION, submission)
    part.rename(out)
    return submission


def _check_new(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out}: exists. Name a new folder.")


def _cpu() -> float:
    """User and system seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
