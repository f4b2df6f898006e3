"""The settings of a process that code of others may change: torch's, Python's and its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from fedsim.threads import exclusive

_MODULES = (
    torch,
    torch.autograd,
    torch.linalg,
    torch.nn,
    torch.nn.functional,
    torch.nn.init,
    torch.optim,
)
_PLACES: tuple[Any, ...] = (
    *_MODULES,
    torch.Tensor,
    *{
        value
        for module in (torch.nn, torch.optim)
        for value in vars(module).values()
        if isinstance(value, type)
    },
)
"""Where the functions lie that attacks and tasks call, and that a library may replace."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)


@exclusive
def unchanged() -> Iterator[None]:
    """Put back at the end whatever was changed in between; random generators are ``seeded``'s.

    What it cannot see is memory: an object that was changed in place stays changed.
    """
    before = [(write, read, read()) for read, write in _SETTINGS]
    functions = [(place, dict(vars(place))) for place in _PLACES]
    try:
        yield
    finally:
        for write, read, value in before:
            if read() != value:
                write(value)
        for place, names in functions:
            _restore(place, names)


@exclusive
def poisoned() -> Iterator[None]:
    """Fill fresh memory with NaN, so that a weight shows that nothing has written.

    The public way to torch's deterministic algorithms, which this needs, imports its compiler.
    """
    order, fills = _order(), torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(order[0], warn_only=order[1])
        torch._C._set_deterministic_fill_uninitialized_memory(fills)


def _restore(place: Any, names: dict[str, Any]) -> None:  # noqa: ANN401
    now = vars(place)
    for name, value in names.items():
        if now.get(name) is not value and callable(value):
            setattr(place, name, value)
    if isinstance(place, type):  # an added method hides one that is inherited
        for name in now.keys() - names.keys():
            if callable(now[name]) or not name.startswith("__"):  # Python adds __annotations__
                delattr(place, name)


def _device() -> torch.device:
    return torch.get_default_device()


def _set_device(device: torch.device) -> None:
    # None, and not "cpu", is the state without a default, which costs nothing at each call.
    torch.set_default_device(None if device.type == "cpu" else device)


def _order() -> tuple[bool, bool]:
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warned


def _set_order(order: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(order[0], warn_only=order[1])


def _precision() -> str:
    """Of products of float32, which "medium" takes in bfloat16 on some CPUs; empty if mixed."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it is not the same for all backends
        return ""


def _set_precision(precision: str) -> None:
    if precision:
        torch.set_float32_matmul_precision(precision)


def _backends() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    exact = cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, *exact


def _set_backends(flags: tuple[bool, ...]) -> None:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags[:3]
    cudnn.allow_tf32, products.allow_tf32 = flags[3:]


def _flushes() -> bool:
    """Whether this thread takes the smallest numbers for 0."""
    return sys.float_info.min / 2 == 0.0


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def _set_folder(folder: str) -> None:
    with suppress(FileNotFoundError):
        os.chdir(folder)


def _mask() -> int:
    """Linux tells it; elsewhere it has to be set to be read, which for a moment closes files."""
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line[6:], 8) for line in status if line.startswith("Umask:"))
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]


def _handlers() -> dict[signal.Signals, Any]:
    """Empty outside the main thread, which alone may change them."""
    alone = threading.current_thread() is threading.main_thread()
    return {name: signal.getsignal(name) for name in _SIGNALS} if alone else {}


def _set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for name, handler in handlers.items():
        if handler is not None:  # it was not set by Python
            signal.signal(name, handler)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (_device, _set_device),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (_order, _set_order),
    (_precision, _set_precision),
    (_backends, _set_backends),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (_flushes, torch.set_flush_denormal),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (_folder, _set_folder),
    (_mask, os.umask),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(warnings.filters), _set_filters),
    (_handlers, _set_handlers),
)
"""How each setting is read and written; it is written only if it differs, as that may cost."""
