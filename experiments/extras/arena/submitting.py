"""``fedsim submit``: the guesses of an attack, or of a file, at a bundle. No truth is read."""

import json
import resource
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from experiments.extras.arena.records import (
    BUNDLE,
    LABEL,
    SUBMISSION,
    OpenBundle,
    Rules,
    Submission,
)
from fedsim import __version__
from fedsim.api.calls import attack_captures, named_attack
from fedsim.config.build import explain, options_of
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.files import (
    copy_files,
    digest,
    hashes,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)
from fedsim.store.plain_files import digest_plain
from fedsim.store.tensor_files import read_state_dict
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows, Tensors
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


def read_answers(path: Path, task: Task) -> dict[str, Tensors]:
    """The guesses in a participant's file, by capture, to be put to ``check_answer``.

    A file has for each capture ``<capture>/inputs``, ``<capture>/labels`` and, for texts,
    ``<capture>/mask``, or ``<capture>/scores`` where membership is asked: ``.safetensors``,
    ``.npz`` or ``.pt``, none with pickles. A ``.json`` table of texts,
    ``{"round-0001-client-0000": ["..."]}``, is put through the track's tokenizer.

    Raises:
        ConfigError: the file holds something else.
        StoreError: it is missing or broken.
    """
    if path.suffix == ".json":
        return {name: _of_texts(name, texts, task) for name, texts in read_json(path).items()}
    by_capture: dict[str, Tensors] = defaultdict(dict)
    for name, tensor in read_state_dict(path).items():
        capture, _, part = name.rpartition("/")
        by_capture[capture][part] = tensor
    return {name: _completed(tensors) for name, tensors in by_capture.items()}


def _completed(tensors: Tensors) -> Tensors:
    """Labels and mask that were left out: no class is guessed, and every token counts."""
    inputs = tensors.get("inputs")
    if inputs is None or not inputs.dim():
        return tensors
    known = {"labels": torch.full((len(inputs),), -1)}
    if inputs.dim() == 2:
        known["mask"] = torch.ones_like(inputs)
    return {**known, **tensors}


def _of_texts(name: str, texts: object, task: Task) -> Tensors:
    if not isinstance(task, TextTask):
        raise ConfigError(f"{name}: a table of texts, and this track has images. Write arrays.")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name}: {json.dumps(texts)[:60]} is no list of texts. Write one.")
    if not texts:
        raise ConfigError(f"{name}: no guess. Leave the capture out.")
    numbers = tuple(range(len(texts)))
    batch = task.encode(Rows(tuple(texts), torch.zeros(len(texts), dtype=torch.int64), numbers))
    assert batch.mask is not None
    return {"inputs": batch.inputs, "mask": batch.mask, "labels": torch.full((len(texts),), -1)}


def _check_known(name: str, rules: Rules) -> None:
    if name not in rules.answers:
        raise ConfigError(
            f"{name!r}: no capture of this track. They are {next(iter(rules.answers))} and so on."
        )


def check_answer(name: str, tensors: Mapping[str, Tensor], rules: Rules, task: Task) -> Tensors:
    """The tensors of one capture's guesses if they obey the rules of the track.

    No more guesses than private rows: a list of candidates would be matched by its best.

    Raises:
        ConfigError: says what is wrong in one line.
    """
    _check_known(name, rules)
    parts = asked_parts(rules, task)
    if tensors.keys() != parts:
        raise ConfigError(
            f"{name}: holds {', '.join(sorted(tensors)) or 'nothing'}, and a guess of this track "
            f"is {', '.join(sorted(parts))}. Write these."
        )
    for part, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ConfigError(f"{name}/{part}: holds NaN or infinity. Guess finite numbers.")
    if rules.asked == "membership":
        return {"scores": _scores(name, tensors["scores"], rules.answers[name])}
    inputs, labels = tensors["inputs"], tensors["labels"]
    most = rules.answers[name]
    if not inputs.dim() or not 0 < len(inputs) <= most:
        count = len(inputs) if inputs.dim() else 0
        raise ConfigError(f"{name}: {count} guesses, and the track takes 1 to {most}. Choose.")
    shape = tuple(inputs.shape[1:])
    if "mask" in parts:
        inputs = _tokens(name, inputs, tensors["mask"], task)
    elif shape != task.spec.input_shape:
        raise ConfigError(f"{name}/inputs: of shape {shape}, not {task.spec.input_shape}.")
    checked = {"inputs": inputs if "mask" in parts else inputs.to(torch.float32), "labels": labels}
    if labels.dim() == 2 and labels.is_floating_point():  # how likely each class is
        checked["labels"] = labels = labels.argmax(1)
    if len(labels) != len(inputs) or labels.shape not in (inputs.shape[:1], inputs.shape):
        raise ConfigError(f"{name}/labels: {tuple(labels.shape)} for {len(inputs)} guesses.")
    return checked | ({"mask": tensors["mask"].to(torch.int64)} if "mask" in parts else {})


def asked_parts(rules: Rules, task: Task) -> set[str]:
    """Names of the tensors of a guess on a track."""
    if rules.asked == "membership":
        return {"scores"}
    return {"inputs", "labels", "mask"} if isinstance(task, TextTask) else {"inputs", "labels"}


def _scores(name: str, scores: Tensor, count: int) -> Tensor:
    if tuple(scores.shape) != (count,):
        raise ConfigError(
            f"{name}/scores: of shape {tuple(scores.shape)}, not ({count},): one a candidate."
        )
    return scores.to(torch.float32)


def _tokens(name: str, inputs: Tensor, mask: Tensor, task: Task) -> Tensor:
    """Token ids ``(guess, token)`` of the vocabulary, no longer than a text can be."""
    assert isinstance(task, TextTask)
    width, words = task.max_length, len(task.tokenizer)
    if inputs.dim() != 2 or inputs.shape[1] > width or mask.shape != inputs.shape:
        raise ConfigError(
            f"{name}: inputs {tuple(inputs.shape)} and mask {tuple(mask.shape)}, not both "
            f"(guess, token) of at most {width} tokens."
        )
    known = not inputs.is_floating_point() and inputs.numel() > 0
    if not known or int(inputs.min()) < 0 or int(inputs.max()) >= words:
        raise ConfigError(f"{name}/inputs: not ids of the {words} tokens of the track.")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ConfigError(f"{name}/mask: holds something beside 0 and 1.")
    return inputs.to(torch.int64)
