"""The Ray cluster that a run joins or starts."""

import logging
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from fedsim.config.named_code import environment
from fedsim.errors import ConfigError


def start_ray(
    address: str | None = None, cpus: int | None = None, gpus: int | None = None
) -> Callable[[], None]:
    """Join the cluster at ``address`` or start one here; return the function that stops it.

    A cluster started here listens on the loopback interface alone, asks for a token that only this
    process and its children have, and its workers are as nice to other programs as this process;
    one that is joined has to ask for a token, too. A Ray that
    this process already uses is used, and then not stopped. ``cpus`` and ``gpus`` are for a cluster
    started here; None counts the machine's own.
    """
    import ray

    if ray.is_initialized():
        return lambda: None
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with ExitStack() as stack:
        try:
            where = _join(address, stack) if address else _start(cpus, gpus, stack)
            stack.callback(ray.shutdown)
            ray.init(
                log_to_driver=False,
                job_config=_job(),
                logging_level=logging.ERROR,
                runtime_env={
                    "env_vars": {"PYTHONPATH": path, **environment()},
                    **_interpreter(address),
                },
                **where,
            )
        except ConfigError:
            raise
        except Exception as error:  # Ray raises anything from OSError to RuntimeError here
            fault = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
            raise ConfigError(
                f'ray: could not start ({fault}). Use engine = "in-process", or pass an address.'
            ) from None
        if callable(on_sigterm) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own dumps a stack of C++ and aborts
        return stack.pop_all().close


def _join(address: str, stack: ExitStack) -> dict[str, Any]:
    check_token(address)
    stack.enter_context(authenticated())
    return {"address": address}


def _start(cpus: int | None, gpus: int | None, stack: ExitStack) -> dict[str, Any]:
    """Ray's sockets, logs and spilled objects lie in a folder that nobody else can open."""
    folder = stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
    stack.enter_context(authenticated(secrets.token_hex(32)))
    stack.enter_context(_environment({_NICENESS: os.environ.get(_NICENESS, "0")}))
    stack.enter_context(_loopback())
    return {
        "address": "local",
        "num_cpus": cpus,
        "num_gpus": gpus,
        "include_dashboard": False,
        "_temp_dir": f"{folder}/0",  # which Ray opens to everybody; the one above stays closed
    }


@contextmanager
def _loopback() -> Iterator[None]:
    """Let a new cluster bind to 127.0.0.1, as Ray does by itself on macOS and Windows.

    Ray turns ``_node_ip_address="127.0.0.1"`` back into the address of the network.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _job() -> Any:  # noqa: ANN401
    """A job whose workers do not import from the working directory, which may be a stranger's.

    Ray puts that folder before the installed packages, unless a job brings a folder of its own.
    """
    from ray.job_config import JobConfig

    job = JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    return job


def _interpreter(address: str | None) -> dict[str, str]:
    """The interpreter of local workers; Ray names it in a shell, which would split it at spaces."""
    quoted = shlex.quote(sys.executable)
    return {"py_executable": quoted} if address is None and quoted != sys.executable else {}


_NICENESS = "RAY_worker_niceness"
"""What workers add to the raylet's niceness; with Ray's 15 they wait for every other program."""
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call that every cluster answers and that changes nothing."""
_PATIENCE = 5.0
"""Seconds for an answer of a cluster; Ray itself would try for minutes."""


@contextmanager
def authenticated(token: str | None = None) -> Iterator[None]:
    """Let this process and its children show a token in every call to Ray, until the end.

    Args:
        token: of the cluster; None for what RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH or
            ``~/.ray/auth_token`` holds. A given one is in the environment alone, and in no file.
    """
    values = {"RAY_AUTH_MODE": "token"} | ({} if token is None else {"RAY_AUTH_TOKEN": token})
    with _environment(values):
        yield


def check_token(address: str) -> None:
    """Raise ``ConfigError`` unless the cluster refuses who has no token, and takes ours.

    Args:
        address: ``host:port``.
    """
    with _environment({"RAY_AUTH_MODE": "disabled"}):
        answer = _answer(address)
    if answer == "OK":
        raise ConfigError(
            f"attack_stage.address: the Ray cluster at {address} is open to everybody who reaches "
            "it. Start its nodes with RAY_AUTH_MODE=token."
        )
    if answer != "UNAUTHENTICATED":
        raise ConfigError(
            f"attack_stage.address: no Ray cluster answers at {address} ({answer}). "
            "Start one there, or leave the address out to start one here."
        )
    with authenticated():
        if not _has_token():
            raise ConfigError(
                f"attack_stage.address: the Ray cluster at {address} asks for a token. "
                "Put it into RAY_AUTH_TOKEN or ~/.ray/auth_token."
            )
        if _answer(address) != "OK":
            raise ConfigError(
                f"attack_stage.address: the Ray cluster at {address} has another token. "
                "Correct RAY_AUTH_TOKEN or ~/.ray/auth_token."
            )


def _answer(address: str) -> str:
    """``OK``, or gRPC's name of the failure."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel

    channel = init_grpc_channel(address)
    try:
        channel.unary_unary(_ALIVE)(b"", timeout=_PATIENCE)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        channel.close()
    return "OK"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that Ray reads once, let it read them now, and undo both at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    _loader().reset_cache()
    _raylet().Config.initialize("")


def _has_token() -> bool:
    from ray.exceptions import AuthenticationError

    try:
        return bool(_loader().has_token())
    except AuthenticationError:  # since Ray 2.53; before, the answer is no
        return False


def _loader() -> Any:  # noqa: ANN401
    return _raylet().AuthenticationTokenLoader.instance()


def _raylet() -> Any:  # noqa: ANN401
    """Ray's core, whose stub leaves most of it out."""
    from ray import _raylet

    return _raylet
