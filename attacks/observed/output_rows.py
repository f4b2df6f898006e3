"""The sign of a language model's gradient, by the rows of its output layer."""

from typing import Any, cast

from fedsim.store.capture import Observation
from fedsim.tasks.base import Task

_ABSENT = 7 / 8
"""Share of the rows, the shortest ones, that are taken for those of words that no text predicts."""
_SURE = 4.0
"""Standard deviations of pure noise from which a sign is told; true gradients have 5 to 160."""


def ascends(observation: Observation, task: Task) -> bool:
    """Whether what is said to be a language model's gradient has the opposite sign.

    The gradient of the row ``W_v`` of a word that no text predicts is ``sum_t p_tv h_t`` with the
    states ``h_t`` below the head. Its inner product with ``W_v`` is ``sum_t p_tv z_tv``, and as the
    probability ``p`` grows with the logit ``z``, the sum over such words is positive if the mean of
    their rows is subtracted from ``W_v`` (Chebyshev's sum inequality).
    """
    if task.spec.kind != "language-modelling":
        return False
    network = cast(Any, task.model(observation.sent))
    head = getattr(network.get_output_embeddings(), "weight", None)
    name = next((n for n, p in network.named_parameters() if p is head), "")
    if head is None or name not in observation.received:
        return False
    rows = observation.update((name,))[name]
    lengths = rows.norm(dim=1)
    absent = (lengths > 0) & (lengths <= lengths.quantile(_ABSENT))
    rows, words = rows[absent], head.detach()[absent].to(rows)
    words = words - words.mean(0)
    deviation = words.norm() * rows.square().mean().sqrt()
    return bool((rows * words).sum() < -_SURE * deviation)
