"""Ray nodes as processes of their own, which a test may kill as a machine dies."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_PATIENCE = 300.0


@dataclass
class Nodes:
    """A head and further nodes of one cluster on this machine.

    Attributes:
        address: of the head.
        logs: where Ray writes.
    """

    address: str
    logs: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def add(self, name: str, *options: str) -> None:
        """Start a node and wait until it is part of the cluster.

        Args:
            name: of the node.
            options: of ``ray start``.
        """
        code = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
        ray = [sys.executable, "-c", code, "start", "--block", "--num-gpus=0", *options]
        self.processes[name] = subprocess.Popen(
            [*ray, "--disable-usage-stats", "--object-store-memory=100000000"],
            stdout=(self.logs / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + _PATIENCE
        while b"Ray runtime started" not in (self.logs / f"{name}.log").read_bytes():
            assert self.processes[name].poll() is None, (self.logs / f"{name}.log").read_text()
            assert time.monotonic() < deadline, f"Ray's node {name!r} did not start"
            time.sleep(0.2)

    def pids(self, title: str, name: str = "") -> list[int]:
        """Processes of a node, or of all nodes, whose command line begins with ``title``."""
        groups = [one.pid for node, one in self.processes.items() if name in ("", node)]
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):  # it is no process, or has ended
                pid, line = int(folder.name), (folder / "cmdline").read_bytes().decode()
                if os.getsid(pid) in groups and Path(line.partition("\0")[0]).name.startswith(
                    title
                ):
                    found.append(pid)
        return sorted(found)

    def kill(self, name: str) -> None:
        """Kill all processes of a node at once."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def nodes(cpus: int) -> Iterator[Nodes]:
    """A cluster with a head of so many CPUs; all its nodes die at the end.

    Its token is in the environment of this process until then.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory() as folder,  # the names of sockets have to be short
    ):
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        made = Nodes(f"127.0.0.1:{(port := free_port())}", Path(folder))
        try:
            made.add(
                "head",
                "--head",
                f"--port={port}",
                f"--num-cpus={cpus}",
                "--include-dashboard=false",
                f"--temp-dir={folder}/ray",
            )
            yield made
        finally:
            for name in list(made.processes):
                made.kill(name)
