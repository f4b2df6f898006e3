"""A Flower client mod that records what a test federation trained on, to score attacks with.

It belongs to federations whose members agree, on test data: the folder holds their examples.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from flwr.app import Context, Message

from clients.noted_batches import NotedBatches, Pixels
from fedsim.store.capture import CaptureKey, client_of
from fedsim.store.truth import TruthStore
from fedsim.visible import say
from fedsim.wire import round_of


def truth_mod(
    folder: Path | str, *, pixels: Pixels = lambda images: images
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """A mod for ``ClientApp(mods=[truth_mod("/data/truth")])``.

    While a client answers a request to train, or a query, it notes every batch that a
    ``DataLoader`` of torch yields with gradients enabled, so that evaluation under ``no_grad`` is
    left out: texts, images, rows of a table, windows of sensors, with classes or numbers. Where
    the network takes other inputs than the loader gave, as of pictures that are flipped on the
    device, its inputs are noted; so are those of a network without a loader. What cannot be noted
    is said once, on stderr. The message and the reply are not changed, and the server never reads
    the folder.

    Args:
        folder: where to write, in the format of ``fedsim.store.truth``; readable by its
            owner alone.
        pixels: from the network's inputs to [0, 1], the inverse of the application's normalisation.

    Example:
        >>> import tempfile
        >>> from flwr.clientapp import ClientApp
        >>> from clients.truth_mod import truth_mod
        >>> app = ClientApp(mods=[truth_mod(tempfile.mkdtemp())])
    """
    store = TruthStore(Path(folder).absolute())

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in ("train", "query"):
            return call_next(message, context)
        seen = NotedBatches(pixels)
        with seen.noted():
            reply = call_next(message, context)
        round_ = round_of(message)
        if seen.batches and round_ >= 0:
            key = CaptureKey(round=round_, client=client_of(context.node_id))
            distinct, steps = seen.distinct()
            store.save(key, distinct, tuple(range(len(distinct))), steps)
        if kind == "train" or seen.batches or seen.lost:  # queries may train nothing
            for text in notices(seen, round_):
                _warn(store.root, text)
        return reply

    return mod


@cache
def _warn(folder: Path, text: str) -> None:
    """Say it once a process, in which Flower loads the application anew for every message."""
    say(f"truth_mod: {text}", error=True, flush=True)


def notices(seen: NotedBatches, round_: int) -> list[str]:
    """What could not be noted, or was noted otherwise than the loader gave it."""
    how = "noted as the network takes it, without targets" if seen.by_network else "not noted"
    said = [f"{how}, as it holds no tensor of examples: {batch}" for batch in seen.lost]
    if seen.changed:
        said.append(
            "the network takes other inputs than the loader gives (augmented or normalised after "
            "it); what it takes is noted, as that is what it trains on"
        )
    if not seen.batches and not seen.lost:
        said.append(
            "nothing noted: no DataLoader of torch yielded a batch with gradients, and no network "
            "of torch took one. Write the examples as docs/how-to/audit.md says of state dicts"
        )
    if seen.batches and round_ < 0:
        said.append("nothing noted: the request says no round, as server-round or group_id")
    return said
