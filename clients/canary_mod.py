"""A Flower client mod that plants canaries, to test the differential privacy that a client claims.

It belongs to federations of tests: what the clients have learned gives way to the canaries.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message

from fedsim.canaries import Planting
from fedsim.errors import ConfigError
from fedsim.store.capture import client_of
from fedsim.wire import round_of

Call: TypeAlias = Callable[[Message, Context], Message]


def canary_mod(
    folder: Path | str, clip: float, clients: int
) -> Callable[[Message, Context, Call], Message]:
    """A mod that stands behind those that clip and add noise: ``mods=[LocalDpMod(...), it]``.

    A coin for each client decides whether it
    replies with a canary, ten clipping norms long, in every round, or with the weights that it was
    sent. ``fedsim audit captures --planted canaries --claim ...`` then reads off what the server
    captured how well the two are told apart.

    Args:
        folder: where to note the coins, the same for all clients; readable by its owner alone.
        clip: the clipping norm that the clients state.
        clients: how many there are at most.

    Raises:
        ConfigError: a value cannot be, or the folder holds other canaries.

    Example:
        >>> import tempfile
        >>> from flwr.clientapp import ClientApp
        >>> from clients.canary_mod import canary_mod
        >>> app = ClientApp(mods=[canary_mod(tempfile.mkdtemp(), clip=1.0, clients=100)])
    """
    planting = Planting.make(folder, "update", clip, clients)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        reply = call_next(message, context)
        round_ = round_of(message)
        train = message.metadata.message_type.partition(".")[0] == "train"
        if not train or round_ < 0 or reply.has_error():
            return reply
        _, sent = next(iter(message.content.array_records.items()))
        name, learned = next(iter(reply.content.array_records.items()))
        if list(learned) != list(sent):
            raise ConfigError(
                "canary_mod: the reply has other arrays than the client was sent. Put the mod "
                "where the client replies with its weights."
            )
        # A copy: what the server sent may share its memory.
        weights = {key: torch.from_numpy(np.array(array.numpy())) for key, array in sent.items()}
        planted = planting.update(weights, str(client_of(context.node_id)), round_)
        reply.content[name] = ArrayRecord({k: Array(v.numpy()) for k, v in planted.items()})
        return reply

    return mod
