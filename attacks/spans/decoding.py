"""Sentences decoded from an update whose span noise, pruning, signs or steps have blurred."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from attacks.base import Job, Reconstruction
from attacks.spans.certificate import batch_of
from attacks.spans.cuts import CUTS
from attacks.spans.prefix_search import PrefixSearch, Scored
from attacks.spans.rematch import Rematch
from attacks.spans.soft_traces import SoftTraces, soft_traces
from attacks.spans.told import UpdatedModel
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask


def decode(
    observation: Observation,
    task: TextTask,
    network: nn.Module,
    rng: torch.Generator,
    job: Job,
    *,
    rows: bool,
) -> Reconstruction:
    """The likeliest sentences of a causal model; every one a guess."""
    traces = soft_traces(observation, task, network, rows=rows)
    count = observation.knowledge.num_examples or 1
    update = {name: value.float() for name, value in observation.update().items()}
    writes = task.spec.kind == "language-modelling"
    told = UpdatedModel(network, update, count * task.max_length) if writes else None
    edges = task.tokens([""])[0]
    start = edges[:1] if len(edges) > 1 else []
    end = edges[-1] if edges and writes else None
    found = search(traces, told, start, end, count, rng, job)
    if count > 1:
        lines = [list(one.ids) for one in spread(found, count)]
        closed = [_closed(line, end, task.max_length) for line in lines]
        return _result(closed, [-1] * count, task)
    match = Rematch.of(
        observation,
        task,
        network.get_parameter(next(name for name, _ in network.named_parameters())).device,
        signs=traces.signs,
    )
    line = rematched(found, traces, told, match, end, task, job)
    return _result([line], [-1], task)


def search(
    traces: SoftTraces,
    told: UpdatedModel | None,
    start: Sequence[int],
    end: int | None,
    count: int,
    rng: torch.Generator,
    job: Job,
) -> list[Scored]:
    """Two searches, the second with distributions fitted to the result of the first."""
    guess = traces.first_line(start) if traces.first is not None else [*start, *[0] * 4]
    found: list[Scored] = []
    for quantile in (CUTS.first_quantile, 0.5):
        if traces.first is not None:
            traces.fit(guess, quantile, rng)
        first = traces.ratios
        if start:
            starts = torch.tensor([start], device=first.device)
        else:
            starts = first[0].topk(min(CUTS.next_tokens, first.shape[1])).indices[:, None]
        near = [e for e in traces.near if e.tells]
        later = [e for e in traces.later if e.tells]
        beam = CUTS.prefixes * count
        found = PrefixSearch(traces.layers, near, later, first, told, end, beam).run(starts, job)
        if len(found[0].ids) > 4:
            guess = list(found[0].ids)
    return found


def spread(found: Sequence[Scored], count: int) -> list[Scored]:
    """The likeliest sentences that are not nearly one another."""
    kept: list[Scored] = []
    for one in found:
        if len(kept) == count:
            break
        if all(_shared(one.ids, other.ids) < 0.7 for other in kept):
            kept.append(one)
    return kept + [one for one in found if one not in kept][: count - len(kept)]


def _shared(one: Sequence[int], other: Sequence[int]) -> float:
    same = sum(a == b for a, b in zip(one[1:], other[1:], strict=False))
    return same / max(1, min(len(one), len(other)) - 1)


def rematched(
    found: Sequence[Scored],
    traces: SoftTraces,
    told: UpdatedModel | None,
    match: Rematch,
    end: int | None,
    task: TextTask,
    job: Job,
) -> list[int]:
    """The sentence whose own gradient is nearest, from the best of each length."""
    by_length: dict[int, Scored] = {}
    for one in found:
        if len(one.ids) > 2 and one.score > by_length.get(len(one.ids), one).score - 1e-9:
            by_length[len(one.ids)] = one
    device = traces.words.device
    lines = [
        torch.tensor(_closed(list(one.ids), end, task.max_length), device=device)
        for one in by_length.values()
    ]
    near = [float(match.similarity(line[None], line[None])[0]) for line in lines]
    line = lines[max(range(len(lines)), key=near.__getitem__)]
    scores = traces.ratios[: len(line)].clone()
    if told is not None:
        scores[1:] += told.along(line)
    rivals = scores.topk(min(CUTS.rivals, scores.shape[1]), dim=1).indices
    rivals[0] = -1
    if end is not None and int(line[-1]) == end:
        rivals[-1] = -1
    line, _ = match.improve(line, None, rivals, CUTS.sweeps, job)
    return line.tolist()


def _closed(line: list[int], end: int | None, longest: int) -> list[int]:
    return line if end is None or len(line) >= longest else [*line, end]


def _result(lines: list[list[int]], labels: list[int], task: TextTask) -> Reconstruction:
    guess = batch_of(lines, task, labels)
    return Reconstruction(guess, confidence=("guess",) * len(lines))
