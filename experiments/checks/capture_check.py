"""``fedsim doctor``: replays each client's training on its true data and checks the captures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.stages.integrity import check_cell
from experiments.stages.utility import owned
from fedsim.config.cell import CaptureConfig
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.errors import StoreError
from fedsim.local.client import LocalClient
from fedsim.participation import mean
from fedsim.process import device_for, float32, one_thread, poisoned
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.truth import TruthRecord
from fedsim.tasks import load_task
from fedsim.tasks.base import state
from fedsim.types import Tensors

TOLERANCE = 1e-5
"""Largest relative error of a consistent capture. A correct replay differs only by rounding."""


def examine(run: Run) -> CaptureCheckup:
    """Replay every capture of a run.

    Raises:
        StoreError: a cell has not been simulated, or a file is damaged.
    """
    findings: list[CaptureFinding] = []
    for cell in run.cells:
        if not cell.simulated:
            advice = f"Run fedsim simulate {run.root} first."
            raise StoreError(f"{cell.folder}: not simulated yet. {advice}")
        check_cell(cell)
        examiner = Examiner.of(cell)
        exact = float32(tf32=cell.config.federation.tf32)
        with exact, one_thread():
            findings += [examiner.examine(key) for key in cell.captures.keys()]
    return CaptureCheckup(tuple(findings))


@dataclass(frozen=True)
class Examiner:
    """Replays the captures of one cell under the setting that was declared to the attacker."""

    cell: Cell
    trainer: LocalClient

    @classmethod
    def of(cls, cell: Cell) -> Examiner:
        """The examiner of a cell, built from the files in its folder."""
        task = load_task(cell.captures.root)
        chain = build_chain(cell.config.defense, "defense")
        config = cell.config.federation
        device = device_for(config.client_gpus)  # its generator draws the masks of dropout
        trainer = LocalClient(task, config, chain, cell.config.seed, device)
        return cls(cell, trainer)

    def examine(self, key: CaptureKey) -> CaptureFinding:
        """Replay one capture."""
        seen = self.cell.captures.load(key)
        with poisoned():
            weights = state(self.trainer.task.build())
            model = self.trainer.task.model({k: v for k, v in seen.sent.items() if k in weights})
        declared = self._declared(seen)
        replayed = self._replay(seen, declared)
        size = norm(seen.update())
        error = distance(seen.received, replayed) / max(size, 1e-30)
        faults = [*missing_tensors(seen, model), *unwritten_tensors(seen, weights, model)]
        if error > TOLERANCE:
            faults += self._explain(seen, replayed, declared, error)
        return CaptureFinding(
            self.cell.name,
            key,
            error,
            size,
            tuple(sorted({str(v.dtype).removeprefix("torch.") for v in seen.received.values()})),
            tuple(faults),
        )

    def _declared(self, seen: Observation) -> FederationConfig:
        """The client's training as the server was told; as it was, where it was not told."""
        granted, mode = seen.knowledge.training or {}, seen.knowledge.train_mode
        both = {**granted} if mode is None else {**granted, "train_mode": mode}
        return self.trainer.config.model_copy(update=both)

    def _replay(self, seen: Observation, config: FederationConfig) -> Tensors:
        return stored(self._whole(seen, config), self.cell.config.capture)

    def _whole(self, seen: Observation, config: FederationConfig) -> Tensors:
        replies = [
            self._reply(replace(self.trainer, config=config), seen, member)
            for member in self.cell.truth.members(seen.key)
        ]
        if len(replies) == 1:
            return replies[0][0]
        total = sum(count for _, count in replies)  # secure aggregation reveals only the mean
        return mean([tensors for tensors, _ in replies], [count / total for _, count in replies])

    def _reply(
        self, trainer: LocalClient, seen: Observation, record: TruthRecord
    ) -> tuple[Tensors, int]:
        """The tensors that one client sends, and its number of examples."""
        key, batch = record.key, self.cell.truth.batch(record)
        if trainer.chain.unit is not None:  # its noise may depend on the client's number of rows
            trainer = trainer.fit(self._owned[key.client if record.host is None else record.host])
        memory = self.cell.truth.memory(key) if trainer.chain.has_memory else None
        done = trainer.defend(seen.sent, batch, record.steps, key.round, key.client, memory)
        return done.tensors, len(batch)

    @cached_property
    def _owned(self) -> tuple[int, ...]:
        return owned(self.cell)

    def _explain(
        self, seen: Observation, replayed: Tensors, declared: FederationConfig, error: float
    ) -> Iterator[str]:
        """Explain a mismatch by the one change that would make the replay fit."""
        swapped = list(swapped_tensors(seen, replayed))
        if swapped:
            yield from swapped
            return
        mode = declared.train_mode
        other = self._replay(seen, declared.model_copy(update={"train_mode": not mode}))
        if distance(seen.received, other) <= TOLERANCE * norm(seen.update()):
            yield (
                f"the client trained in {'eval' if mode else 'train'} mode, but "
                f"{'train' if mode else 'eval'} mode is declared. Declare train_mode as it was."
            )
            return
        actual = self.trainer.config
        wrong = [
            name for name, value in declared.training.items() if value != actual.training[name]
        ]
        if wrong and distance(seen.received, self._replay(seen, actual)) <= TOLERANCE * norm(
            seen.update()
        ):
            yield from (
                f"the client trained with {name} = {actual.training[name]!r}, but "
                f"{declared.training[name]!r} is declared. Declare it as it was."
                for name in wrong
            )
            return
        scale = scale_between(seen, replayed)
        if scale is not None:
            yield (
                f"the update is {scale:.4g} times the replayed one: the client scales its loss or "
                "its step. Use the mean loss, and declare the true learning rate."
            )
            return
        yield (
            f"the update does not follow from the true data (relative error {error:.1e}), and "
            "neither order, mode nor scale explains it. Compare the client's loss with the task's."
        )


@dataclass(frozen=True)
class CaptureFinding:
    """Result of replaying one capture.

    Attributes:
        relative_error: ``|received - replayed| / |update|``.
        update_norm: Euclidean norm of the gradient, or of ``sent - received``.
        dtypes: of the received tensors.
        faults: reasons that the capture contradicts its declared setting.
    """

    cell: str
    key: CaptureKey
    relative_error: float
    update_norm: float
    dtypes: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class CaptureCheckup:
    """All findings of a run."""

    findings: tuple[CaptureFinding, ...]

    @property
    def faults(self) -> int:
        """Number of captures with at least one fault."""
        return sum(bool(finding.faults) for finding in self.findings)

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [{**vars(finding), "key": str(finding.key)} for finding in self.findings]
        return {"captures": len(rows), "faulty": self.faults, "findings": rows}

    def text(self) -> str:
        """One line per capture, then each distinct fault with its number of captures."""
        lines = []
        for cell in dict.fromkeys(finding.cell for finding in self.findings):
            mine = [finding for finding in self.findings if finding.cell == cell]
            lines.append(f"{cell}")
            lines += [f"  {_line(finding)}" for finding in mine]
            counts = Counter(fault for finding in mine for fault in finding.faults)
            lines += [f"  FAULT ({n} of {len(mine)}): {fault}" for fault, n in counts.items()]
        state_ = "every capture is consistent" if not self.faults else f"{self.faults} are faulty"
        return "\n".join([*lines, f"{len(self.findings)} captures replayed: {state_}"])


def _line(finding: CaptureFinding) -> str:
    mark = "FAULTY" if finding.faults else "ok"
    return (
        f"{finding.key}  {mark:6}  relative error {finding.relative_error:.1e}"
        f"  update norm {finding.update_norm:.2e}  {'/'.join(finding.dtypes)}"
    )


def missing_tensors(seen: Observation, model: nn.Module) -> Iterator[str]:
    """Report parameters and persistent buffers missing from the broadcast."""
    buffers = {name for name, _ in model.named_buffers()} & set(model.state_dict())
    lacking = sorted((buffers | {n for n, _ in model.named_parameters()}) - set(seen.sent))
    if lacking:
        what = "buffers" if set(lacking) <= buffers else "tensors"
        yield (
            f"{what} missing from the broadcast: {', '.join(lacking[:3])}"
            f"{' ...' * (len(lacking) > 3)}. Send persistent buffers with the parameters."
        )


def unwritten_tensors(seen: Observation, weights: Tensors, model: nn.Module) -> Iterator[str]:
    """Report tensors of a network made in poisoned memory that nothing has written.

    Args:
        seen: a capture, in whose broadcast a training that diverged may leave NaN.
        weights: of the network as the task builds it.
        model: with what was sent.
    """
    loaded = dict(model.named_parameters()) | dict(model.named_buffers())
    spoilt = {name for name, value in seen.sent.items() if value.isnan().any()}
    lacking = {name for name, value in weights.items() if value.isnan().any()}
    lacking |= {name for name, value in loaded.items() if value.isnan().any()} - spoilt
    if lacking:
        yield (
            f"tensors that the network never writes: {', '.join(sorted(lacking)[:3])}"
            f"{' ...' * (len(lacking) > 3)}. They are whatever the memory held; draw or set them "
            "where the network is made."
        )


def swapped_tensors(seen: Observation, replayed: Tensors) -> Iterator[str]:
    """Report tensors whose values belong to another name."""
    for name, value in seen.received.items():
        if name not in replayed or _close(value, replayed[name]):
            continue
        for other, candidate in replayed.items():
            if other != name and candidate.shape == value.shape and _close(value, candidate):
                yield (
                    f"wrong parameter order: {name!r} holds the values of {other!r}. "
                    "Address tensors by name; safetensors sorts them."
                )
                break


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    scale = float(second.double().norm())
    return scale > 0 and float((first.double() - second.double()).norm()) <= 1e-4 * scale


def scale_between(seen: Observation, replayed: Tensors) -> float | None:
    """The factor between captured and replayed update, if they differ by a factor alone."""
    theirs = seen.update()
    ours = replace(seen, received=replayed).update()
    dot = sum(float((theirs[k] * ours[k]).sum()) for k in theirs if k in ours)
    power = norm(ours) ** 2
    if power == 0:
        return None
    scale = dot / power
    rest = {k: theirs[k] - scale * ours[k] for k in theirs if k in ours}
    return scale if norm(rest) <= 1e-4 * norm(theirs) and abs(scale - 1) > 1e-3 else None


def stored(reply: Tensors, policy: CaptureConfig) -> Tensors:
    """What the server keeps of a reply."""
    return {name: value for name, value in reply.items() if policy.keeps_tensor(name)}


def distance(first: Tensors, second: Tensors) -> float:
    """Euclidean distance over all tensors; infinite if names or shapes differ."""
    if first.keys() != second.keys() or any(first[k].shape != second[k].shape for k in first):
        return math.inf
    return norm({name: first[name].double() - second[name].double() for name in first})


def norm(tensors: Tensors) -> float:
    """Euclidean norm over all tensors."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in tensors.values()))
