"""Layers that a client did not start from what it was sent, as a personalised head."""

from collections.abc import Iterator
from dataclasses import replace

from experiments.captures.reading import Finding, Reading, cosine
from fedsim.types import Tensors

_UNLIKE, _LIKE = 0.3, 0.9
"""Cosine below which a weight of about the same length started elsewhere, and above which it may
have been trained from there. Half the first, and half or twice the second's distance from 1, judge
the tests alike; noise that leaves so little makes a weight longer. The mean of the heads of ``K``
clients has a cosine of ``K^(-1/2)`` with each, so that what lies between takes an earlier reply."""
_LENGTH = 2.0
_FEWEST = 64
"""Entries; two independent weights of so many have a cosine of .125 or less on average."""


def with_client_layers(reading: Reading, earlier: Iterator[Reading]) -> Reading:
    """The update from where its layers started, as far as earlier replies of the client tell.

    Elsewhere the layer that the client replied stands for the one that it started from, and is no
    part of the update.

    Args:
        reading: trained weights; anything else is returned as it is.
        earlier: of the same client, the latest first.
    """
    seen = reading.observation
    unlike = _unlike(seen.sent, seen.received) if seen.kind == "weights" else []
    if not unlike:
        return reading
    for before in earlier:
        start = before.observation.received
        separate = [
            name
            for names, _ in unlike
            if start.keys() >= set(names)
            and cosine({"": start[names[0]]}, {"": seen.received[names[0]]}) > _LIKE
            for name in names
        ]
        if separate:
            said = "started from the client's last reply, not from what was sent"
            sent = {**seen.sent, **{name: start[name] for name in separate}}
            shown = Finding("own_start", f"{_named(separate)} {said}")
            return reading.finding(shown, observation=replace(seen, sent=sent))
    separate = [name for names, alike in unlike if abs(alike) < _UNLIKE for name in names]
    if not separate:
        return reading
    sent = {**seen.sent, **{name: seen.received[name] for name in separate}}
    received = {name: value for name, value in seen.received.items() if name not in separate}
    said = (
        f"{_named(separate)} did not start from what was sent: the client has layers of its "
        "own, and those that it replied stand for them, so that nothing behind them is proven; the "
        "next round of the same client is attacked from where they started"
    )
    observation = replace(seen, sent=sent, received=received)
    return reading.finding(Finding("own_layers", said, hides=True), observation=observation)


def _named(names: list[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _unlike(sent: Tensors, received: Tensors) -> list[tuple[list[str], float]]:
    """The tensors of each layer whose weight, the first, may have started elsewhere; its cosine."""
    layers = dict[str, list[str]]()
    for name in received:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    unlike, like = list[tuple[list[str], float]](), 0
    for names in layers.values():
        names.sort(key=lambda name: -received[name].numel())
        main = names[0]
        start, reply = sent[main].double(), received[main].double()
        if not received[main].is_floating_point() or reply.numel() < _FEWEST:
            continue
        alike = cosine({main: start}, {main: reply})
        ratio = float(reply.norm() / start.norm()) if bool(start.any()) else 0.0
        like += alike > _LIKE
        if alike < _LIKE and 1 / _LENGTH < ratio < _LENGTH:
            unlike.append((names, alike))
    return unlike if like else []
