"""The server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedsim
from audited import FOLDER
from audited.task import load_model, load_tokenizer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fine-tune, and keep what crosses the wire."""
    model, words = load_model(), load_tokenizer()
    plain = FedAvg(fraction_evaluate=0.0)
    strategy = fedsim.Eavesdropper(plain, f"{FOLDER}/captures", model=model, tokenizer=words)
    rounds = int(context.run_config["num-server-rounds"])
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
