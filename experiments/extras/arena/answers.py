"""Guesses as participants hand them in, held to the track's rules before anything reads them.

A file has for each capture ``<capture>/inputs``, ``<capture>/labels`` and, for texts,
``<capture>/mask``, or ``<capture>/scores`` where membership is asked: ``.safetensors``, ``.npz`` or
``.pt``, none with pickles. A ``.json`` table of texts, ``{"round-0001-client-0000": ["..."]}``, is
put through the track's tokenizer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from experiments.extras.arena.records import Rules
from fedsim.errors import ConfigError
from fedsim.store.files import read_json
from fedsim.store.tensor_files import read_state_dict
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows, Tensors


def read_answers(path: Path, task: Task) -> dict[str, Tensors]:
    """The guesses in a participant's file, by capture, to be put to ``check_answer``.

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
