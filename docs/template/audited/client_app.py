"""The client."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsim
from audited import FOLDER
from audited.task import load_data, load_model, train

app = ClientApp(mods=[fedsim.truth_mod(f"{FOLDER}/truth")])  # only where every member agrees


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on the client's own sentences."""
    model = load_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = load_data(
        int(context.node_config["partition-id"]), int(context.run_config["batch-size"])
    )
    count = train(model, loader, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"num-examples": count})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
