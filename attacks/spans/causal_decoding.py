"""Sentences of a causal model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.consistency import Consistency
from attacks.spans.cuts import CUTS
from attacks.spans.exchange import improved
from attacks.spans.explained import choose
from attacks.spans.prefix_search import PrefixSearch, Scored
from attacks.spans.rematch import Rematch
from attacks.spans.soft_traces import SoftTraces
from attacks.spans.told import UpdatedModel
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask


def decode(
    observation: Observation, task: TextTask, traces: SoftTraces, rng: torch.Generator, job: Job
) -> list[list[int]]:
    """The likeliest sentences of a causal model.

    Args:
        observation: of any optimizer and defense.
        task: a language model, or a classifier with causal attention.
        traces: of the update.
        rng: draws the words that each layer is fitted to.
        job: ends the search when its time is up.
    """
    count = observation.knowledge.num_examples or 1
    writes = task.spec.kind == "language-modelling"
    edges = task.tokens([""])[0]
    start = edges[:1] if len(edges) > 1 else []
    end = edges[-1] if edges and writes else None
    update = {name: value.float() for name, value in observation.update().items()}
    told = UpdatedModel(traces.layers.network, update, count * task.max_length) if writes else None
    if traces.first is not None:
        traces.grow(start, count, rng)
    found = search(traces, told, start, end, count, job)
    if told is None:  # a classifier, whose labels are not known
        found = _refitted(traces, found, told, start, end, count, rng, job)
        return [list(one.ids) for one in spread(found, count)]
    device = traces.words.device
    match = Rematch.of(observation, task, device, signs=traces.signs)
    test = Consistency.of(observation, task, traces.layers.network)

    def closed(found: Sequence[Scored], words: int) -> list[Tensor]:
        lines = (_closed(list(one.ids), end, task.max_length) for one in found)
        kept = varied(list(found), len(start), words)
        lines = (_closed(list(one.ids), end, task.max_length) for one in kept)
        return [torch.tensor(line, device=device) for line in lines]

    def done() -> bool:
        lines = [line.tolist() for line in best.lines]
        return (
            len(lines) == count
            and test is not None
            and test.p_value(lines, [-1] * count) >= CUTS.consistency_level
        )

    def again(index: int) -> list[Tensor]:
        left = best.left(index)
        own = traces.without(best.part(index), best.part(), task.max_length)
        own.fit([best.lines[index].tolist()], rng)
        own_told = UpdatedModel(traces.layers.network, left, task.max_length)
        return closed(search(own, own_told, start, end, 1, job), 1)

    best = choose(match, closed(found, count), count)
    if count == 1 and not done():
        found += _refitted(traces, found, told, start, end, count, rng, job)
        best = choose(match, closed(found, count), count)
    if count > 1:
        improved(best, again, told.along, CUTS.exchanges, done, job)
    if job.expired or done():
        return [line.tolist() for line in best.lines]
    lines = []
    for index, line in enumerate(best.lines):
        own = match if count == 1 else match.against(best.left(index))
        lines.append(rematched(line, traces, told, own, end, job))
    return lines


def _refitted(
    traces: SoftTraces,
    found: list[Scored],
    told: UpdatedModel | None,
    start: Sequence[int],
    end: int | None,
    count: int,
    rng: torch.Generator,
    job: Job,
) -> list[Scored]:
    """A search with distributions fitted to the result of another; that result if it is empty."""
    lines = [one.ids for one in spread(found, count) if len(one.ids) > 4]
    if job.expired or traces.first is None or not lines:
        return found
    traces.fit(lines, rng)
    return search(traces, told, start, end, count, job)


def varied(found: Sequence[Scored], start: int, count: int) -> list[Scored]:
    """The likeliest sentences of each first word, of different lengths, for some first words."""
    kept: dict[int, dict[int, Scored]] = {}
    for one in sorted(found, key=lambda one: -one.score):
        if len(one.ids) > start + 1:
            own = kept.setdefault(one.ids[start], {})
            if len(own) < CUTS.lines:
                own.setdefault(len(one.ids), one)
    return [one for own in list(kept.values())[: 2 * count] for one in own.values()]


def search(
    traces: SoftTraces,
    told: UpdatedModel | None,
    start: Sequence[int],
    end: int | None,
    count: int,
    job: Job,
) -> list[Scored]:
    """Sentences by beam search over the traces as they are fitted."""
    first = traces.ratios
    if start:
        starts = torch.tensor([start], device=first.device)
    else:
        starts = first[0].topk(min(CUTS.next_tokens, first.shape[1])).indices[:, None]
    near = [e for e in traces.near if e.tells]
    later = [e for e in traces.later if e.tells]
    beam = CUTS.prefixes * count
    tree = PrefixSearch(traces.layers, near, later, first, told, end, beam, count)
    return tree.run(starts, job)


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
    line: Tensor,
    traces: SoftTraces,
    told: UpdatedModel | None,
    match: Rematch,
    end: int | None,
    job: Job,
) -> list[int]:
    """The line after exchanging single words for those that the gradient prefers."""
    scores = traces.ratios[: len(line)].clone()
    if told is not None:
        scores[1:] += told.along(line)
    rivals = scores.topk(min(CUTS.rivals, scores.shape[1]), dim=1).indices
    leader = scores.gather(1, line[:, None]).maximum(scores.amax(1, keepdim=True))
    rivals[scores.gather(1, rivals) < leader - CUTS.sure] = -1
    rivals[0] = -1
    if end is not None and int(line[-1]) == end:
        rivals[-1] = -1
    line, _ = match.improve(line, None, rivals, CUTS.sweeps, job)
    found: list[int] = line.tolist()
    return found


def _closed(line: list[int], end: int | None, longest: int) -> list[int]:
    return line if end is None or len(line) >= longest else [*line, end]
