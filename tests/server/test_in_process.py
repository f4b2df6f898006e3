"""Clients one after another in this process."""

from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedsim.errors import SimulationError, Terminated
from server.grids.local import load_app, run_server
from tests.server.cases import CLIENTS, in_process, train


def test_a_client_that_raises_ends_the_run_in_process() -> None:
    with pytest.raises(SimulationError, match=r"round 2, client 1: ValueError: no such row: 17"):
        train(in_process("raise"))


@pytest.mark.parametrize(
    ("fault", "reason"), [("leave", "SystemExit: 0"), ("beyond", "Gen.*: all")]
)
def test_a_client_that_exits_ends_the_run_and_not_the_process(fault: str, reason: str) -> None:
    with pytest.raises(SimulationError, match=rf"round 2, client 1: {reason}\. The run has ended"):
        train(in_process(fault))


@pytest.mark.parametrize(
    ("fault", "error"), [("interrupt", KeyboardInterrupt), ("terminated", Terminated)]
)
def test_a_user_ends_the_process(fault: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        train(in_process(fault))


def test_what_a_client_changes_is_put_back() -> None:
    before = Path.cwd()
    assert train(in_process("change"))[0] == train(in_process())[0]
    assert (Path.cwd(), torch.get_default_dtype()) == (before, torch.float32)


def test_pushed_messages_are_answered_once() -> None:
    grid = in_process()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"arrays": ArrayRecord()})
        content["config"] = ConfigRecord({"server-round": 1})
        nodes = list(grid.get_node_ids())
        messages = [Message(content, node, MessageType.TRAIN) for node in nodes]
        ids = list(grid.push_messages(messages))
        assert len(set(ids)) == CLIENTS
        replies = list(grid.pull_messages(ids))
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        assert list(grid.pull_messages(ids)) == []

    run_server(app, grid, {})


def test_app_is_loaded_by_name() -> None:
    assert load_app("tests.apps.plain_app:app") is load_app("tests.apps.plain_app:app")
