"""Flower's own runtime: ``flwr run .`` gives the captures of the in-process engine, bit for bit."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.cases import TEXT, Make, files_of, simulate

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def stop_superlink(home: Path) -> None:
    """Kill the daemon that ``flwr run`` left behind: the one that works in ``home``."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"FLWR_HOME={home}".encode() in environment and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.flwr
def test_flwr_run_gives_the_bits_of_in_process(make_run: Make, tmp_path: Path) -> None:
    probes = {"member": 1, "fresh": 1}
    reference, other = (make_run(TEXT, name, probes=probes) for name in ("in-process", "flwr"))
    simulate(reference)
    cell, home = other.cells[0].folder.resolve(), tmp_path / "home"
    nodes = other.cells[0].config.federation.clients + 2
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    resources = (
        f"num-supernodes={nodes} client-resources-num-cpus=1 "
        "client-resources-num-gpus=0.0 init-args-num-cpus=2"
    )
    flwr = str(Path(sys.executable).parent / "flwr")
    command = [flwr, "run", ".", "--stream", "--run-config", f'cell="{cell}"']
    try:
        subprocess.run(
            [*command, "--federation-config", resources],
            cwd=ROOT,
            env=environment,
            timeout=240,
            capture_output=True,
            check=True,
        )
    finally:
        stop_superlink(home)
    assert (cell / "simulation.json").exists()  # flwr's exit code is 0 whatever happened
    assert files_of(cell / "captures") == files_of(reference.cells[0].folder / "captures")
    assert files_of(cell / "truth") == files_of(reference.cells[0].folder / "truth")
