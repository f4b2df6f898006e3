"""The findings of ``fedsim doctor``, and their printed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsim.capture import CaptureKey


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
