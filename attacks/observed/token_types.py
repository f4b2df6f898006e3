"""Segments of pairs of sentences, which the table of token types tells."""

from fedsim.store.capture import Observation

_TABLES = ("token_type_embeddings.weight", "segment_embeddings.weight")
_MOVED = 0.01
"""Part of the largest row's entry from which a row has a token: weight decay alone moves 2e-4 of a
step of AdamW, a sentence of a pair about as much as the other. By these, half and double judge
alike; neither was run."""


def used_types(observation: Observation) -> list[int] | None:
    """The types that tokens have; None where no table of them was sent.

    A row of the table gets a gradient where a token has this type.
    """
    for name in observation.received:
        if name.endswith(_TABLES) and observation.received[name].dim() == 2:
            rows = observation.update((name,))[name].abs().amax(1)
            return [int(kind) for kind in (rows > _MOVED * rows.max()).nonzero().flatten()]
    return None


def types_note(observation: Observation) -> str:
    """That texts have other types than the one that most attacks give them; else empty."""
    other = [kind for kind in used_types(observation) or () if kind]
    if not other:
        return ""
    return (
        f"tokens have the type {' and '.join(map(str, other))} as well (token_type_ids), as the "
        "second sentence of a pair has; span and embedding_rows try those of pairs, all other "
        "attacks take tokens for type 0, which hides a proof and may cost words"
    )
