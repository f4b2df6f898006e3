"""The last token of a causal model's sentence, which is predicted and predicts nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacks.spans.certificate import GradientMatch, batch_of, compare
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask

_LIKELY = 3  # predicted tokens tried among those of the batch, and among all others

Line = tuple[int, ...]


def ended(
    observation: Observation,
    task: TextTask,
    network: nn.Module,
    lines: Sequence[Line],
    first: Sequence[str],
    tolerance: float,
) -> tuple[list[Line], GradientMatch]:
    """The lines with the token behind each: the end token, if that explains the update.

    Otherwise each line ends with the predicted token whose gradient is nearest to the update. With
    the comparison of that gradient.

    Args:
        observation: holds the observed gradient.
        task: a language model.
        network: as broadcast, in float32 and eval mode.
        lines: all tokens of each sentence of the batch but the last one.
        first: names of the first layers' weights.
        tolerance: relative error of a float32 gradient.
    """
    end = task.tokenizer.eos_token_id
    usual = [line if end is None else (*line, int(end)) for line in lines]

    def compared(tried: list[Line]) -> GradientMatch:
        return compare(observation, task, network, tried, [-1] * len(tried), first, tolerance)

    best = compared(usual)
    likely = None if best.exact or not lines else _predicted(observation, task, network, lines)
    if likely is None:
        return usual, best
    best = compared([(*line, own[0]) for line, own in zip(lines, likely, strict=True)])
    for row, (line, own) in enumerate(zip(lines, likely, strict=True)):
        for token in own[1:]:
            if best.exact:
                return best.lines, best
            new = compared([*best.lines[:row], (*line, token), *best.lines[row + 1 :]])
            if new.error < best.error or new.exact:
                best = new
    return best.lines, best


def _predicted(
    observation: Observation, task: TextTask, network: nn.Module, lines: Sequence[Line]
) -> list[list[int]] | None:
    """The likeliest tokens behind each line; None if the head's gradient does not tell.

    That gradient is ``sum_t c_t h_t^T`` over the tokens that predict another, with hidden states
    ``h_t``, which the lines determine, and ``c_t = w (p_t - one_hot_t)``. Least squares yields each
    ``c_t``, whose most negative entry is the token that ``t`` predicts. A tied head holds the rows
    of the input words as well, hence these are ranked apart.
    """
    head = network.get_output_embeddings()  # type: ignore[operator]
    named = network.named_parameters()
    name = next((name for name, own in named if head is not None and own is head.weight), None)
    if name not in observation.received:
        return None
    batch = batch_of(lines, task, []).to(head.weight.device)
    assert batch.mask is not None
    seen: list[Tensor] = []
    hook = head.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    with torch.no_grad():
        task.loss(network, batch)
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
