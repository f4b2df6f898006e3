"""Facts about an update that the threat model grants to the server."""

from clients.updates import LocalUpdate
from fedsim.config.cell import CellConfig
from fedsim.knowledge import Fact, Knowledge


def granted(config: CellConfig, update: LocalUpdate) -> Knowledge:
    """Facts about this update that the threat model grants to the server.

    Labels and lengths are sorted, so that their order reveals nothing.
    """
    batch, federation = update.batch, config.federation
    facts: dict[Fact, object] = {
        "num_examples": len(batch),
        "all_rows": update.all_rows,
        "batch_size": federation.batch_size,
        "local_steps": len(update.steps),
        "learning_rate": update.learning_rate,
        "optimizer": federation.optimizer,
        "train_mode": federation.train_mode,
        "training": federation.training,
        "defense": update.defense,
        "auxiliary": config.auxiliary is not None,
    }
    if batch.labels.dim() == 1:
        facts["labels"] = tuple(sorted(batch.labels.tolist()))
    if batch.mask is not None:
        facts["lengths"] = tuple(sorted(batch.mask.sum(1).tolist()))
    grants = config.server_knows.grants()
    return Knowledge.model_validate({k: v for k, v in facts.items() if k in grants})
