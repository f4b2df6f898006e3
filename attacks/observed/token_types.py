"""Segments of pairs of sentences, which the table of token types tells."""

from __future__ import annotations

from fedsim.capture import Observation

_TABLES = ("token_type_embeddings.weight", "segment_embeddings.weight")
_MOVED = 0.01
"""Part of the largest row's entry from which a row has a token: weight decay alone moves 2e-4 of a
step of AdamW, a sentence of a pair about as much as the other. By these, half and double judge
alike; neither was run."""


def types_note(observation: Observation) -> str:
    """That texts have more segments than the one that attacks give them; else empty.

    A row of the table gets a gradient where a token has this type, and texts are taken to be of
    type 0 throughout.
    """
    for name in observation.received:
        if name.endswith(_TABLES) and observation.received[name].dim() == 2:
            rows = observation.update((name,))[name].abs().amax(1)
            other = (rows[1:] > _MOVED * rows.max()).nonzero().flatten() + 1
            if len(other):
                kinds = " and ".join(str(int(kind)) for kind in other)
                return (
                    f"tokens have the type {kinds} as well (token_type_ids), as the second "
                    "sentence of a pair has; attacks take all for type 0, which hides a proof and "
                    "may cost words"
                )
    return ""
