"""Ray's token authentication: a cluster neither tells nor runs anything without its token."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedsim.errors import ConfigError

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
        if not _loader().has_token(ignore_auth_mode=True):
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


def _loader() -> Any:  # noqa: ANN401
    return _raylet().AuthenticationTokenLoader.instance()


def _raylet() -> Any:  # noqa: ANN401
    """Ray's core, whose stub leaves most of it out."""
    from ray import _raylet

    return _raylet
