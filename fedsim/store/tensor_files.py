"""State dicts of other frameworks in files that may be anybody's: read without running them."""

import io
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.process import PROCESS
from fedsim.store.plain_files import SUFFIXES, memory, read_plain
from fedsim.types import Tensors

_INSIDE = ("model", "state_dict", "model_state_dict", "weights")
"""Entries of a checkpoint that hold the state dict, in the order in which they are looked for."""


def read_state_dict(path: Path) -> Tensors:
    """The tensors of a file by name; half-precision and whole numbers stay as they are.

    A file of torch is read with ``weights_only``, one of numpy without pickles; of a checkpoint
    that holds more, the state dict below ``model``, ``state_dict``, ``model_state_dict`` or
    ``weights`` is taken.

    Raises:
        ConfigError: the file is cut, holds something else than tensors or is larger than it says.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: no file of tensors. fedsim reads {', '.join(SUFFIXES)}.")
    try:
        content = read_plain(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            return load(content)
        if content[:2] == b"PK":
            _check_archive(path, content)
        loaded = _numpy(content) if path.suffix == ".npz" else _torch(content)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file is missing. Restore it.") from None
    except Exception as error:  # the libraries raise anything for a spoilt file
        if type(error).__name__ == "UnpicklingError":
            raise ConfigError(
                f"{path}: holds a pickle of more than tensors, which could run code. Save the "
                "state dict alone: torch.save(model.state_dict(), path)."
            ) from None
        fault = " ".join(str(error).split())[:120] or type(error).__name__
        raise ConfigError(f"{path}: cannot be read ({fault}). Write it again.") from None
    return _plain(path, loaded)


def packed_tensors(content: bytes) -> Tensors:
    """Tensors in bytes of an .npy, .npz, .safetensors or torch file; empty if they are none."""
    from safetensors.torch import load

    for read in (load, _array, _numpy, _torch):
        with suppress(Exception):  # the libraries raise anything for bytes of another kind
            if content[:2] == b"PK":
                _check_archive(Path("bytes"), content)
            return _plain(Path("bytes"), read(content))
    return {}


def _array(content: bytes) -> object:
    return {"": torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))}


def _numpy(content: bytes) -> object:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: torch.from_numpy(np.array(archive[name])) for name in archive.files}


def _torch(content: bytes) -> object:
    with PROCESS, warnings.catch_warnings(action="ignore"):  # of what is then refused
        loaded: object = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    while isinstance(loaded, Mapping) and not any(isinstance(v, Tensor) for v in loaded.values()):
        inside = [loaded[name] for name in _INSIDE if isinstance(loaded.get(name), Mapping)]
        if not inside:
            break
        loaded = inside[0]
    return loaded


def _check_archive(path: Path, content: bytes) -> None:
    """Refuse what unpacks to more than the memory holds."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > memory():
        raise ConfigError(
            f"{path}: unpacks to {size / 1e9:.3g} GB, more than fits. Write it again."
        )


def _plain(path: Path, loaded: object) -> Tensors:
    """Named dense tensors, each with its own memory."""
    if not isinstance(loaded, Mapping) or not loaded:
        raise ConfigError(
            f"{path}: holds {type(loaded).__name__}, and no state dict. Save model.state_dict()."
        )
    tensors: Tensors = {}
    for name, value in loaded.items():
        dense = isinstance(value, Tensor) and value.layout == torch.strided
        if not isinstance(name, str) or not dense or value.is_quantized or value.is_meta:
            raise ConfigError(
                f"{path}: its entry {str(name)[:80]!r} is no dense tensor. Save model.state_dict()."
            )
        if value.numel() * value.itemsize > value.untyped_storage().nbytes():
            raise ConfigError(
                f"{path}: its entry {name[:80]!r} is larger than its data. Write it again."
            )
        tensors[name] = value.detach().clone()
    return tensors
