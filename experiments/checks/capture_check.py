"""``fedsim doctor``: replays each client's training on its true data and checks the captures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from experiments.checks.capture_faults import (
    distance,
    first_rank,
    missing_tensors,
    norm,
    scale_between,
    stored,
    swapped_tensors,
    tied,
    unwritten_tensors,
)
from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.stages.integrity import check_cell
from experiments.stages.privacy import owned
from fedsim.capture import CaptureKey, Observation
from fedsim.defenses import build_chain
from fedsim.devices import device_for, float32
from fedsim.errors import StoreError
from fedsim.federation import FederationConfig
from fedsim.local.client import LocalClient
from fedsim.participation import mean
from fedsim.settings import poisoned
from fedsim.tasks import load_task
from fedsim.tasks.base import state
from fedsim.threads import one_thread
from fedsim.truth import TruthRecord
from fedsim.types import Batch, Tensors

TOLERANCE = 1e-5
"""Largest relative error of a consistent capture. A correct replay differs only by rounding."""
_HALF_TOLERANCE = 2.0**-11
"""The same where captures are rounded to float16, which a replay's rounding may tip over."""
_FLAT = 1e-6


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
        batch = self.cell.truth.load(key)
        with poisoned():
            weights = state(self.trainer.task.build())
            model = self.trainer.task.model({k: v for k, v in seen.sent.items() if k in weights})
        declared = self._declared(seen)
        replayed = self._replay(seen, declared)
        update = seen.update()
        size = norm(update)
        error = distance(seen.received, replayed) / max(size, 1e-30)
        faults = [*missing_tensors(seen, model), *unwritten_tensors(seen, weights, model)]
        if error > self._tolerance:
            faults += self._explain(seen, replayed, declared, error)
        rank, width = first_rank(update, model)
        return CaptureFinding(
            self.cell.name,
            key,
            error,
            size,
            rank,
            width,
            tuple(sorted({str(v.dtype).removeprefix("torch.") for v in seen.received.values()})),
            tuple(faults),
            tuple(self._obstacles(seen, batch, model, size, rank, width)),
        )

    def _declared(self, seen: Observation) -> FederationConfig:
        """The client's training as the server was told; as it was, where it was not told."""
        granted, mode = seen.knowledge.training or {}, seen.knowledge.train_mode
        both = {**granted} if mode is None else {**granted, "train_mode": mode}
        return self.trainer.config.model_copy(update=both)

    @property
    def _tolerance(self) -> float:
        half = self.cell.config.capture.dtype == "float16"
        return _HALF_TOLERANCE if half else TOLERANCE

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
        if distance(seen.received, other) <= self._tolerance * norm(seen.update()):
            yield (
                f"the client trained in {'eval' if mode else 'train'} mode, but "
                f"{'train' if mode else 'eval'} mode is declared. Declare train_mode as it was."
            )
            return
        actual = self.trainer.config
        wrong = [
            name for name, value in declared.training.items() if value != actual.training[name]
        ]
        if wrong and distance(seen.received, self._replay(seen, actual)) <= self._tolerance * norm(
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

    def _obstacles(
        self,
        seen: Observation,
        batch: Batch,
        model: nn.Module,
        size: float,
        rank: int | None,
        width: int | None,
    ) -> Iterator[str]:
        config = self.trainer.config
        if seen.knowledge.cohort > 1:
            yield (
                f"secure aggregation: the capture is the mean of {seen.knowledge.cohort} clients' "
                "replies and mixes all their examples."
            )
        if size < _FLAT:
            yield f"the update is almost zero (norm {size:.1e}): it holds nothing to match."
        if config.train_mode and any(m.p > 0 for m in model.modules() if isinstance(m, nn.Dropout)):
            yield "dropout was on: the attacker does not know the masks and cannot replay exactly."
        if config.train_mode and any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
            yield "batch normalisation used the statistics of the private batch."
        frozen = [name for name, _ in model.named_parameters() if name not in seen.received]
        if frozen:
            more = " ..." if len(frozen) > 4 else ""
            why = "kept" if self.cell.config.capture.tensors else "sent"
            yield f"not {why}, so unavailable to attacks: {', '.join(frozen[:4])}{more}."
        if self.trainer.chain.name != "none":
            yield f"the defense {self.trainer.chain.name} changed the update, as in the replay."
        steps = len(self.cell.truth.record(seen.key).steps)
        if seen.kind == "weights" and (steps > 1 or not config.plain):
            yield (
                f"the update sums {steps} steps of {config.optimizer}. It is not a gradient, so "
                "one-step attacks are only approximate."
            )
        if tied(model):
            yield (
                "the head is tied to the word embeddings: every row of their gradient is "
                "non-zero, so non-zero rows do not reveal the tokens."
            )
        if batch.mask is not None and width is not None:
            tokens, lora = int(batch.mask.sum()), self.trainer.task.spec.lora
            most = width if lora is None else min(width, lora.rank)
            if tokens >= most:
                what = "layer is" if lora is None else "layer's adapter is"
                yield (
                    f"{tokens} tokens, and the first attention {what} {most} wide: its gradient "
                    "has full rank, so span tests cannot distinguish tokens."
                )


@dataclass(frozen=True)
class CaptureFinding:
    """Result of replaying one capture.

    Attributes:
        relative_error: ``|received - replayed| / |update|``.
        update_norm: Euclidean norm of the gradient, or of ``sent - received``.
        rank: numerical rank of the first attention (else linear) layer's update.
        width: the layer's input width, which bounds the rank.
        dtypes: of the received tensors.
        faults: reasons that the capture contradicts its declared setting.
        obstacles: reasons that attacks on a sound capture fail or lose accuracy.
    """

    cell: str
    key: CaptureKey
    relative_error: float
    update_norm: float
    rank: int | None
    width: int | None
    dtypes: tuple[str, ...]
    faults: tuple[str, ...]
    obstacles: tuple[str, ...]


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
        """One line per capture, then each distinct remark with its number of captures."""
        lines = []
        for cell in dict.fromkeys(finding.cell for finding in self.findings):
            mine = [finding for finding in self.findings if finding.cell == cell]
            lines.append(f"{cell}")
            lines += [f"  {_line(finding)}" for finding in mine]
            for heading, field in (("FAULT", "faults"), ("note", "obstacles")):
                said = {s: None for finding in mine for s in getattr(finding, field)}
                for sentence in said:
                    count = sum(sentence in getattr(finding, field) for finding in mine)
                    lines.append(f"  {heading} ({count} of {len(mine)}): {sentence}")
        state_ = "every capture is consistent" if not self.faults else f"{self.faults} are faulty"
        return "\n".join([*lines, f"{len(self.findings)} captures replayed: {state_}"])


def _line(finding: CaptureFinding) -> str:
    rank = "" if finding.rank is None else f"  rank {finding.rank} of {finding.width}"
    mark = "FAULTY" if finding.faults else "ok"
    return (
        f"{finding.key}  {mark:6}  relative error {finding.relative_error:.1e}"
        f"  update norm {finding.update_norm:.2e}{rank}  {'/'.join(finding.dtypes)}"
    )
