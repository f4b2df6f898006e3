"""Gaussian noise of a reply: the most that its entries allow, and what null directions show.

*At most.* Noise ``N(0, s^2)`` on every entry of a tensor makes no entry small too often: whatever
the update under it, of ``n`` entries each is below ``t`` with a chance of at most
``erf(t / (s sqrt 2))`` (Anderson 1955), so that the k-th smallest one bounds ``s`` from above, and
so does their norm, and the mean of their cosines. No model is needed, and zeros allow none.

*Null directions* are combinations of entries that the loss leaves at 0, so that what stands there
is noise: the sums over the classes of a softmax, rows of words and places that no text of the batch
has, and what is beyond the rank that the examples can have.

Half and twice of each threshold judge 134 replies (60 undefended, 46 defended, 28 of liars) alike;
where they do not, it says so.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from scipy.special import erfinv
from scipy.stats import beta, chi2
from torch import Tensor, nn

from attacks.observed.labels import Head, find_head
from attacks.observed.local_steps import LocalSteps
from attacks.observed.readings import read
from attacks.observed.spectrum import spectrum
from attacks.observed.word_rows import is_tied
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.precision import at_own_precision
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

CHANCE = 1e-9
"""With which a bound may fail."""
LEVEL = 0.01
"""Of the intervals of null directions."""
_SHARES = (0.001, 0.01, 0.1, 0.25, 0.5)
"""Of the entries, the smallest ones whose size bounds the noise. Twice leaves the shape of uniform
noise open in 2 of the 134."""
_WAVES = (2.0, 2.6, 3.4)
"""Frequencies over the entries' size; at 2.6 uniform noise leaves .2, and Gaussian noise .03. Half
leaves the shape of uniform noise open in 2 of 67 replies (LeNet: 16 undefended, 23 defended; 28 of
liars), which are refuted all the same, and twice judges them alike."""
_FLOAT = 3e-6
"""Error of a sum of float32, as a share of the largest entry. Half sees noise in 1 of the 60 that
have none."""
FEWEST = 30
"""Entries of a null direction."""
MANY = 1000
"""Entries of a tensor whose sizes have a shape. Half tells it in 27 replies more."""
_LARGE, _SPEND = 1024, 4
"""Longest shorter side of a matrix whose spectrum is asked, and how many are."""
_ASYMPTOTIC = 1.03
"""Factor by which the noise of a spectrum may be off, as its law is that of large matrices."""
_UNEVEN = 2.0
"""Scatter of the energies of rows that hold noise, in units of its own; rows in use have more."""
_MISFIT = 6.0
"""Standard deviations of the mean of a null direction that is none."""


@dataclass(frozen=True)
class Null:
    """Entries that hold noise alone.

    Attributes:
        where: the tensor.
        what: why the loss leaves them at 0, in words.
        energy: mean square.
        count: how many.
        rounding: mean square that float arithmetic explains.
        samples: the entries, ``(count,)``; empty of a spectrum, which has none.
    """

    where: str
    what: str
    energy: float
    count: int
    rounding: float
    samples: Tensor

    @property
    def silent(self) -> bool:
        """Whether nothing stands there beyond rounding."""
        return self.energy <= self.rounding

    @property
    def interval(self) -> tuple[float, float]:
        """Of the standard deviation."""
        total = self.energy * self.count
        most, least = (float(chi2.isf(level, self.count)) for level in (LEVEL / 2, 1 - LEVEL / 2))
        slack = 1 if len(self.samples) else _ASYMPTOTIC
        return math.sqrt(total / most) / slack, math.sqrt(total / least) * slack


def at_most(values: Tensor, slack: Tensor | float = 0.0) -> float:
    """The largest standard deviation of Gaussian noise on all of these entries.

    Args:
        values: of one tensor, any shape.
        slack: by how much each may have been larger; infinite where nothing of it was left.
    """
    sizes = (values.abs() + slack).flatten().double()
    count = len(sizes)
    places = sorted({math.ceil(share * count) for share in _SHARES})
    bounds = [
        float(sizes.kthvalue(place).values) / _quantile(place, count) for place in places if place
    ]
    bounds.append(float(sizes.norm()) / math.sqrt(float(chi2.ppf(CHANCE, count))))
    return min([*bounds, *_by_waves(values, slack)])


def _by_waves(values: Tensor, slack: Tensor | float) -> Iterator[float]:
    """What mean cosines allow: Gaussian noise leaves ``exp(-(ts)^2 / 2)`` at a frequency ``t``.

    Hoeffding's bound holds for all of 2,500 frequencies, powers of ``2^(1/8)``, together.
    """
    flat, rounded = values.flatten().double(), float(torch.as_tensor(slack).double().mean())
    error, size = math.sqrt(2 * math.log(5e3 / CHANCE) / len(flat)), float(flat.norm())
    for wave in _WAVES if size > 0 and math.isfinite(size) else ():
        at = 2 ** (round(8 * math.log2(wave * len(flat) ** 0.5 / size)) / 8)
        level = abs(float((at * flat).cos().mean())) - error - at * rounded
        if level > 0:
            yield math.sqrt(-2 * math.log(level)) / at


@lru_cache(maxsize=4096)
def _quantile(place: int, count: int) -> float:
    """Of a standard normal entry's size, below which the k-th smallest of n hardly ever is."""
    return math.sqrt(2) * max(float(erfinv(beta.ppf(CHANCE, place, count - place + 1))), 1e-300)


def wire_step(value: Tensor, received: Tensor) -> Tensor:
    """Half the distance to the next number of the wire, of each entry.

    Weights may be rounded to a coarser format, or a grid, than that in which they cross.
    """
    held = at_own_precision({"": received.flatten()})[""]
    steps = [read(value.flatten().double()).half_step(held), rounding(received)]
    return torch.stack(steps).max(0).values.view_as(value)


def rounding(received: Tensor) -> Tensor:
    """As ``wire_step``, by what was received alone: a change may have a grid of its own."""
    flat = received.flatten()
    return read(flat.double()).half_step(at_own_precision({"": flat})[""])


def nulls(seen: Observation, task: Task, network: nn.Module, *, even: bool = False) -> list[Null]:
    """The null directions of a reply, those of most entries first.

    Args:
        seen: the reply.
        task: defines the loss.
        network: as broadcast.
        even: whether its entries are of nearly one size, as signs and steps of Adam are, which keep
            rows of zeros alone.
    """
    update = seen.update()
    known = [*_absent_rows(seen, update, task, network)]
    if not even:
        known += [
            *_class_sums(seen, update, task, network),
            *_beyond_rank(seen, update, task, network),
        ]
    if not known:
        known += _drowned(update)
    return sorted(filter(_random, known), key=lambda null: -null.count)


def _random(null: Null) -> bool:
    """Whether the entries scatter around 0, as noise does and what a loss leaves there does not."""
    if null.count < FEWEST:
        return False
    if null.silent or not len(null.samples):
        return True
    return abs(float(null.samples.mean())) < _MISFIT * math.sqrt(null.energy / null.count)


def _null(where: str, what: str, samples: Tensor, rounding: float) -> Null:
    flat = samples.flatten()
    return Null(where, what, float(flat.square().mean()), len(flat), rounding, flat)


def _class_sums(
    seen: Observation, update: Tensors, task: Task, network: nn.Module
) -> Iterator[Null]:
    """The slopes of a softmax add up to 0, hence each column of the last layer's gradient."""
    head = head_of(task, network)
    if head is None or head.weight not in update:
        return
    rows = update[head.weight]
    if rows.dim() != 2 or len(rows) < 2 or not _sums_to_zero(task, network, head.weight):
        return
    rounding = _rounding(seen, update, head.weight)
    sums = rows.sum(0) / len(rows) ** 0.5
    yield _null(head.weight, f"sums over the classes of {head.weight!r}", sums, rounding)


def head_of(task: Task, network: nn.Module) -> Head | None:
    """The layer before a softmax over classes; None without one."""
    if task.spec.target != "class" or task.spec.num_classes < 2:
        return None
    try:
        return find_head(network)
    except CannotAttack:
        return None


def _sums_to_zero(task: Task, network: nn.Module, name: str) -> bool:
    """Whether the loss is of that kind, asked with a batch that is made up."""
    if task.modality == "text":
        return True
    gradient = made_up(task, network)[name].double()
    return float(gradient.sum(0).norm()) <= 1e-5 * float(gradient.norm())


def made_up(task: Task, network: nn.Module) -> Tensors:
    """The gradient of two examples, each 0 where the other is not: a unit may miss either."""
    inputs = torch.rand(2, *task.spec.input_shape, generator=torch.Generator().manual_seed(0))
    first, second = inputs.flatten(1).tensor_split(2, 1)
    first[0], second[1] = 0, 0
    labels = torch.arange(2) % max(task.spec.num_classes, 1)
    return task.gradient(network, Batch(inputs, labels))


def _absent_rows(
    seen: Observation, update: Tensors, task: Task, network: nn.Module
) -> Iterator[Null]:
    """Rows of words and places that no text of the batch has: the bulk of a table."""
    if task.modality != "text":
        return
    names = embedding_names(network)
    for name in (None if is_tied(network) else names.word, names.position):
        if name is None or name not in update:
            continue
        rows = update[name]
        energy = rows.square().sum(1)
        bulk = energy <= 2 * energy.median()
        spread = float(energy[bulk].std() / energy[bulk].mean().clamp(min=1e-300))
        if spread <= _UNEVEN * (2 / rows.shape[1]) ** 0.5:
            rounding = _rounding(seen, update, name)
            yield _null(name, f"rows of {name!r} that no text used", rows[bulk], rounding)


def _beyond_rank(
    seen: Observation, update: Tensors, task: Task, network: nn.Module
) -> Iterator[Null]:
    """What linear layers hold beyond one direction for each example, and step, of a batch."""
    steps = LocalSteps.of(seen)
    if steps is None or task.modality == "text":
        return
    linear = {f"{k}.weight" for k, each in network.named_modules() if isinstance(each, nn.Linear)}
    made, most = made_up(task, network), steps.examples * steps.steps
    matrices = [k for k in linear & update.keys() if min(update[k].shape) <= _LARGE]
    for name in sorted(matrices, key=lambda k: -update[k].numel())[:_SPEND]:
        rows, columns = update[name].shape
        if most >= min(rows, columns) or not bool(update[name].any()):
            continue
        if torch.linalg.matrix_rank(made[name].double(), rtol=1e-5) > 2:
            continue  # it takes more than one input of each of two examples
        spread = spectrum(update[name], most)
        count = (rows - most) * (columns - most)
        rounding = _rounding(seen, update, name)
        rest = torch.linalg.svdvals(update[name])[most:].square().sum() / count
        energy = min(spread.noise**2, float(rest)) if float(rest) <= rounding else spread.noise**2
        what = f"what {name!r} holds beyond {most} directions"
        yield Null(name, what, energy, count, rounding, update[name].new_zeros(0))


def _drowned(update: Tensors) -> Iterator[Null]:
    """All large tensors, where each is Gaussian and of one size: noise drowns what is under it."""
    large = [v.flatten() for v in update.values() if v.numel() >= MANY]
    whole = torch.cat(large) if large else torch.zeros(1)
    size = float(whole.square().mean())
    for value in large if size else ():
        error = (24 / len(value)) ** 0.5
        kurtosis = float(value.pow(4).mean() / value.square().mean().clamp(min=1e-300) ** 2)
        alike = abs(float(value.square().mean()) / size - 1) < _MISFIT * (2 / len(value)) ** 0.5
        if abs(kurtosis - 3) > _MISFIT * error or not alike:
            return
    if len(large) > 1 and size:
        name = max(update, key=lambda each: update[each].numel())
        yield _null(name, "all large tensors, which are of one Gaussian", whole, 0.0)


def _rounding(seen: Observation, update: Tensors, name: str) -> float:
    """Mean square of what sums of float32 and the wire's digits leave of a 0."""
    value = update[name]
    step = wire_step(value, seen.received[name])
    sums = _FLOAT * float(value.abs().max())
    return sums**2 + 4 * float(step.square().mean()) / 3
