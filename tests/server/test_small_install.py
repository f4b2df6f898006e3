"""A server captures with what Flower brings: without torch, Ray or any other package."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys, time

class Missing:
    absent = {absent!r}

    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in self.absent:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as a SuperLink

before = time.process_time()
import fedsim
wrap, tap = fedsim.Eavesdropper, fedsim.tap
seconds = time.process_time() - before

class Grid:
    def get_node_ids(self):
        return [1, 2]

    def send_and_receive(self, messages, **options):
        return [self.reply(message) for message in messages]

    def reply(self, message):
        number = message.metadata.dst_node_id
        moved = [array.numpy() + number for array in message.content['arrays'].values()]
        content = {{'arrays': ArrayRecord(moved), 'metrics': MetricRecord({{'num-examples': 4}})}}
        return Message(RecordDict(content), reply_to=message)

start = ArrayRecord([np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(3, np.float32)])
wrap(FedAvg(fraction_evaluate=0.0, min_available_nodes=2), {folder!r} + '/wrapped').start(
    Grid(), start, num_rounds=2
)
grid = tap(Grid(), {folder!r} + '/tapped')
messages = [
    Message(RecordDict({{'arrays': start, 'config': ConfigRecord({{'lr': 0.1}})}}), node, 'query')
    for node in (1, 2)
]
grid.send_and_receive(messages)
print(json.dumps({{'seconds': seconds, 'loaded': sorted(Missing.absent & sys.modules.keys())}}))
"""
ABSENT = {
    *["torch", "ray", "transformers", "safetensors", "datasets", "pandas", "scipy", "matplotlib"]
}
"""Of what an installation with attacks has; beside these no package but Flower's is imported."""
SECONDS = 0.3
"""Processor seconds that the names may take to import beyond Flower's own."""


def captured(folder: Path, absent: set[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a server without these packages says of itself, and the files that it wrote."""
    folder.mkdir()
    program = PROGRAM.format(absent=absent, folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"  # the time and the process
    }
    return json.loads(done.stdout.splitlines()[-1]), files


def test_captures_are_the_same_bytes_without_torch_and_ray(tmp_path: Path) -> None:
    said, small = captured(tmp_path / "small", ABSENT)
    _, whole = captured(tmp_path / "whole", set())
    assert small == whole
    assert {Path(name).parts[0] for name in small} == {"wrapped", "tapped"}
    assert sum(name.endswith(".json") for name in small) >= 6  # two rounds, and a query, of two
    assert said["loaded"] == []
    assert said["seconds"] < SECONDS
