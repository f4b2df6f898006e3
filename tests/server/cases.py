"""A federation of a plain app on a grid."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from server.grids.in_process import InProcessGrid
from server.grids.local import LocalGrid, run_server
from server.participation import Participation
from tests.apps.plain_app import start_arrays

CLIENTS, ROUNDS = 4, 3


def in_process(fault: str = "") -> LocalGrid:
    return InProcessGrid("tests.apps.plain_app:app", CLIENTS, {"fault": fault})


def train(
    grid: LocalGrid, share: float = 1.0, seed: int = 0
) -> tuple[dict[str, bytes], Participation]:
    final: dict[str, bytes] = {}
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = Participation(inner, share, seed)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy.start(grid, start_arrays(), num_rounds=ROUNDS)
        final.update({name: array.data for name, array in result.arrays.items()})

    run_server(app, grid, {})
    return final, strategy
