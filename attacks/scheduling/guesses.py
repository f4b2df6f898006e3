"""Whether what an attack returned is a guess that can be compared with private examples."""

import torch
from torch import Tensor

from attacks.base import Reconstruction
from fedsim.tasks.base import Task
from fedsim.types import Batch

_MOST_WORDS = 1 << 31
"""Of a network that does not say how many it knows; no tokenizer reads an id of 64 bits."""


class Malformed(ValueError):
    """An attack returned something else than a guess of its task."""


def as_guess(returned: object, task: Task, infers: str) -> Reconstruction:
    """The guess.

    Args:
        returned: by an attack, which may be anybody's.
        task: what the guess is about.
        infers: as ``Attack.infers``; guesses of anything but rows hold no examples.

    Raises:
        Malformed: types, shapes or lengths are not those that ``Reconstruction`` describes.
    """
    _require(isinstance(returned, Reconstruction), f"{_kind(returned)} in place of a guess")
    assert isinstance(returned, Reconstruction)
    if infers == "rows":
        _check_batch(returned.guess, task)
        named = returned.confidence
        count = len(returned.guess)
        _require(
            named is None or len(named) == count, f"a confidence of another length than {count}"
        )
    else:
        scores = _tensor(returned.scores, "scores")
        _require(scores.dim() == 1, f"scores of the shape {_shape(scores)}, not of one dimension")
    return returned


def _check_batch(guess: object, task: Task) -> None:
    _require(isinstance(guess, Batch), f"{_kind(guess)} in place of a batch")
    assert isinstance(guess, Batch)
    inputs, labels = _tensor(guess.inputs, "inputs"), _tensor(guess.labels, "labels")
    if task.modality == "image":
        shape = task.spec.input_shape
        _require(inputs.is_floating_point(), f"inputs of {inputs.dtype}, which are no fractions")
        _require(
            inputs.dim() == len(shape) + 1 and inputs.shape[1:] == shape,
            f"images of the shape {tuple(inputs.shape[1:])}, and the task's have {shape}",
        )
    else:
        mask = _tensor(guess.mask, "mask")
        _require(inputs.dtype == torch.int64, f"inputs of {inputs.dtype}, which are no token ids")
        _require(inputs.dim() == 2, f"inputs of the shape {_shape(inputs)}, not (batch, token)")
        _require(mask.shape == inputs.shape, f"a mask of the shape {_shape(mask)}")
        types = inputs if guess.types is None else _tensor(guess.types, "types of tokens")
        like = types.shape == inputs.shape and types.dtype == torch.int64
        _require(like, f"types of tokens of {types.dtype}, shape {_shape(types)}")
        words = task.spec.architecture.get("vocab_size", _MOST_WORDS)
        known = bool(((inputs >= 0) & (inputs < words)).all())
        _require(known, f"a token id that is none of {words}")
    _require(labels.dim() > 0 and len(labels) == len(inputs), "labels of another number")
    if task.spec.target == "class" and task.spec.num_classes:
        _check_classes(labels, task.spec.num_classes)


def _check_classes(labels: Tensor, number: int) -> None:
    if labels.is_floating_point():
        soft = labels.dim() == 2 and labels.shape[1] == number
        _require(soft, f"soft labels of the shape {_shape(labels)}, not (batch, {number})")
        return
    whole = labels.dim() == 1 and labels.dtype == torch.int64
    _require(whole, f"labels of {labels.dtype}, shape {_shape(labels)}, which are no classes")
    known = bool(((labels >= -1) & (labels < number)).all())
    _require(known, f"a class that is none of {number}")


def _tensor(value: object, name: str) -> Tensor:
    _require(isinstance(value, Tensor), f"{name} that are {_kind(value)}")
    assert isinstance(value, Tensor)
    plain = value.layout is torch.strided and value.device.type != "meta"
    _require(plain, f"{name} without plain values ({value.layout} on {value.device.type})")
    return value


def _require(fits: bool, wrong: str) -> None:
    if not fits:
        raise Malformed(f"the attack returned {wrong}")


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
