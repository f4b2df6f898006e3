"""Sentences of a bidirectional model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from attacks.base import Job
from attacks.spans.certificate import batch_of
from attacks.spans.explained import fitted, less
from attacks.spans.joint_words import JointWords
from attacks.spans.rematch import Rematch
from attacks.spans.soft_traces import SoftTraces
from attacks.spans.word_search import Places, WordSearch
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors


def decode(
    observation: Observation, task: TextTask, traces: SoftTraces, job: Job
) -> tuple[list[list[int]], list[int]]:
    """The likeliest sentences of an encoder, one after the other, with their classes.

    Each sentence after the first is sought in what the ones before leave of the update.

    Args:
        observation: of any optimizer and defense.
        task: a classifier.
        traces: of the update.
        job: ends the search when its time is up.
    """
    edges = task.tokens([""])[0]
    match = Rematch.of(observation, task, traces.words.device, signs=traces.signs)
    places = Places(traces.statistics, edges[0], edges[-1])
    joint = JointWords.of(traces, [edges[0], edges[-1]])
    search = WordSearch(places, joint, match, task.spec.num_classes or 1)
    received = dict(match.update)
    lines: list[list[int]] = []
    labels: list[int] = []
    for number in range(observation.knowledge.num_examples or 1):
        if number:
            match.update.update(left(received, task, traces.layers.network, lines, labels))
        line, label = search.run(observation.knowledge.lengths, job)
        lines.append(line)
        labels.append(label)
    return lines, labels


def left(
    update: Tensors,
    task: TextTask,
    network: nn.Module,
    lines: Sequence[Sequence[int]],
    labels: Sequence[int],
) -> Tensors:
    """What the sentences' gradients, each at its best scale, do not explain of the update."""
    own = dict(network.named_parameters())
    for name, parameter in own.items():
        parameter.requires_grad_(name in update)
    device = next(iter(own.values())).device
    found = [
        task.gradient(network, batch_of([line], task, [label]).to(device))
        for line, label in zip(lines, labels, strict=True)
    ]
    return less(update, found, fitted(update, found))
