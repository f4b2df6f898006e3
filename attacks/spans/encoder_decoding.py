"""Sentences of a bidirectional model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from attacks.base import Job
from attacks.spans.joint_words import JointWords
from attacks.spans.places import Places
from attacks.spans.rematch import Rematch
from attacks.spans.soft_traces import SoftTraces
from attacks.spans.word_search import WordSearch
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask

_SHORTEST = 3  # tokens


def decode(
    observation: Observation, task: TextTask, traces: SoftTraces, job: Job
) -> tuple[list[list[int]], list[int]]:
    """The likeliest sentences of an encoder, with their classes.

    Args:
        observation: of any optimizer and defense.
        task: a classifier.
        traces: of the update.
        job: ends the search when its time is up.
    """
    edges, count = task.tokens([""])[0], observation.knowledge.num_examples or 1
    search = WordSearch(
        Places(traces.statistics, edges[0], edges[-1]),
        JointWords.of(traces, traces.words.new_tensor([edges[0], edges[-1]]), count),
        Rematch.of(observation, task, traces.words.device, signs=traces.signs),
        task.spec.num_classes or 1,
        observation.knowledge.lengths or range(_SHORTEST, task.max_length + 1),
        bool(observation.knowledge.train_mode),
    )
    found = search.run(count, job)
    return [line.tolist() for line in found.lines], list(found.labels)
