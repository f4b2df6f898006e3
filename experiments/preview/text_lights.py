"""Traffic lights of exact attacks on text: tokens and inputs against widths and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attacks.spans.adapters import AdapterSpan
from attacks.spans.judges import best_judge, read_traces
from attacks.spans.subspace import Subspace
from experiments.preview.feasibility import Lamp, Light
from fedsim.capture import CaptureKey, Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models.embeddings import embedding_names
from fedsim.tasks.text import TextTask

_SHORT = 50  # rows, of which the shortest is tried


def text_lights(lamp: Lamp) -> Iterator[Light]:
    """span, embedding_rows and april."""
    assert isinstance(lamp.task, TextTask)
    unseen = 1 if lamp.task.spec.kind == "language-modelling" else 0
    inputs, tokens = [], []
    for reply in lamp.replies:
        batch = lamp.task.encode(lamp.private.take(reply.rows))
        assert batch.mask is not None
        # A causal model's last token predicts nothing, and leaves no trace.
        lengths = (batch.mask.sum(1) - unseen).tolist()
        lines = [ids[:length] for ids, length in zip(batch.inputs.tolist(), lengths, strict=True)]
        inputs.append(len({place for line in lines for place in enumerate(line)}))
        tokens.append(sum(lengths))
    yield _span(lamp, lamp.task, tuple(inputs))
    yield from _tables(lamp, tuple(tokens))


def _span(lamp: Lamp, task: TextTask, inputs: tuple[int, ...]) -> Light:
    what = "different inputs"
    some = lamp.private.take(range(min(len(lamp.private), _SHORT)))
    batch = task.encode(some)
    assert batch.mask is not None
    shortest = int(batch.mask.sum(1).argmin())
    received = task.gradient(lamp.network, task.encode(some.take([shortest])))
    run = lamp.config.federation
    known = Knowledge(optimizer=run.optimizer if run.protocol == "fedavg" else None)
    key = CaptureKey(round=1, client=0)
    observation = Observation(key, lamp.weights, received, "gradient", known)
    try:
        traces = read_traces(observation, task, lamp.network)
        behind = best_judge(traces.layers, traces.before, observation).subspace
    except CannotAttack as error:
        return Light("span", "red", what, inputs, None, error.reason)
    limit = min(_room(traces.before), behind.most - 1)
    return lamp.light("span", what, inputs, limit)


def _tables(lamp: Lamp, tokens: tuple[int, ...]) -> Iterator[Light]:
    names = embedding_names(lamp.network)
    everything = dict(lamp.network.named_parameters(remove_duplicate=False))
    word, what = names.word, "tokens"
    single = max(lamp.examples) == 1
    if word is None or word not in lamp.sent:
        yield Light("embedding_rows", "red", what, tokens, None, "the word embeddings are not sent")
    else:
        width = everything[word].shape[1]
        tied = any(own is everything[word] for name, own in everything.items() if name != word)
        order = names.position in lamp.sent
        more = "" if single and order else "which words, not in which sentence or order"
        # A tied head's rows take one dimension a token; so do the positions.
        limit = (width - 1 if more else width // 2) if tied else width
        light = lamp.light("embedding_rows", what, tokens, limit, more)
        if light.colour == "red" and not tied:
            light = replace(light, colour="amber", reason="which words, not in which order")
        yield light
    if not single:
        reason = f"a reply holds {max(lamp.examples)} examples, and it takes one"
        yield Light("april", "red", "examples", lamp.examples, 1, reason)
    elif names.position not in lamp.sent or names.position is None:
        yield Light("april", "red", what, tokens, None, "the position embeddings are not sent")
    else:
        width = everything[names.position].shape[1]
        halved = word in lamp.sent and any(
            own is everything[str(word)] for name, own in everything.items() if name != word
        )
        yield lamp.light("april", what, tokens, width // 2 if halved else width)


def _room(found: Subspace) -> int:
    """The largest rank that leaves room to tell tokens, as the attack sees it."""
    if isinstance(found, AdapterSpan):
        return found.most - 1
    ranks = range(found.most, 0, -1)
    spans = (Subspace(torch.empty(found.width, rank, device="meta"), found.most) for rank in ranks)
    return next((one.rank for one in spans if not one.full), 0)
