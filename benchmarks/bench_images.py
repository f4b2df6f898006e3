"""Speed-up of the image attacks over a literal implementation of their formulas.

Both sides run on one thread, in turn; see ``benchmarks.stopwatch``. LeNet at its random
weights, built-in pictures of 32 x 32 pixels, one picture a client.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from attacks.base import Job
from attacks.engine.descent import Objective, descend
from attacks.images.dlg import DLG
from attacks.images.image_losses import matching_loss, total_variation
from attacks.images.inverting import pixel_objective
from attacks.observed.replay import replay
from attacks.solved.closed_form import ClosedForm
from benchmarks.measure import Measure
from benchmarks.stopwatch import in_turn, ratio, timed
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.process import one_thread
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

LENET = TaskConfig(model="lenet", dataset="shapes", split="train[:64]")
WEIGHT = 3e-3  # of total variation
RESTARTS = (1, 4, 16)
STEPS, REPEATS = 20, 5
TOLERANCES = (1e-6, 1e-7, 1e-8, 1e-9)
EXACT = 1e-3  # mean squared error of a pixel
RESTART_GOAL, SAMPLE_GOAL = ">= 3.5", ">= 4"


@dataclass(frozen=True)
class BenchSetting:
    """Pictures, and a client's update for the first of them."""

    task: Task
    pictures: Batch
    seen: Observation


def image_speed() -> Iterator[Measure]:
    """All measurements of this part."""
    with one_thread():
        setting = make_setting(LENET)
        yield from restart_speed(setting, STEPS, REPEATS)
        yield from compiled_speed(setting, REPEATS)
        yield from sample_speed(setting, REPEATS)
        yield from exact_speed(setting)


def make_setting(config: TaskConfig) -> BenchSetting:
    """The rows of a task and one undefended gradient, its label granted."""
    rows = load_rows(config.dataset, config.split, modality="image")
    task = make_task(config, rows)
    sent, pictures = initial_weights(task, config, seed=0), task.encode(rows)
    knowledge = Knowledge(
        labels=tuple(pictures.labels[:1].tolist()), num_examples=1, local_steps=1, train_mode=False
    )
    gradient = task.gradient(task.model(sent), pictures[0])
    key = CaptureKey(round=1, client=0)
    return BenchSetting(task, pictures, Observation(key, sent, gradient, "gradient", knowledge))


class PlainInverting:
    """Inverting Gradients, implemented literally: one restart, double backward."""

    def __init__(self, network: nn.Module, observed: Tensors, labels: Tensor) -> None:
        self._network, self._labels = network, labels
        parameters = dict(network.named_parameters())
        self._parameters = [parameters[name] for name in observed]
        self._observed = list(observed.values())

    def descend(self, image: Tensor, steps: int) -> Tensor:
        """The picture after so many steps from ``image``, at the first learning rate."""
        image = image.clone().requires_grad_()
        optimizer = torch.optim.Adam([image], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            self.objective(image).backward()
            assert image.grad is not None
            image.grad.sign_()
            optimizer.step()
            with torch.no_grad():
                image.clamp_(0, 1)
        return image.detach()

    def objective(self, image: Tensor) -> Tensor:
        """``1 - cosine + WEIGHT * TV``."""
        loss = F.cross_entropy(self._network(image), self._labels)
        gradient = torch.autograd.grad(loss, self._parameters, create_graph=True)
        pairs = list(zip(gradient, self._observed, strict=True))
        inner = sum((g * o).sum() for g, o in pairs)
        own = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
        other = torch.stack([o.square().sum() for o in self._observed]).sum().sqrt()
        return 1 - inner / (own * other) + WEIGHT * total_variation(image)


def _searched(setting: BenchSetting) -> Objective:
    model = replay(setting.seen, setting.task, torch.device("cpu"))
    return pixel_objective(matching_loss(model, setting.seen, adaptive=False), WEIGHT)


def _lanes(setting: BenchSetting, count: int) -> tuple[Tensor, tuple[Tensor, Tensors]]:
    """Starts, labels and gradients of so many restarts of the first picture."""
    shape = (count, 1, *setting.task.spec.input_shape)
    starts = torch.rand(shape, generator=generator(0, "starts"))
    observed = {k: v.expand(count, *v.shape) for k, v in setting.seen.received.items()}
    return starts, (setting.pictures.labels[:1].expand(count, 1), observed)


def restart_speed(setting: BenchSetting, steps: int, repeats: int) -> Iterator[Measure]:
    """Milliseconds of a literal step, and the speed-up per restart of several together."""
    network = setting.task.model(setting.seen.sent)
    plain = PlainInverting(network, setting.seen.received, setting.pictures.labels[:1])
    objective, job = _searched(setting), Job()

    def ours(count: int) -> None:
        starts, lanes = _lanes(setting, count)
        variables = {"start": starts}
        descend(objective, variables, lanes, job, steps=steps, learning_rate=0.1, pixels=True)

    start = _lanes(setting, 1)[0][0]
    slow, *fast = in_turn(
        repeats,
        partial(plain.descend, start, steps),
        *(partial(ours, count) for count in RESTARTS),
    )
    yield Measure("LeNet, IG: plain step", 1e3 * statistics.median(slow) / steps, "ms", "-")
    for count, seconds in zip(RESTARTS, fast, strict=True):
        goal = RESTART_GOAL if count == max(RESTARTS) else "-"
        # ``descend`` looks at its last iterate too.
        gain = count * ratio(slow, seconds) * (steps + 1) / steps
        yield Measure(f"LeNet, IG: step of each of {count} restarts", gain, "x", goal)


def compiled_speed(setting: BenchSetting, repeats: int) -> Iterator[Measure]:
    """Time and speed-up of compiling the gradients of all restarts; nothing if that fails.

    A machine without a C++ compiler has nothing to say here.
    """
    eager = vmap(grad_and_value(_searched(setting), has_aux=True))
    compiled = torch.compile(eager)
    starts, lanes = _lanes(setting, max(RESTARTS))
    variables = {"start": starts}
    began = time.monotonic()
    try:
        compiled(variables, *lanes)
    except RuntimeError:
        return
    seconds = time.monotonic() - began
    slow, fast = in_turn(
        repeats, partial(eager, variables, *lanes), partial(compiled, variables, *lanes)
    )
    label = f"LeNet, IG: slopes of {max(RESTARTS)} restarts"
    yield Measure(f"{label}, compiling", seconds, "s", "-")
    yield Measure(f"{label}, compiled / not", ratio(slow, fast), "x", "-")


def sample_speed(setting: BenchSetting, repeats: int) -> Iterator[Measure]:
    """Speed of the gradients of many pictures, one by one and as lanes of one pass."""
    task, pictures = setting.task, setting.pictures
    network = task.model(setting.seen.sent)
    model = replay(setting.seen, task, torch.device("cpu"))

    def one(image: Tensor, label: Tensor) -> Tensors:
        return model.pure_gradient(Batch(image[None], label[None]))

    def loop() -> list[Tensors]:
        return [task.gradient(network, pictures[i]) for i in range(len(pictures))]

    slow, fast = in_turn(repeats, loop, partial(vmap(one), pictures.inputs, pictures.labels))
    label = "LeNet: gradient of a picture"
    yield Measure(f"{label}, in a loop", 1e3 * statistics.median(slow) / len(pictures), "ms", "-")
    gain = ratio(slow, fast)
    yield Measure(f"{label}, each of {len(pictures)}", gain, "x", SAMPLE_GOAL)


def exact_speed(setting: BenchSetting) -> Iterator[Measure]:
    """Time of DLG until its picture is right, and of the closed form.

    DLG cannot know that it is right: of the tolerances the loosest is taken that makes it so.
    """
    truth, task, seen = setting.pictures[0].inputs, setting.task, [setting.seen]
    for tolerance in TOLERANCES:
        search = DLG(tolerance=tolerance)
        run = partial(search.reconstruct, seen, task, [generator(0, "dlg")], Job())
        slow, found = timed(run)
        error = float((found[0].guess.inputs - truth).square().mean())
        if error <= EXACT:
            break
    yield Measure("LeNet, DLG: a picture", slow, "s", "-")
    yield Measure("LeNet, DLG: mean squared error", error, "", f"<= {EXACT}")
    run = partial(ClosedForm().reconstruct, seen, task, [generator(0, "exact")], Job())
    fast, found = timed(run)
    error = float((found[0].guess.inputs - truth).square().mean())
    yield Measure("LeNet, closed form: a picture", fast, "s", "-")
    yield Measure("LeNet, closed form: mean squared error", error, "", f"<= {EXACT}")
    yield Measure("LeNet: DLG / closed form", slow / fast, "x", "-")
