"""Activations of a batch: a sparse, non-negative dictionary of the second layer's gradient."""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from attacks.base import Job
from attacks.feasibility import Prospect
from attacks.observed.calls import noted
from attacks.observed.first_linear import FirstLinear, find_first_linear
from attacks.solved.sparse_columns import Factors
from fedsim.models.network import copied
from fedsim.tasks.base import Task
from fedsim.types import Batch

_PROBES = 16  # random images that show which layer takes the activations
_PROGRAMS = 30  # most linear programs from one start
_OVERSHOOT = 10.0  # price of a unit by which the cone's inequalities are missed, in units of h
_FIRST_SHARE = 0.003  # share of the activations left unexplained that is accepted at first
_EASE = 1.25  # growth of that share with each start that fails
_EXPLAINED_ACTIVATIONS = 1e-3
"""Share of an example's activations left unexplained below which only rounding is left."""
_UNEXPLAINED_ACTIVATIONS = 0.1
"""Largest such share of an example under noise; false minima of a crowded batch start at about
0.12."""
_DICTIONARY_PATIENCE = 30
"""Starts that fail in succession before the search for activations ends."""
_UNITS_PER_EXAMPLE = 8
"""Units of the first layer that an example needs for its activations to be found in seconds."""


class ReluDictionary:
    """The cone on whose extreme rays the examples of a batch lie.

    ``h = max(0, z)`` are the activations of an example and ``z = W [x, 1]`` their inputs. The
    gradient of a linear layer that takes them is ``E^T H``, so that ``h = V2 a`` for its right
    singular vectors ``V2 (unit, rank)``; that of the first layer yields ``z = M c`` in the same
    way. All examples lie in the cone ``h >= 0, h >= z``, and on each of them every unit
    reaches one of its two bounds, ``sum_j min(h_j, h_j - z_j) = 0``.

    The sum is concave, and linear programs with the active units ``s`` fixed lower it:
    minimise ``sum_j h_j - s_j z_j``, read ``s`` off the solution, repeat. A program is made
    bounded by ``l c = 1`` for a random ``l``, as the columns of a dictionary are found in ER-SpUD
    (Spielman et al. 2012); ``l`` vanishes on the examples found before, so that each program
    yields another. SPEAR++ (Bakarsky et al. 2025) learns the dictionary of the first layer's
    slopes, which is sparse but has no sign; this one needs far fewer units for an example.

    Attributes:
        programs: linear programs solved so far.
    """

    def __init__(self, factors: Factors, layer: nn.Linear, gradient: Tensor) -> None:
        """A dictionary from the gradient ``(output, unit)`` of the layer after ``layer``."""
        weight = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        _, _, right = torch.linalg.svd(gradient.to(weight), full_matrices=False)
        spans = (right[: factors.rank].T, weight @ factors.right.T)
        self._activations, self._inputs = (
            (s / s.square().mean().sqrt()).cpu().numpy() for s in spans
        )
        self._bias = factors.right[:, -1].cpu().numpy()
        self._live = factors.live
        below = np.hstack([-self._activations, np.zeros_like(self._inputs)])
        self._bounds = np.vstack([below, np.hstack([-self._activations, self._inputs])])
        self.programs = 0

    def silent(self, rng: torch.Generator, job: Job) -> Iterator[Tensor]:
        """The silent live units of one example after another, bool ``(unit,)``.

        Ends when every example is found, when the time is up, or when starts fail in succession.
        """
        rays: list[np.ndarray] = []
        failed, rank = 0, len(self._bias)
        while len(rays) < rank and failed < _DICTIONARY_PATIENCE and not job.expired:
            draw = torch.randn(rank, generator=rng, dtype=torch.float64).numpy()
            if rays:
                basis, _ = np.linalg.qr(np.array(rays).T)
                draw = draw - basis @ (basis.T @ draw)
            ray, share = self._descend(draw / np.linalg.norm(draw), rng, job)
            limit = min(_FIRST_SHARE * _EASE**failed, _UNEXPLAINED_ACTIVATIONS)
            if share > limit or not float(self._bias @ ray) > 0:
                failed += 1
                continue
            failed = 0
            rays.append(ray)
            yield torch.from_numpy(self._inputs @ ray <= 0).to(self._live.device)[self._live]

    def _descend(
        self, normal: np.ndarray, rng: torch.Generator, job: Job
    ) -> tuple[np.ndarray, float]:
        """A ray ``c`` on which the sum has a local minimum, and its unexplained share of ``h``."""
        chance = torch.rand(1, generator=rng, dtype=torch.float64)
        active = (torch.rand(len(self._inputs), generator=rng) < 0.2 + 0.6 * chance).numpy()
        share, inputs = np.inf, np.zeros_like(normal)
        for _ in range(_PROGRAMS):
            solved = None if job.expired else self._solve(active, normal)
            if solved is None:
                return inputs, np.inf
            h, inputs = self._activations @ solved[: len(normal)], solved[len(normal) :]
            z = self._inputs @ inputs
            # With few examples a ray may exist on which every unit is silent; it is none of them.
            share = float(np.abs(h - z.clip(0)).sum() / max(np.abs(h).sum(), 1e-300))
            before, active = active, z > h / 2
            if share < _EXPLAINED_ACTIVATIONS or bool((active == before).all()):
                break
        return inputs, share

    def _solve(self, active: np.ndarray, normal: np.ndarray) -> np.ndarray | None:
        """The ``(a, c)`` of one linear program; None if it has no solution.

        Bounds may be missed at a price, since noise moves the cone. The program is solved in its
        dual: a price of each bound, ``0 <= y <= _OVERSHOOT``, as many equations as coordinates.
        """
        self.programs += 1
        goal = np.concatenate([self._activations.sum(0), -(active @ self._inputs)])
        normal = np.concatenate([np.zeros(len(goal) - len(normal)), normal])
        count = len(self._bounds)
        result = linprog(
            np.append(np.zeros(count), -1.0),
            A_eq=np.hstack([self._bounds.T, -normal[:, None]]),
            b_eq=-goal,
            bounds=[(0, _OVERSHOOT)] * count + [(None, None)],
            method="highs",
        )
        if result.status != 0:
            return None
        solution = np.asarray(result.eqlin.marginals, dtype=np.float64)
        scale = float(normal @ solution)
        return solution / scale if scale != 0 else None


def find_next_linear(
    network: nn.Module, task: Task, layer: FirstLinear, rng: torch.Generator
) -> str | None:
    """The weight of a linear layer that takes the first one's activations; None without one."""
    parameter = network.get_parameter(layer.weight)
    images = torch.rand(_PROBES, *task.spec.input_shape, generator=rng).to(parameter)
    labels = torch.zeros(_PROBES, dtype=torch.int64).to(images.device)
    linear = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    with torch.no_grad(), noted(linear) as calls:
        task.loss(network, Batch(images, labels))
    active = next(call.output.relu() for call in calls if call.name == layer.module)
    others = (call for call in calls if call.name != layer.module)
    takes = (c for c in others if c.input.shape == active.shape and torch.equal(c.input, active))
    return next((f"{call.name}.weight" for call in takes), None)


def activations_room(prospect: Prospect, linear: nn.Linear) -> int:
    """About the largest batch whose activations are found; 0 if no layer's gradient holds them."""
    network = copied(prospect.network).double()
    probes = torch.Generator().manual_seed(0)
    first = find_first_linear(network, prospect.task, probes)
    name = find_next_linear(network, prospect.task, first, probes)
    if name is None or not prospect.network.get_parameter(name).requires_grad:
        return 0
    return min(linear.out_features // _UNITS_PER_EXAMPLE, len(network.get_parameter(name)))
