"""Where torch computes, and how exactly."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator

import torch

from fedsim.threads import exclusive

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""Read when a process first multiplies on a GPU: without it, cuBLAS adds in any order."""


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
