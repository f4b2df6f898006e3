"""Replies that are a multiple of the trained weights, as clients weigh them by their examples."""

from fedsim.errors import ConfigError
from fedsim.types import Tensors

_SAME = 0.99
"""Cosine with what was sent from which a reply is a multiple of it and not other weights."""
_LEAST, _MOST = 0.5, 2.0
"""Lengths of trained weights, in those of what was sent, that training may explain."""
_NEAR, _WHOLE, _SMALL = 0.1, 0.02, 10
"""Relative distance from the number of examples that a client claims, and from a small whole number
up to the third: training moves weights by less."""


def multiple_of(reply: Tensors, sent: Tensors, claimed: int | None) -> int:
    """What trained weights were multiplied by: 1, the claimed number of examples, or another.

    Raises:
        ConfigError: they were multiplied by a number that cannot be told.
    """
    pairs = [(sent[name].double(), value.double()) for name, value in reply.items()]
    start = sum(float(before.square().sum()) for before, _ in pairs)
    length = sum(float(after.square().sum()) for _, after in pairs)
    both = sum(float((before * after).sum()) for before, after in pairs)
    if not both > _SAME * (start * length) ** 0.5 or _LEAST <= (factor := both / start) <= _MOST:
        return 1
    if claimed and abs(factor / claimed - 1) <= _NEAR:
        return claimed
    whole = round(factor)
    if 1 < whole <= _SMALL and abs(factor / whole - 1) <= _WHOLE:
        return whole
    raise ConfigError(
        f"reply: it is {factor:.4g} times the weights that were sent, so the client multiplied "
        "what it trained, as by a weight in the mean. Capture before it is multiplied, or divide "
        "the files by that number."
    )
