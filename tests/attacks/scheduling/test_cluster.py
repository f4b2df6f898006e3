"""Who reaches a Ray cluster, and what it answers to a stranger."""

import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest

from attacks.scheduling.cluster import authenticated, check_token, start_ray
from fedsim.errors import ConfigError

pytestmark = pytest.mark.ray
_LISTENS = "0A"
_CLIENT = """
import sys
from ray._raylet import GcsClient
try:
    client = GcsClient(address=sys.argv[1])
    functions = client.internal_kv_keys(b"", namespace=b"fun", timeout=5)
    print("read", len(functions), client.internal_kv_put(b"a", b"b", True, namespace=b"fun"))
except Exception as error:
    print(type(error).__name__)
"""
_METHODS = {
    "InternalKVGcsService": ["InternalKVGet", "InternalKVPut", "InternalKVKeys", "InternalKVDel"],
    "NodeInfoGcsService": ["CheckAlive", "GetAllNodeInfo", "DrainNode"],
    "JobInfoGcsService": ["AddJob", "GetAllJobInfo"],
    "ActorInfoGcsService": ["RegisterActor", "CreateActor", "KillActorViaGcs"],
    "NodeManagerService": ["RequestWorkerLease", "ShutdownRaylet", "DrainRaylet"],
    "ObjectManagerService": ["Push", "Pull"],
    "CoreWorkerService": ["PushTask", "KillActor", "CancelTask", "Exit"],
}


@pytest.fixture
def address(ray_cluster: None) -> str:
    """Of the suite's cluster, which holds a function and a worker that has called it."""
    import ray

    assert ray.get(ray.remote(lambda: os.getpid()).remote()) != os.getpid()
    found: str = ray.get_runtime_context().gcs_address
    return found


@pytest.mark.slow
def test_workers_are_as_nice_as_the_command(address: str) -> None:
    import ray

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert ray.get(ray.remote(niceness).remote()) == niceness()


def descendants(pid: int) -> Iterator[int]:
    """A process, its children and theirs."""
    yield pid
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                yield from descendants(int(folder.name))


def listening(pid: int) -> Iterator[tuple[str, str]]:
    """Name of the process and ``host:port`` for each TCP socket that it listens at."""
    with suppress(FileNotFoundError):  # it has ended
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        links = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # such as the one that lists this folder
                links.add(os.readlink(link))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in links:
                    words, _, port = fields[1].partition(":")
                    raw = b"".join(
                        bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8)
                    )
                    host = ip_address(raw)
                    plain = getattr(host, "ipv4_mapped", None) or host
                    yield name, f"{plain}:{int(port, 16)}"


def sockets() -> list[tuple[str, str]]:
    """Those of this process and of all that it has started."""
    return [pair for pid in descendants(os.getpid()) for pair in listening(pid)]


def ask(address: str, **environment: str) -> str:
    """What a process of its own, with nothing but this environment, is told by a cluster."""
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, address],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.stdout.strip() or done.stderr


def test_all_sockets_are_on_the_loopback_interface(address: str) -> None:
    found = sockets()
    assert {name for name, _ in found} >= {"gcs_server", "raylet"}
    assert address in {where for _, where in found}
    assert [pair for pair in found if not pair[1].startswith("127.0.0.1:")] == []


def test_an_open_socket_would_be_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert f"0.0.0.0:{server.getsockname()[1]}" in {where for _, where in sockets()}


def test_a_client_without_the_token_is_refused(address: str) -> None:
    assert ask(address) == "AuthenticationError"
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    assert ask(address, **wrong) == "AuthenticationError"
    right = wrong | {"RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
    assert re.fullmatch(r"read [1-9]\d* \d", ask(address, **right))


def test_no_process_of_a_cluster_serves_a_stranger(address: str) -> None:
    """Each method that reads or runs something is refused or unknown, at each of its ports."""
    import grpc

    refused = set()
    for _, where in sockets():
        with grpc.insecure_channel(where) as channel:
            for service, methods in _METHODS.items():
                for method in methods:
                    call = channel.unary_unary(f"/ray.rpc.{service}/{method}")
                    with pytest.raises(grpc.RpcError) as error:
                        call(b"", timeout=60)
                    if error.value.code() is grpc.StatusCode.UNAUTHENTICATED:
                        refused.add(method)
                    else:  # another process serves it, or the port is none of gRPC
                        assert error.value.code().name in ("UNIMPLEMENTED", "UNAVAILABLE")
    assert refused == {method for methods in _METHODS.values() for method in methods}


def test_the_token_is_in_no_file_and_no_command_line(address: str) -> None:
    import ray

    token = os.environ["RAY_AUTH_TOKEN"].encode()
    folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
    assert folder.stat().st_mode & 0o077 == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    lines = [Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid())]
    assert [path for path in [*files, *lines] if token in path.read_bytes()] == []
    users = Path.home() / ".ray" / "auth_token"  # Ray's own, if the user has one
    assert not users.exists() or token not in users.read_bytes()


def test_joining_needs_the_token(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = os.environ["RAY_AUTH_TOKEN"]
    check_token(address)
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with pytest.raises(ConfigError, match=r"^attack_stage.address: .* has another token\. Corr"):
        check_token(address)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^attack_stage.address: .* asks for a token\. Put it"):
        check_token(address)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    check_token(address)


def test_an_open_cluster_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacks.scheduling.cluster._answer", lambda _: "OK")
    with pytest.raises(ConfigError, match=r"at head:1 is open to everybody .*RAY_AUTH_MODE=token"):
        check_token("head:1")


def test_the_environment_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with authenticated("theirs"):
        assert (os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]) == ("token", "theirs")
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"
    assert "RAY_AUTH_MODE" not in os.environ


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"^attack_stage.address: no Ray cluster answers at .*:1"):
        start_ray("127.0.0.1:1")
