"""Control variates taken out of replies: steps that clients corrected, as SCAFFOLD has them.

A client of SCAFFOLD (Karimireddy et al. 2020, option II) steps by ``g - c_i + c``, with the variate
``c`` of the server and its own ``c_i``, whose next value is its mean gradient ``g``. It replies
with the difference ``d`` of the two values or with the next one. So its update is parallel to
``d + c``, which shows that a record holds variates, and the sum of its ``d`` so far is ``g``.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from experiments.captures.reading import Finding, Reading, cosine
from fedsim.store.capture import CaptureKey, CaptureStore, Observation
from fedsim.types import Tensors

_PARALLEL = 0.999
"""Cosine from which an update is the sum of variates; float32 leaves more. Half and twice the
distance from 1 judge the tests alike."""
_BEHIND = "behind the model"
_TAKEN_OUT = "its control variates were taken out"


def plain_steps(store: CaptureStore, seen: Observation) -> Reading:
    """The reply that the client's steps would have made of its gradients alone.

    Args:
        store: with the earlier replies of the same client.
        seen: as ``store`` has it.
    """
    sent, received = store.beside(seen.key)
    model = _halves(seen.sent)[0]
    servers = {k: v for k, v in _variates(sent, seen.sent) if any(t.any() for t in v.values())}
    if not servers:
        return Reading(seen)
    clients = dict(_variates(received, seen.received, model))
    update = replace(seen, sent=model).update(model)
    for server in servers.values():
        for name, value in clients.items():
            earlier = _earlier(store, seen.key, name)
            last = earlier[-1] if earlier else {}
            forms = {
                "difference": (value, _sum([*earlier, value])),
                "next": (_sum([value, {k: -v for k, v in last.items()}]), value),
            }
            for step, gradient in forms.values():
                applied = _sum([step, server])
                if cosine(update, applied) > _PARALLEL:
                    corrected = _corrected(replace(seen, sent=model), update, applied, gradient)
                    return Reading(corrected).finding(Finding("variates", _TAKEN_OUT))
    records = [name for name in servers if name != _BEHIND]  # a model may have two equal halves
    doubt = (
        f"the server sent {' and '.join(records)} beside the model, by which the client may have "
        "changed its steps, and the replies do not tell the client's own"
    )
    named = Finding("server_record", doubt, hides=True) if records else None
    return Reading(seen).finding(named)


def _corrected(
    seen: Observation, update: Tensors, applied: Tensors, gradient: Tensors
) -> Observation:
    """The reply after steps by the gradient alone, in the format in which it came."""
    both = sum(float((update[k] * v).sum()) for k, v in applied.items())
    length = both / sum(float(v.square().sum()) for v in applied.values())
    received = dict(seen.received)
    for name, value in gradient.items():
        step = length * value
        whole = {"weights": seen.sent[name].double() - step, "difference": -step}
        received[name] = whole.get(seen.kind, step).to(received[name].dtype)
    return replace(seen, received=received)


def _variates(
    beside: Tensors, tensors: Tensors, model: Tensors | None = None
) -> Iterator[tuple[str, Tensors]]:
    """Sets of arrays of the model's names and shapes, by the name of their record."""
    whole, behind = _halves(tensors)
    if behind:
        yield _BEHIND, behind
    model = whole if model is None else model
    for record in dict.fromkeys(name.partition("/")[0] for name in beside):
        entries = {k.partition("/")[2]: v for k, v in beside.items() if k.startswith(f"{record}/")}
        if entries and all(k in model and model[k].shape == v.shape for k, v in entries.items()):
            yield repr(record), _floats(entries, model)


def _halves(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """A model and as many arrays of the same shapes behind it, under the model's names, if any."""
    names, middle = list(tensors), len(tensors) // 2
    pairs = list(zip(names[:middle], names[middle:], strict=False))
    if len(names) % 2 or any(tensors[a].shape != tensors[b].shape for a, b in pairs):
        return tensors, {}
    model = {a: tensors[a] for a, _ in pairs}
    return model, _floats({a: tensors[b] for a, b in pairs}, model)


def _floats(variates: Tensors, model: Tensors) -> Tensors:
    return {k: v.double() for k, v in variates.items() if model[k].is_floating_point()}


def _earlier(store: CaptureStore, key: CaptureKey, name: str) -> list[Tensors]:
    """The variates that the client replied with in the rounds before."""
    variates = []
    for other in store.keys():
        if other.client == key.client and other.round < key.round:
            seen, beside = store.load(other), store.beside(other)[1]
            variates.append(dict(_variates(beside, seen.received, seen.sent)).get(name, {}))
    return variates


def _sum(parts: list[Tensors]) -> Tensors:
    return {
        name: torch.stack([part[name] for part in parts if name in part]).sum(0)
        for name in parts[0] or parts[-1]
    }
