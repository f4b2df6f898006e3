"""A loop of one's own over the grid is overheard, and is what it was."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import fedsim
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureKey, CaptureStore
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.apps.plain_app import start_arrays

CLIENTS = 3


class Pushed:
    """A grid of an app that pushes its messages, and asks later for the replies."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.replies = list(self.grid.send_and_receive(messages))
        return [str(number) for number in range(len(self.replies))]

    def pull_messages(self, identifiers: Iterable[str]) -> list[Message]:
        return [self.replies[int(number)] for number in identifiers]


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
        grid = Pushed(grid) if pushed else grid  # type: ignore[assignment]
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


def test_what_is_no_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tap: Linear is no grid"):
        fedsim.tap(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(ConfigError, match=r"grid = fedsim\.tap\(grid, FOLDER\)"):
        Eavesdropper(InProcessGrid("tests.apps.plain_app:app", 1, {}), tmp_path)  # type: ignore[arg-type]
