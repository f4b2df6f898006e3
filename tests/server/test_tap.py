"""A loop of one's own over the grid is overheard, and is what it was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import fedsim
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureKey, CaptureStore
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.apps.plain_app import start_arrays

CLIENTS = 3


def asked(grid: Grid, kind: str, round_: int, group: str) -> list[Message]:
    arrays, config = start_arrays(), ConfigRecord({"server-round": round_, "lr": 0.1})
    return [
        Message(RecordDict({"arrays": arrays, "config": config}), node, kind, group_id=group)
        for node in sorted(grid.get_node_ids())
    ]


def run(folder: Path | None, group: str = "", *, pushed: bool = False) -> list[bytes]:
    """Two rounds of an app without a strategy; the bytes that came back."""
    came: list[bytes] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grid = grid if folder is None else fedsim.tap(grid, folder)
        for round_ in (1, 2):
            messages = asked(grid, "train", round_, group and str(round_))
            if pushed:
                replies = list(grid.pull_messages(list(grid.push_messages(messages))))
            else:
                replies = list(grid.send_and_receive(messages))
            for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
                for record in reply.content.array_records.values():
                    came.extend(array.data for array in record.values())

    run_server(server, InProcessGrid("tests.apps.plain_app:app", CLIENTS, {}), {})
    return came


@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("group", ["", "rounds"])
def test_a_loop_is_overheard_and_changed_in_nothing(
    group: str, pushed: bool, tmp_path: Path
) -> None:
    assert run(tmp_path / "captures", group, pushed=pushed) == run(None, group, pushed=pushed)
    store = CaptureStore(tmp_path / "captures")
    assert {key.round for key in store.keys()} == {1, 2}
    assert len(store.keys()) == 2 * CLIENTS
    seen = store.load(store.keys()[0])
    assert list(seen.sent) == list(start_arrays())
    assert store.record(seen.key).knowledge.learning_rate == 0.1


def test_messages_of_one_group_do_not_overwrite_one_another(tmp_path: Path) -> None:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        tapped = fedsim.tap(grid, tmp_path / "captures")
        for _ in range(2):
            list(tapped.send_and_receive(asked(tapped, "train", 1, "1")))
        nothing = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        list(tapped.send_and_receive(nothing[:0]))

    run_server(server, InProcessGrid("tests.apps.plain_app:app", CLIENTS, {}), {})
    store = CaptureStore(tmp_path / "captures")
    assert [key.round for key in store.keys()] == [1] * CLIENTS + [2] * CLIENTS
    assert store.record(CaptureKey(round=1, client=store.keys()[0].client))


def test_evaluation_takes_no_round_and_rounds_are_those_that_are_stated(tmp_path: Path) -> None:
    """So that captures have the rounds of the noted truth, which may count from 0."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        tapped = fedsim.tap(grid, tmp_path / "captures")
        for round_ in (0, 1):
            for kind in ("train", "evaluate"):
                list(tapped.send_and_receive(asked(tapped, kind, round_, "")))

    run_server(server, InProcessGrid("tests.apps.plain_app:app", CLIENTS, {}), {})
    keys = CaptureStore(tmp_path / "captures").keys()
    assert [key.round for key in keys] == [0] * CLIENTS + [1] * CLIENTS


def test_a_late_reply_is_held_against_what_it_answers(tmp_path: Path) -> None:
    """As where a server goes on with those that were fast."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        tapped = fedsim.tap(grid, tmp_path / "captures")
        first, second = asked(tapped, "train", 1, ""), asked(tapped, "train", 2, "")
        for message in second:
            message.content["arrays"] = ArrayRecord([np.ones((3, 4), np.float32)])
        late = list(tapped.push_messages(first))
        prompt = list(tapped.push_messages(second[:1]))
        for identifiers in (prompt, late):
            list(tapped.pull_messages(identifiers))

    run_server(server, InProcessGrid("tests.apps.plain_app:app", CLIENTS, {}), {})
    store = CaptureStore(tmp_path / "captures")
    assert [key.round for key in store.keys()] == [1] * CLIENTS + [2]
    sent = {store.record(key).sent_sha256 for key in store.keys() if key.round == 1}
    assert len(sent) == 1
    assert store.record(store.keys()[-1]).sent_sha256 not in sent


def test_what_is_no_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tap: Linear is no grid"):
        fedsim.tap(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(ConfigError, match=r"grid = fedsim\.tap\(grid, FOLDER\)"):
        Eavesdropper(InProcessGrid("tests.apps.plain_app:app", 1, {}), tmp_path)  # type: ignore[arg-type]
