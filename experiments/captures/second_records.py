"""What crossed the wire beside the model: listed, and read as gradients where it shows one.

Clients of FedOpt-like schemes send their optimizer's state, others gradients, squares of them (a
Fisher information) or scores such as ``|g|`` and ``|g w|``, as records of arrays or as lists in
their metrics. After one step of Adam the first moment is ``(1 - beta) g``, the second
``(1 - beta) g^2``, and the update has the signs of ``g`` alone: so any of them makes it whole.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from experiments.captures.reading import Finding, Listed, Reading, cosine
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureStore, Observation
from fedsim.store.tensor_files import packed_tensors
from fedsim.tensor_names import named
from fedsim.types import Tensors

_AGREE = 0.95
"""Share of entries with the sign of the update from which a record is a gradient, or a mean of
those of few steps; those of the tests agree by 1 or 0, and other records by .48 to .54. The tests
of records pass at half and at twice the distance from 1."""
_PARALLEL = 0.999
"""Cosine from which a record says no more than the update."""


_MANY = 64  # entries of a record that is named by its size alone: a list of losses has fewer
_SEVERAL = 2  # matrices by which scores are told
_ASKED = 4  # matrices, the smallest ones, whose directions are counted
_FEWER = 0.5
"""Directions of what is divided by the weights, as a share of what came, up to which it was g w."""
_VALUES = 3  # that a matrix has, from which it is no mask
_ORDERED = 0.5
"""Directions of a record, as a share of those of its entries shuffled, up to which its absolute
values are those of a gradient, with the signs of the update. Those of the tests are at .26 to .31,
random values at .6 and more, and so are true ones where noise covers the signs, which read .61 to
.82. Half of it misses the tests' records, twice of it reads any."""


def read_beside(store: CaptureStore, reading: Reading, network: nn.Module) -> Reading:
    """Everything that came with a reply, each record read if it can be.

    Args:
        store: of the capture.
        reading: of the reply, under the names of ``network``.
        network: whose parameters the records are compared with.
    """
    seen, model = reading.observation, store.load(reading.observation.key)
    shared = model.received.keys() & model.sent.keys() or model.received.keys()
    beside = {f"model/{k}": v for k, v in model.received.items() if k not in shared}
    for place, value in store.beside(seen.key)[1].items():
        beside |= _opened(place, value)
    listed = [_listed("model", {k: model.received[k] for k in shared}, "", seen.kind)]
    findings, unread, best = list[Finding](), list[str](), seen
    for record, tensors, likened in _records(beside, network):
        gradient, what = _gradient(likened, seen) if likened else (None, "")
        relation = "the model's shapes" if likened else _size_of(tensors, network)
        listed.append(_listed(record, tensors, relation, what))
        if relation and not what and best is seen:
            count = f"{len(tensors)} tensor{'s' * (len(tensors) > 1)}"
            unread.append(f"{record!r}, {count} of {relation}")
        if gradient is not None and best is seen:
            best = replace(seen, kind="gradient", received=gradient)
            findings.append(Finding("record", f"{record!r} beside it was read as {what}"))
    if unread:
        said = f"beside the model came {' and '.join(unread)}, which were not read"
        findings.append(Finding("unread_record", f"{said}: pass them as gradients", hides=True))
    return replace(reading.finding(*findings, observation=best), wire=tuple(listed))


def _opened(place: str, value: torch.Tensor) -> Tensors:
    """The tensors that a client packed into bytes, by place; else the value."""
    packed = packed_tensors(value.numpy().tobytes()) if value.dtype == torch.uint8 else {}
    record = place.replace("/", ".")
    return {f"{record}/{name}": each for name, each in packed.items()} or {place: value}


def _size_of(tensors: Tensors, network: nn.Module) -> str:
    """The parameter of which a record may be the gradient alone; empty for none or several."""
    sizes = [value.numel() for value in tensors.values()]
    alike = [name for name, value in network.named_parameters() if [value.numel()] == sizes]
    return f"the size of {alike[0]!r}" if len(alike) == 1 and sizes[0] >= _MANY else ""


def _records(beside: Tensors, network: nn.Module) -> Iterator[tuple[str, Tensors, Tensors]]:
    """Each record with its tensors, and these under the network's names, empty if they are others.

    A record of several sets, ``exp_avg.<name>`` or ``state.<number>.exp_avg``, is taken apart, and
    so are vectors of metrics.
    """
    for record in dict.fromkeys(name.partition("/")[0] for name in beside):
        entries = {k.partition("/")[2]: v for k, v in beside.items() if k.startswith(f"{record}/")}
        sets = next(
            (
                parts
                for parts in ({"": entries}, *_sets(entries))
                if any(_likened(part, network) for part in parts.values())
            ),
            {"": entries},
        )
        for name, part in sets.items():
            yield f"{record}/{name}" if name else record, part, _likened(part, network)


def _sets(entries: Tensors) -> Iterator[dict[str, Tensors]]:
    """The entries by the beginning, the end, and the whole of their names."""
    parts = [(name.partition(".")[0], name.rpartition(".")[2], name) for name in entries]
    for chosen in zip(*parts, strict=True):
        sets: dict[str, Tensors] = {}
        for part, (name, value) in zip(chosen, entries.items(), strict=True):
            sets.setdefault(part, {})[name] = value
        yield sets


def _likened(tensors: Tensors, network: nn.Module) -> Tensors:
    """The tensors under the names of the network's parameters, float64; empty if of others."""
    parameters = dict(network.named_parameters())
    for form in (tensors, list(tensors.values())):
        try:
            matched = named(form, network, "beside").tensors
        except ConfigError:
            continue
        return {name: value.double() for name, value in matched.items() if name in parameters}
    return {}


def _listed(name: str, tensors: Tensors, relation: str, read_as: str) -> Listed:
    entries = sum(value.numel() for value in tensors.values())
    formats = dict.fromkeys(str(v.dtype).removeprefix("torch.") for v in tensors.values())
    return Listed(name, len(tensors), entries, tuple(formats), relation, read_as)


def _gradient(given: Tensors, seen: Observation) -> tuple[Tensors | None, str]:
    """The gradient that a record shows beside an update, if it adds to it, and as what."""
    update = {k: v for k, v in seen.update(list(given)).items() if k in given}
    given = {name: given[name] for name in update}
    if not update or not any(bool(value.any()) for value in given.values()):
        return None, ""
    if cosine(given, update) > _PARALLEL:
        return None, "a multiple of the update"
    agree = _agreement(given, update)
    if agree > _AGREE:
        return _as_sent(given, seen), "a gradient up to its length"
    if agree < 1 - _AGREE:
        return _as_sent({k: -v for k, v in given.items()}, seen), "minus a gradient"
    if any(
        bool((v < 0).any()) or (v.dim() > 1 and len(v.unique()) < _VALUES) for v in given.values()
    ):
        return None, ""  # a mask has two values
    forms = {
        "absolute values of a gradient": given,
        "squares of a gradient": {name: value.sqrt() for name, value in given.items()},
        "scores |g w| of a gradient": {
            name: value / seen.sent[name].double().abs().clamp(min=1e-30)
            for name, value in given.items()
        },
    }
    signed = {
        what: {name: value * update[name].sign() for name, value in form.items()}
        for what, form in forms.items()
    }
    what = min(signed, key=lambda form: _imbalance(signed[form]) + _spread(signed[form]))
    if _spread(signed[what]) > _ORDERED * _spread(_shuffled(signed[what])):
        return None, ""
    return _as_sent(signed[what], seen), f"{what}, with the signs of the update"


def without_weights(scores: Tensors, sent: Tensors) -> tuple[Tensors, Finding | None]:
    """The gradient, or its absolute values, that scores of weights show.

    Args:
        scores: as received.
        sent: the weights, by which scores may be multiplied.

    Returns:
        ``g`` or ``|g|``, and what was received; as it was, and None, if that is a gradient.
    """
    matrices = [value for value in scores.values() if value.dim() > 1]
    if len(matrices) < _SEVERAL or not scores.keys() <= sent.keys():
        return scores, None
    if any(bool((value < 0).any()) for value in matrices):
        divided = _divided(scores, sent)
        spread = _spread(divided)
        if spread > _FEWER * _spread(scores) or spread > _ORDERED * _spread(_shuffled(divided)):
            return scores, None  # few weights near 0 make noise large, too
        said = "they are products g w of a gradient and the weights, and were divided by these"
        return divided, Finding("products", said)
    sizes = {name: value.abs() for name, value in sent.items()}
    roots = {name: value.sqrt() for name, value in scores.items()}
    forms = {
        "|g|": scores,
        "|g w|": _divided(scores, sizes),
        "g^2": roots,
        "(g w)^2": _divided(roots, sizes),
    }
    what = min(forms, key=lambda form: _spread(forms[form]) + _unbalanced(forms[form]))
    divisor = ", and were divided by the weights" if "w" in what else ""
    said = f"no entry is negative: they are absolute values, as saliency scores are, read as {what}"
    said = f"{said}{divisor}; their signs are lost, and no proof is left"
    return forms[what], Finding("unsigned", said, hides=True)


def _divided(scores: Tensors, by: Tensors) -> Tensors:
    return {
        name: torch.where(by[name] == 0, 0.0, value / by[name]).to(value.dtype)
        for name, value in scores.items()
    }


def _unbalanced(sizes: Tensors) -> float:
    """How far the largest entry of the last layer's columns is from the sum of the others.

    Slopes of a softmax at one example add up to 0, and one of them alone is negative.
    """
    last = [value for value in sizes.values() if value.dim() > 1][-1].double()
    return float((2 * last.amax(0) - last.sum(0)).abs().sum() / last.sum().clamp(min=1e-30))


def _as_sent(gradient: Tensors, seen: Observation) -> Tensors:
    return {name: value.to(seen.received[name].dtype) for name, value in gradient.items()}


def _agreement(given: Tensors, update: Tensors) -> float:
    """Share of the entries that are not zero in either which have the same sign."""
    alike = moved = 0
    for name, value in given.items():
        signs = value.sign() * update[name].sign()
        alike, moved = alike + int((signs > 0).sum()), moved + int((signs != 0).sum())
    return alike / moved if moved else 0.5


def _imbalance(gradient: Tensors) -> float:
    """Part of the last layer's gradient in its sum over the outputs, which a softmax makes 0.

    It tells a gradient of one example from its squares, which have one direction as well.
    """
    last = gradient[next(reversed(gradient))]
    return float(last.sum(0).abs().sum() / last.abs().sum().clamp(min=1e-30))


def _shuffled(gradient: Tensors) -> Tensors:
    """The same entries at other places of their tensors."""
    rng = torch.Generator().manual_seed(0)
    return {
        name: value.flatten()[torch.randperm(value.numel(), generator=rng)].view_as(value)
        for name, value in gradient.items()
    }


def _spread(gradient: Tensors) -> float:
    """How many directions the smallest matrices have: nuclear over Frobenius norm, summed.

    A gradient of few examples has as few; its squares or products with weights have more.
    """
    matrices = [value.flatten(1).double() for value in gradient.values() if value.dim() > 1]
    matrices = sorted(matrices, key=lambda value: value.numel())[:_ASKED]
    ratios = [
        float(torch.linalg.matrix_norm(value, "nuc") / value.norm().clamp(min=1e-30))
        for value in matrices
    ]
    return sum(ratios)
