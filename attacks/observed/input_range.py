"""The range of another application's images, by what its first layers received of them.

Each usual range is tried with images drawn by the law of natural images. The mean of each channel
and the contrast tell bytes, pixels in [0, 1] and normalised ones apart; they are read off the
gradient of the first layer, or the statistics of a batch normalisation. The ranges are equally
likely before, and one is told where it is as good as sure after. Of tables and windows no law is
known that they could be compared with.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from attacks.observed.calls import inputs_of, noted
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.readings import EQUAL_MAGNITUDE, FULL_SHARE, read
from attacks.observed.running_statistics import tracking_layers, without_broadcast
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, load_state
from fedsim.tasks.images import ImageClassification
from fedsim.tasks.inputs import InputForm, Range
from fedsim.types import Batch

_DRAWS = 8
"""Batches drawn in each range."""
_BATCH = 4
"""Examples of a batch at most; means of more vary less, so that this is on the safe side."""
_EXPLAINS = 4.0
"""Standard deviations up to which a range explains what was received."""
_SURE = 0.95
"""Probability from which a range is told."""
_SLACK = 0.15
"""Deviation by a range's width, and of log contrast, not held against it: no law is exact."""
_ROUGH = 1.9
"""Roughness above which noise or another defense covers the gradient; that of images is below."""
_CENTRED = 1e-4
"""Largest sum of a unit's slopes, as a share of their sizes, that is none. Where the mean was taken
out, 32 clients have 4e-7 at most, and 96 of images in three ranges .11 and more."""
_NEVER = 1e9
"""Stands for infinity where means are taken."""
_DARK = 0.5
"""Contrast lost where black is the background, as of digits; colour pictures have none."""
_NEAR = 4.0
"""Distances between two numbers on the wire up to which an entry is next to zero."""
_CUT_OUTPUTS = 3
"""Outputs with one largest entry; the slopes of two, as of two classes, may be opposite."""
_MNIST = ((0.1307,), (0.3081,))  # means and deviations which most loaders normalise with
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # the same of small pictures
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The same of large pictures; the two are too near each other to be told apart."""
_SMALL = 64  # pixels up to which a picture is taken for a small one


@dataclass(frozen=True)
class LikelyRange:
    """Smallest and largest input, and what shows them."""

    form: InputForm
    source: str

    def __str__(self) -> str:
        bounds = (min(self.form.low), max(self.form.high))
        return f"inputs lie in [{bounds[0]:.2g}, {bounds[1]:.3g}], as {self.source}"

    def of(self, task: Task) -> Task:
        """The task with inputs in this range."""
        bounds = {"low": self.form.low, "high": self.form.high}
        return replace(task, spec=task.spec.model_copy(update=bounds))


@dataclass(frozen=True)
class _Reading:
    """Where a network shows the range of its inputs.

    Attributes:
        seen: numbers of the update.
        drawn: the same numbers of a batch.
        source: of the numbers, in words.
    """

    seen: Tensor
    drawn: Callable[[Tensor, torch.Generator], Tensor]
    source: str


@dataclass(frozen=True)
class RangeEvidence:
    """What an update says of each usual range.

    Attributes:
        forms: the ranges.
        logs: logarithms of their likelihoods, up to a constant.
        distances: the largest deviation of what was received from what images in each give, in
            standard deviations.
        source: of what was received, in words.
    """

    forms: tuple[InputForm, ...]
    logs: Tensor
    distances: Tensor
    source: str


def range_evidence(observation: Observation, task: Task) -> RangeEvidence | None:
    """What an update says of the range of its images.

    None where it shows none: there is no bias and no statistics, or a defense covers them.
    """
    if not isinstance(task, ImageClassification) or not task.form.plain:
        return None
    if min(task.spec.input_shape[1:]) == 1 or observation.knowledge.defense:
        return None
    network = task.build()
    with suppress(RuntimeError, ValueError, IndexError):  # of a network that is another's code
        load_state(network, observation.sent)
        reading = _statistics(observation, task, network) or _gradient(observation, task, network)
        if reading is not None and bool(reading.seen.isfinite().all()):
            return _compared(reading, task)
    return None


def likely_range(evidence: Sequence[RangeEvidence]) -> LikelyRange | None:
    """The range that updates of the same application tell, which may be [0, 1]; else None.

    The mean over the updates counts: what natural images have and the law does not is the same in
    all of them.
    """
    if not evidence:
        return None
    logs = torch.stack([each.logs for each in evidence]).mean(0)
    best = int(logs.argmax())
    distance = torch.stack([each.distances for each in evidence])[:, best].median()
    if float(logs.softmax(0)[best]) < _SURE or float(distance) > _EXPLAINS:
        return None
    return LikelyRange(evidence[0].forms[best], evidence[0].source)


def usual_ranges(pixels: tuple[int, int, int]) -> list[Range]:
    """[0, 1] first, then what loaders make of images ``(channel, height, width)``."""
    ranges: list[Range] = [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)]
    channels, height, width = pixels
    colour = _CIFAR if max(height, width) <= _SMALL else _IMAGENET
    if channels in (1, 3):
        pairs = list(zip(*(_MNIST if channels == 1 else colour), strict=True))
        ranges.append(([-m / d for m, d in pairs], [(1 - m) / d for m, d in pairs]))
    return ranges


def _compared(reading: _Reading, task: ImageClassification) -> RangeEvidence:
    shape = task.form.pixels
    forms = tuple(InputForm.of(shape, bounds) for bounds in usual_ranges(shape))
    kinds = (False, True) if shape[0] == 1 else (False,)
    # Finite, as a layer that overflows in a range speaks against it and not against the others.
    each = torch.tensor([[_fit(reading, form, dark=dark) for dark in kinds] for form in forms])
    logs, distances = each.nan_to_num(-_NEVER, _NEVER, -_NEVER).unbind(-1)
    return RangeEvidence(forms, logs.logsumexp(1), distances.abs().amin(1), reading.source)


def _fit(reading: _Reading, form: InputForm, *, dark: bool) -> tuple[float, float]:
    """Log likelihood of what was received by what such images give, and the largest deviation.

    Student's t of the draws, number by number, since mean and deviation are estimated from them.
    """
    rng = torch.Generator().manual_seed(0)
    prior = PixelPrior.of(None, form.pixels)
    none = torch.zeros(0, dtype=torch.int64)
    rows = []
    for _ in range(_DRAWS):
        images = (prior.mean + prior.draw(_BATCH, none, rng)).clamp(0, 1)
        images = ((images - _DARK) / (1 - _DARK)).clamp(0, 1) if dark else images
        rows.append(reading.drawn(form.given(images.float()), rng))
    drawn = torch.stack(rows)
    width = form.given(torch.ones(1, *form.pixels)) - form.given(torch.zeros(1, *form.pixels))
    slack = torch.full_like(drawn[0], _SLACK)
    slack[: form.pixels[0]] *= width.mean((0, 2, 3)).to(slack)
    deviation = (drawn.var(0) + slack.square()).sqrt()
    distances = (reading.seen - drawn.mean(0)).abs() / deviation
    tails = _DRAWS / 2 * (distances.square() / (_DRAWS - 1)).log1p()
    return float(-(tails + deviation.log()).sum()), float(distances.max())


def _statistics(
    observation: Observation, task: ImageClassification, network: nn.Module
) -> _Reading | None:
    """By the first batch normalisation: those of the client's batches, or of the broadcast."""
    layers = tracking_layers(observation, network)
    ones = torch.ones(1, *task.spec.input_shape)
    with torch.no_grad(), noted(layers) as calls:
        task.loss(network, Batch(ones, task.any_labels(1)))
    if not calls:
        return None
    name, layer = calls[0].name, calls[0].layer
    assert isinstance(layer, _NormBase)
    moments = _seen_moments(observation, name, layer)
    if moments is None:
        return None
    mean, variance = moments

    def inputs(images: Tensor) -> Tensor:
        run = lambda: task.loss(network, Batch(images, task.any_labels(len(images))))  # noqa: E731
        return inputs_of([layer], run)[0].transpose(0, 1).flatten(1).double()

    channels = len(ones[0])
    black = inputs(0 * ones).mean(1)
    bright = [
        inputs(ones * torch.eye(channels)[k].view(1, -1, 1, 1)).mean(1) for k in range(channels)
    ]
    response = torch.stack(bright, 1) - black[:, None]

    def numbers(means: Tensor, variances: Tensor) -> Tensor:
        solved = torch.linalg.lstsq(response, (means - black)[:, None]).solution[:, 0]
        return torch.cat([solved, variances.mean().log().view(1) / 2])

    def drawn(images: Tensor, rng: torch.Generator) -> Tensor:
        del rng
        values = inputs(images)
        return numbers(values.mean(1), values.var(1))

    what = f"the statistics of {name!r} show"
    return _Reading(numbers(mean.double(), variance.double()), drawn, what)


def _seen_moments(
    observation: Observation, name: str, layer: _NormBase
) -> tuple[Tensor, Tensor] | None:
    """Mean and variance at a layer: of the client's batches where it sent them.

    None of a network that is not trained, or where the client's were filtered.
    """
    names = [f"{name}.running_mean", f"{name}.running_var"]
    sent, received = observation.sent, observation.received
    moved = names[0] in received and observation.kind == "weights"
    if moved and not torch.equal(received[names[0]], sent[names[0]]):
        sent_moments = without_broadcast(observation, {name: layer}, 1)
        if sent_moments:
            if _filtered(observation, names):
                return None
            return sent_moments[f"batch-mean {name}"], sent_moments[f"batch-variance {name}"]
    return (sent[names[0]], sent[names[1]]) if bool(sent[names[0]].any()) else None


def _gradient(
    observation: Observation, task: ImageClassification, network: nn.Module
) -> _Reading | None:
    """By the first layer with a bias: its weight's gradient is that of the bias times inputs."""
    channels = task.spec.input_shape[0]
    layers = {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, nn.Conv2d | nn.Linear)
    }
    pixels = torch.rand(1, *task.spec.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), noted(layers) as calls:
        task.loss(network, Batch(pixels, task.any_labels(1)))
    parameters = dict(calls[0].layer.named_parameters(recurse=False)) if calls else {}
    if not {"weight", "bias"} <= parameters.keys():  # none, or a weight that is computed
        return None
    weight, bias = parameters["weight"], parameters["bias"]
    names = [f"{calls[0].name}.{part}" for part in ("weight", "bias")]
    if not set(names) <= observation.received.keys() or weight[0].numel() % channels:
        return None

    def numbers(slopes: Tensor, totals: Tensor) -> Tensor:
        return _moments(slopes.double().reshape(len(totals), channels, -1), totals.double())

    def drawn(images: Tensor, rng: torch.Generator) -> Tensor:
        batch = Batch(images, _targets(task, len(images), rng))
        with torch.enable_grad():
            slopes, totals = torch.autograd.grad(task.loss(network, batch), [weight, bias])
        return numbers(slopes, totals)

    update = observation.update(names)
    slopes = update[names[0]].flatten(1)
    if float(slopes.sum(1).abs().max()) < _CENTRED * float(slopes.abs().sum(1).max()):
        return None  # the mean was taken out, of the gradient or of the input
    if _roughness(update[names[0]]) > _ROUGH or _filtered(observation, names):
        return None
    what = f"the gradient of {names[0]!r} shows"
    return _Reading(numbers(update[names[0]], update[names[1]]), drawn, what)


def _moments(slopes: Tensor, totals: Tensor) -> Tensor:
    """Mean of each channel, and log contrast; of slopes ``(output, channel, place)``."""
    energy, totals = totals.square().sum(), totals.view(-1, 1, 1)
    means = (slopes * totals).sum(0).mean(1) / energy
    rest = (slopes - totals * means.view(1, -1, 1)).square().sum() / slopes[0].numel()
    return torch.cat([means, (rest / energy).log().view(1) / 2])


def _filtered(observation: Observation, names: Sequence[str]) -> bool:
    """Whether entries were zeroed, cut to one size, or reduced to signs on the way.

    Zeros of outputs with hardly a slope do not count, nor do as many as there are entries next to
    zero, which rounding explains. Of what is cut, the largest entries of several outputs have one
    size.

    Args:
        observation: of a client.
        names: of tensors ``(output, ...)``.
    """
    update = observation.update(names)
    parts = [update[name].reshape(len(update[name]), -1) for name in names]
    received = [observation.received[k].view_as(v) for k, v in zip(names, parts, strict=True)]
    readings = [read(part) for part in parts]
    if all(reading.signs for reading in readings):
        return True
    zeros = []
    for reading, part, raw in zip(readings, parts, received, strict=True):
        spacing = (torch.finfo(raw.dtype).eps * raw.abs()).clamp(min=reading.step)
        near = (part != 0) & (part.abs() <= _NEAR * spacing)
        zeros.append((part == 0).double() - near.double())
    entries = torch.cat(parts, 1)
    energy, alive = entries.square().sum(1), entries.any(1)
    if any(part.shape[1] == 1 and float(part[alive].sum()) > 0 for part in zeros):
        return True
    share = torch.cat(zeros, 1)[:, entries.any(0)].mean(1).clamp(min=0)
    if float(share @ energy) > (1 - FULL_SHARE) * float(energy.sum()):
        return True
    largest = entries.abs().amax(1)
    cut = largest > (1 - EQUAL_MAGNITUDE) * largest.max()
    return int(cut.sum()) >= _CUT_OUTPUTS


def _roughness(slopes: Tensor) -> float:
    """Change from place to place by the spread over places: over 2 for noise; 0 without places."""
    if slopes.shape[-1] == 1:
        return 0.0
    places = slopes.flatten(2) if slopes.dim() > 2 else slopes[:, None]
    spread = (places - places.mean(2, keepdim=True)).square().mean()
    return float(slopes.diff(dim=-1).square().mean() / spread)


def _targets(task: ImageClassification, count: int, rng: torch.Generator) -> Tensor:
    if task.spec.target == "class":
        return torch.randint(max(1, task.spec.num_classes), (count,), generator=rng)
    return task.any_labels(count)
