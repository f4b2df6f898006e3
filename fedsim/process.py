"""Switches and settings of the whole process, of which one thread at a time may turn one."""

import hashlib
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec

import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""Read when a process first multiplies on a GPU: without it, cuBLAS adds in any order."""

P = ParamSpec("P")
PROCESS = threading.RLock()
"""Held by the thread that has turned a switch of the whole process, until it is turned back.

The global random generators, numbers of threads and the flags of backends are no thread's own: of
two threads that turn one, the second puts back for good what the first had set for a while.
"""


def exclusive(turned: Callable[P, Iterator[None]]) -> Callable[P, AbstractContextManager[None]]:
    """As ``contextmanager``, for what turns a switch of the process: other threads wait."""

    @contextmanager
    @wraps(turned)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        with PROCESS:
            yield from turned(*args, **kwargs)

    return alone


@exclusive
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that sums are taken in the same order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_for(gpus: float) -> torch.device:
    """The GPU of a process that has a share of one, or the CPU where there is none.

    Without an index, as memory statistics of ``cuda:0`` need a context that does not exist yet.
    """
    return torch.device("cuda" if gpus > 0 and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """``cpu``, or what the maker calls the GPU."""
    return device.type if device.type != "cuda" else torch.cuda.get_device_name(device)


@exclusive
def float32(*, tf32: bool) -> Iterator[None]:
    """Multiply float32 as such on GPUs, where torch convolves in TF32 (10 bits) by default.

    A gradient with that error certifies nothing, and its client looks safer than it is. Sums are
    taken in the same order each time, but for the few kernels that torch then warns about.

    Args:
        tf32: multiply and convolve in TF32 after all, which is faster.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = tf32
    ordered = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    on_gpu = torch.cuda.is_available()  # without one, torch would import its compiler for nothing
    if on_gpu:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        if on_gpu:
            torch.use_deterministic_algorithms(ordered, warn_only=warned)
        products.allow_tf32, convolutions.allow_tf32 = before


def machine() -> str:
    """This machine in six digits, the same for each of its processes; never its name."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


@exclusive
def unchanged() -> Iterator[None]:
    """Put back at the end the settings that a library may change; generators are ``seeded``'s.

    What it does not see: functions of torch that were replaced, objects changed in place,
    the mask of new files and the handlers of signals.
    """
    before = [(write, read, read()) for read, write in _SETTINGS]
    try:
        yield
    finally:
        for write, read, value in before:
            if read() != value:
                write(value)


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


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]


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
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(warnings.filters), _set_filters),
)
"""How each setting is read and written; it is written only if it differs, as that may cost."""
