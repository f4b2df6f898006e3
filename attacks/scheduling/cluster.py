"""The Ray cluster that a run joins or starts."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable

from fedsim.errors import ConfigError


def start_ray(
    address: str | None = None, cpus: int | None = None, gpus: int | None = None
) -> Callable[[], None]:
    """Join the cluster at ``address`` or start one here; return the function that stops it.

    A Ray that this process already uses is used, and then not stopped. ``cpus`` and ``gpus`` are
    for a cluster started here; None counts the machine's own.
    """
    import ray

    if ray.is_initialized():
        return lambda: None
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    local = {"num_cpus": cpus, "num_gpus": gpus, "include_dashboard": False}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None:
            _knock(address)
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": path}, **_interpreter(address)},
            **(local | {"address": "local"} if address is None else {"address": address}),
        )
    except Exception as error:  # Ray raises anything from OSError to RuntimeError here
        ray.shutdown()
        fault = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise ConfigError(
            f'ray: could not start ({fault}). Use engine = "in-process", or pass an address.'
        ) from None
    if callable(on_sigterm) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own dumps a stack of C++ and aborts
    return lambda: ray.shutdown()


def _interpreter(address: str | None) -> dict[str, str]:
    """The interpreter of local workers; Ray names it in a shell, which would split it at spaces."""
    quoted = shlex.quote(sys.executable)
    return {"py_executable": quoted} if address is None and quoted != sys.executable else {}


def _knock(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.split("//")[-1], int(port)), timeout=5).close()
