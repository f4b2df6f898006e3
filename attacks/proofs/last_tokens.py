"""The last token of a causal model's sentence, which is predicted and predicts nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.proofs.certificate import GradientMatch, Prover
from fedsim.tasks.text import TextTask

_LIKELY = 3  # predicted tokens tried among those of the batch, and among all others

Line = tuple[int, ...]


def ended(provers: Sequence[Prover], lines: Sequence[Line]) -> tuple[Prover, GradientMatch]:
    """The lines with the token behind each: the end token, if that explains the update.

    Otherwise each line ends with the predicted token whose gradient is nearest to the update. With
    the prover that explains it, else the first.

    Args:
        provers: of a language model, one for each layout.
        lines: all tokens of each sentence of the batch but the last one.
    """
    task = provers[0].task
    assert isinstance(task, TextTask)
    end = task.tokenizer.eos_token_id
    usual = [line if end is None else (*line, int(end)) for line in lines]
    nearest: list[tuple[Prover, GradientMatch]] = []
    for prover in provers:
        nearest.append((prover, prover.compare(usual, [-1] * len(usual))))
        if nearest[-1][1].exact:
            return nearest[-1]
    for row, prover in enumerate(provers):
        likely = _predicted(prover, lines) if lines else None
        if likely is not None:
            nearest[row] = (prover, _chosen(prover, lines, likely))
        if nearest[row][1].exact:
            return nearest[row]
    return nearest[0]


def _chosen(
    prover: Prover, lines: Sequence[Line], likely: Sequence[Sequence[int]]
) -> GradientMatch:
    """The lines with the likeliest tokens behind them, one line after the other."""

    def compared(tried: list[Line]) -> GradientMatch:
        return prover.compare(tried, [-1] * len(tried))

    best = compared([(*line, own[0]) for line, own in zip(lines, likely, strict=True)])
    for row, (line, own) in enumerate(zip(lines, likely, strict=True)):
        for token in own[1:]:
            if best.exact:
                return best
            new = compared([*best.lines[:row], (*line, token), *best.lines[row + 1 :]])
            if new.error < best.error or new.exact:
                best = new
    return best


def _predicted(prover: Prover, lines: Sequence[Line]) -> list[list[int]] | None:
    """The likeliest tokens behind each line; None if the head's gradient does not tell.

    That gradient is ``sum_t c_t h_t^T`` over the tokens that predict another, with hidden states
    ``h_t``, which the lines determine, and ``c_t = w (p_t - one_hot_t)``. Least squares yields each
    ``c_t``, whose most negative entry is the token that ``t`` predicts. A tied head holds the rows
    of the input words as well, hence these are ranked apart.
    """
    network, observation = prover.network, prover.observation
    head = network.get_output_embeddings()  # type: ignore[operator]
    named = network.named_parameters()
    name = next((name for name, own in named if head is not None and own is head.weight), None)
    if name not in observation.received:
        return None
    batch = prover.batch(lines, [])
    assert batch.mask is not None
    seen: list[Tensor] = []
    hook = head.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    with torch.no_grad(), prover.layout.told(network):
        prover.task.loss(network, batch)
    hook.remove()
    mask = batch.mask.bool()
    states = seen[-1][mask].double()
    if len(states) > states.shape[1]:
        return None
    update = observation.update((name,))[name].to(states)
    slopes = (update @ torch.linalg.pinv(states)[:, mask.sum(1).cumsum(0) - 1]).T
    own = batch.inputs[mask].unique()
    inside = own[slopes[:, own].argsort(1)[:, :_LIKELY]]
    slopes[:, own] = torch.inf
    outside = slopes.topk(_LIKELY, largest=False).indices
    found: list[list[int]] = torch.cat([outside, inside], 1).tolist()
    return found
