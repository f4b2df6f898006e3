"""What one reply shows of its defense and its training.

Where a threshold says nothing else, half and twice of it judge the benchmark's replies alike.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

import torch
from torch import Tensor, nn

from attacks.observed.readings import FULL_SHARE, HALVES, read
from attacks.observed.running_statistics import facts_shown
from experiments.attest.findings import OPEN, Attested, Finding, Part, State
from experiments.attest.noise import MANY, Null, head_of, made_up
from experiments.attest.seen import FEWEST, TIED, Reply, living, most_of
from experiments.captures.update import Update
from fedsim.knowledge import MULTIPLES
from fedsim.types import Tensors

_LEAST_KEPT = 0.04
"""Size of the hundredth smallest entry in median sizes, from which the largest were kept: a tenth
of the entries left out leaves .1, and random ones .01. Twice misses percentiles in weights."""
_OWN_ZEROS = 0.005
"""Share of zeros that a network's own gradient may have where more of them tell of pruning."""
_HALF = 0.5
"""Share of zeros, chosen by no size, that no unit without a slope explains. A quarter takes what
digits of weights lack for pruning; more misses zeros at random."""
_LEVELS = 1e4
"""Digits of the wire to the largest change, from which a grid of 127 steps shows."""
_CUT = 0.005
"""Share of entries of the largest size, from which they were truncated to it."""
_BEYOND_SGD = 1e-3
"""Share by which rounding may lengthen what SGD did."""
_SURE = 5.0
"""Standard deviations by which a kurtosis is told from another."""


def attest(victim: Update) -> Attested:
    """What a reply shows of its defense, without canary, truth or the client's help.

    Args:
        victim: as of ``fedsim.Update.of`` or ``fedsim.captured``.

    Example:
        >>> import fedsim, torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> def loss(network, batch):
        ...     return torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels)
        >>> value = loss(net, fedsim.types.Batch(torch.rand(1, 1, 8, 8), torch.tensor([3])))
        >>> gradients = torch.autograd.grad(value, list(net.parameters()))
        >>> victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
        >>> fedsim.attest(victim)["noise"].state
        'absent'
    """
    seen = victim.observation
    reply = Reply(victim)
    broken = not all(bool(value.isfinite().all()) for value in reply.update.values())
    if broken or not any(bool(value.any()) for value in reply.update.values()):
        why = "NaN or infinite values" if broken else "the client did not move"
        findings = tuple(_finding(part, "open", why) for part in get_args(Part))
    else:
        findings = tuple(each(reply) for each in _READERS)
    return Attested(key=seen.key, findings=findings)


def _finding(part: Part, state: State, text: str = OPEN, **values: object) -> Finding:
    return Finding.model_validate({"part": part, "state": state, "text": text, **values})


def _format(reply: Reply) -> Finding:
    sent = [v for v in reply.seen.received.values() if v.is_floating_point()]
    types = {value.dtype for value in sent}
    if max(each.itemsize for each in types) >= torch.float32.itemsize and not reply.one_size:
        types = set([half for half in HALVES if _holds(half, sent)][:1]) or types
    names = " and ".join(sorted(str(each).removeprefix("torch.") for each in types))
    narrow = any(each.itemsize < torch.float32.itemsize for each in types)
    text = f"numbers of {names}"
    return _finding("format", "present" if narrow else "absent", text, proven=True)


def _holds(half: torch.dtype, sent: Iterable[Tensor]) -> bool:
    """Whether a format has all digits of what was sent in a longer one."""
    return all(torch.equal(value.to(half).to(value), value) for value in sent)


def _grid(reply: Reply) -> Finding:
    if reply.one_size:
        return _finding("grid", "open")
    steps = {name: read(value).step for name, value in reply.update.items() if _fine(reply, name)}
    if not steps:
        return _finding("grid", "open")
    if not most_of({name: reply.update[name] for name in steps}, lambda name: bool(steps[name])):
        return _finding("grid", "absent", proven=True)
    coarse = {name: step for name, step in steps.items() if step}
    levels = max(round(float(reply.update[k].abs().max()) / s) for k, s in coarse.items())
    largest = max(coarse.values())
    text = f"rounded to a grid of {levels} steps to the largest entry, of {largest:.3g} at most"
    return _finding("grid", "present", text, value=largest, proven=True)


def _fine(reply: Reply, name: str) -> bool:
    """Whether the wire has digits enough below an entry's largest change."""
    received = reply.seen.received[name]
    digit = torch.finfo(received.dtype).eps * float(received.abs().max())
    return float(reply.update[name].abs().max()) > _LEVELS * digit


def _signs(reply: Reply) -> Finding:
    if reply.coarse:
        return _finding("signs", "open")
    if not reply.one_size:
        return _finding("signs", "absent", proven=True)
    if reply.seen.kind != "gradient" and reply.seen.knowledge.optimizer is None:
        return _finding("signs", "open", "entries of one size: signs, or the first step of Adam")
    if reply.seen.knowledge.optimizer not in MULTIPLES:
        return _finding("signs", "open", "as its optimizer makes them")
    return _finding("signs", "present", "signs alone", proven=True)


def _sparsity(reply: Reply) -> Finding:
    if reply.one_size:
        return _finding("sparsity", "open")
    masks = {name: _unexplained(reply, name) for name in _dense(reply)}
    if not masks:
        return _finding("sparsity", "open")
    if _share(masks, reply.update) <= 1 - FULL_SHARE:
        if _may_hide_zeros(reply):
            return _finding("sparsity", "open")
        return _finding("sparsity", "absent", proven=True)
    values = torch.cat([reply.update[name].flatten() for name in masks])
    sizes = values[values != 0].abs()
    value = 1 - len(sizes) / len(values)
    # Adam makes the smallest entries as large as the others, whichever were kept.
    least = 0.0 if reply.adam else float(sizes.kthvalue(-(-len(sizes) // 100)).values)
    largest = least > _LEAST_KEPT * float(sizes.median())
    if not largest and value < _HALF:  # as of units without a slope, or digits that weights lack
        return _finding("sparsity", "open")
    chosen = "the largest were kept" if largest else "not seen to be chosen by size"
    text = f"{value:.1%} of the entries are zero, {chosen}"
    return _finding("sparsity", "present", text, value=value, proven=True)


def _unexplained(reply: Reply, name: str) -> Tensor:
    """Zeros of a tensor of which a share is told, and that a grid does not explain."""
    value = reply.update[name]
    if value.count_nonzero() < FEWEST or read(value).step:
        return torch.zeros_like(value, dtype=torch.bool)
    return reply.left_out(name)


def _share(masks: Mapping[str, Tensor], update: Tensors) -> float:
    """Share of zeros in the rows and columns that moved."""
    alive = sum(int(living(update[name]).sum()) for name in masks)
    return sum(int(mask.sum()) for mask in masks.values()) / max(alive, 1)


def _dense(reply: Reply) -> set[str]:
    """Tensors whose gradient has no zeros of its own, as units without a slope make them."""
    task = reply.victim.task
    if task.modality == "text":
        return set(reply.update)
    made = made_up(task, reply.network)
    flat = {name: value.flatten(1) if value.dim() > 2 else value for name, value in made.items()}
    zeros = {k: (v == 0) & living(v) for k, v in flat.items() if k in reply.update}
    return {k for k, mask in zeros.items() if float(mask.double().mean()) < _OWN_ZEROS}


def _may_hide_zeros(reply: Reply) -> bool:
    """Whether more than a few entries may be zeros: rounded, or of silent units.

    Tables have rows that no text used; single vectors, such as biases of keys, hardly move.
    """
    modules = reply.network.named_modules()
    tables = {f"{name}.weight" for name, each in modules if isinstance(each, nn.Embedding)}
    masks = {name: value.abs() <= reply.steps[name] for name, value in reply.update.items()}
    masks |= {name: masks[name] & living(reply.update[name]) for name in tables & masks.keys()}
    matrices = [mask.double().mean() for mask in masks.values() if mask.dim() > 1]
    whole = torch.cat([mask.flatten() for mask in masks.values()]).double().mean()
    return float(max([whole, *matrices])) > 1 - FULL_SHARE


def _cut(reply: Reply) -> Finding:
    # Steps of Adam are of one length, and levels of a grid hold many entries.
    if reply.one_size or reply.adam or reply.coarse or _grid(reply).state == "present":
        return _finding("cut", "open")
    largest = max(float(value.abs().max()) for value in reply.update.values())
    tops = {name: reply.largest(name, largest) for name in reply.update}
    count, moved = sum(int(top.sum()) for top in tops.values()), reply.update.values()
    share = count / sum(int(value.count_nonzero()) for value in moved)
    if share >= _CUT and count >= FEWEST and sum(map(_rows, tops.values())) >= TIED:
        text = f"entries were cut at {largest:.4g}, {share:.1%} of those that are not zero"
        return _finding("cut", "present", text, value=largest, proven=True)
    if any(map(reply.tied, reply.update)):
        return _finding("cut", "open")
    return _finding("cut", "absent", proven=True)


def _rows(mask: Tensor) -> int:
    """Rows that hold any of them; of a vector its entries."""
    return int(mask.any(-1).sum() if mask.dim() > 1 else mask.sum())


def _noise(reply: Reply) -> Finding:
    most = max(reply.bounds.values(), default=math.inf)
    least = min(reply.bounds.values(), default=math.inf)
    loud = [null for null in reply.nulls if not null.silent]
    quiet = [null for null in reply.nulls if null.silent]
    if math.isinf(least) or (reply.masked and _sparsity(reply).state == "present"):
        return _finding("noise", "open")
    if loud and not quiet:
        return _measured(loud, most)
    if loud:
        on, off = loud[0], ", ".join(sorted({repr(null.where) for null in quiet}))
        low, high = on.interval
        text = f"noise of {on.energy**0.5:.3g} in {on.where!r}, and none in {off}"
        size = {"value": on.energy**0.5, "low": low, "high": high}
        return _finding("noise", "present", text, **size, sound=False)
    if quiet:
        text = f"no noise in {quiet[0].what}"
        return _finding("noise", "absent", text, value=0.0, high=least, proven=True)
    text = f"at most {least:.3g} in every tensor"
    text += f", and {most:.3g} in any" if math.isfinite(most) else ""
    return _finding("noise", "open", text, high=least)


def _measured(loud: list[Null], most: float) -> Finding:
    """The noise of the null directions, of one size if they are all of one."""
    total, count = sum(n.energy * n.count for n in loud), sum(n.count for n in loud)
    pooled = Null("", "", total / count, count, 0.0, loud[0].samples)
    low, high = pooled.interval
    alike = all(n.interval[0] <= high and low <= n.interval[1] for n in loud)
    if not alike:
        sizes = ", ".join(f"{n.energy**0.5:.3g} in {n.where!r}" for n in loud)
        text = f"noise of several sizes: {sizes}"
        return _finding("noise", "present", text, low=min(n.interval[0] for n in loud), high=most)
    value = pooled.energy**0.5
    text = f"noise of {value:.3g} ({low:.3g} to {min(high, most):.3g}), seen in {loud[0].what}"
    return _finding("noise", "present", text, value=value, low=low, high=min(high, most))


def _shape(reply: Reply) -> Finding:
    samples = [null.samples for null in reply.nulls if not null.silent and len(null.samples)]
    if not samples or len(flat := torch.cat([each / each.std() for each in samples])) < MANY:
        return _finding("noise shape", "open")
    kurtosis = float(flat.pow(4).mean() / flat.square().mean() ** 2)
    error = math.sqrt(24 / len(flat))
    if abs(kurtosis - 3) < _SURE * error:
        return _finding("noise shape", "present", "Gaussian by its kurtosis", value=kurtosis)
    text = f"not Gaussian: kurtosis {kurtosis:.2f} (Gaussian 3, Laplace 6, uniform 1.8)"
    return _finding("noise shape", "present", text, value=kurtosis, sound=False)


def _clip(_: Reply) -> Finding:
    return _finding("clip", "open")


def _withheld(reply: Reply) -> Finding:
    parameters = [name for name, p in reply.network.named_parameters() if p.requires_grad]
    absent = [name for name in parameters if name not in reply.seen.received]
    still = [name for name in parameters if name in reply.update and not reply.update[name].any()]
    if not absent and not still:
        return _finding("withheld", "absent", proven=True)
    said = _named("were not sent", absent) + _named("did not move", still)
    return _finding("withheld", "present" if absent else "open", "; ".join(said), proven=True)


def _named(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return [f"{', '.join(map(repr, names[:2]))}{more} {what}"] if names else []


def _optimizer(reply: Reply) -> Finding:
    known = reply.seen.knowledge.optimizer
    if known is not None:
        return _finding("optimizer", "open", f"{known}, as is known")
    if reply.seen.kind == "gradient" or reply.one_size:
        return _finding("optimizer", "open")
    if reply.even:
        text = "entries are nearly of one size, as steps of Adam or its like are"
        return _finding("optimizer", "present", text)
    return _longer_than_sgd(reply)


def _longer_than_sgd(reply: Reply) -> Finding:
    """Slopes of a softmax have a sum of 2 at most, which bounds what SGD does to its biases."""
    known, head = reply.seen.knowledge, head_of(reply.victim.task, reply.network)
    moved = None if head is None else reply.update.get(head.bias or "")
    loud = any(not null.silent for null in reply.nulls)
    if moved is None or loud or known.learning_rate is None or known.local_steps is None:
        return _finding("optimizer", "open")
    most, length = 2 * known.learning_rate * known.local_steps, float(moved.abs().sum())
    if length <= most * (1 + _BEYOND_SGD):
        return _finding("optimizer", "open")
    text = (
        f"the last biases moved by {length:.3g}, and steps of SGD move them by {most:.3g} at most"
    )
    return _finding("optimizer", "present", f"{text}: momentum or its like", low=length / most)


def _decay(reply: Reply) -> Finding:
    findings = reply.victim.reading.findings
    said = next((each.said for each in findings if each.code == "decay"), "")
    return _finding("weight decay", "present" if said else "open", said or OPEN)


def _local_steps(reply: Reply) -> Finding:
    counted = facts_shown(reply.seen, reply.network).get("local_steps")
    if counted is not None:
        text = f"{counted} batch{'es' * (counted > 1)} counted by normalisation layers"
        return _finding("local steps", "present", text, value=counted, proven=True)
    return _finding("local steps", "open")


def _sum(reply: Reply) -> Finding:
    cohort = reply.seen.knowledge.cohort
    if cohort > 1:
        return _finding("sum", "present", f"the mean of {cohort} clients", value=cohort)
    return _finding("sum", "open")


_READERS: Iterable[Callable[[Reply], Finding]] = (
    *(_format, _grid, _signs, _sparsity, _cut, _noise, _shape, _clip, _withheld),
    *(_optimizer, _decay, _local_steps, _sum),
)
