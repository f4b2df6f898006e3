"""Quantisation: fewer bits for each coordinate of the update."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import pad

from fedsim.defenses.base import Distortion, StagedDefense
from fedsim.defenses.encoding import Encoding
from fedsim.types import Tensors

_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
_STEPS = 127


@dataclass(frozen=True, kw_only=True)
class Quantize(StagedDefense):
    """Sends what a number format of few bits leaves of each coordinate.

    Received tensors hold the values that the server reconstructs, in their old dtype. Kinds:
    ``fp16`` and ``bf16`` round to the nearest, beyond the largest finite number to that one;
    ``int8`` takes 255 even steps from minus to plus each tensor's largest magnitude; ``qsgd``
    rounds ``levels |v| / ||v||`` to one of its two neighbours at random, so that the mean is right
    (Alistarh et al. 2017), with the norm of each bucket of a tensor. Codes have a fixed width,
    where the paper has Elias codes.

    Zeros stay zero, so untouched embedding rows stay readable. The surrogate is the identity. An
    adaptive attacker knows the interval of every rounded coordinate, and takes ``qsgd`` for noise
    of mean zero (Yue et al. 2023: quantisation alone is no defense).

    Attributes:
        kind: the number format.
        levels: of ``qsgd``, beside 0; None for 127, one byte with the sign.
        bucket: coordinates of ``qsgd`` that share a norm, None for 512 (as in the paper), 0 for a
            whole tensor.
    """

    kind: Literal["fp16", "bf16", "int8", "qsgd"]
    levels: Annotated[int, Field(ge=1, le=65_535)] | None = None
    bucket: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        given = {"levels": self.levels, "bucket": self.bucket}
        for name, value in given.items():
            if self.kind != "qsgd" and value is not None:
                raise ValueError(
                    f"{name} is {value}, and {self.kind} has none; "
                    f"leave {name} out, or set kind to 'qsgd'"
                )

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The rounded update; ``qsgd`` draws where ``rng`` lives, in the model's order."""
        return {
            name: self._round(value, rng) if value.is_floating_point() else value
            for name, value in update.items()
        }

    def _round(self, value: Tensor, rng: torch.Generator) -> Tensor:
        if self.kind == "qsgd":
            return self._draw(value, rng)
        if self.kind == "int8":
            wide = value.float()
            step = (wide.abs().amax() if wide.numel() else wide.sum()) / _STEPS
            return torch.where(step > 0, (wide / step).round() * step, 0).to(value.dtype)
        dtype = _HALF[self.kind]
        largest = torch.finfo(dtype).max
        return value.clamp(-largest, largest).to(dtype).to(value.dtype)

    def _draw(self, value: Tensor, rng: torch.Generator) -> Tensor:
        flat, levels = value.float().flatten(), self.levels or _STEPS
        bucket = (512 if self.bucket is None else self.bucket) or max(1, flat.numel())
        rows = pad(flat, (0, -flat.numel() % bucket)).view(-1, bucket)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scaled = (rows.abs() * levels / norms).nan_to_num(0.0)  # a bucket of zeros
        drawn = torch.rand(rows.shape, generator=rng, device=rng.device).to(rows.device)
        rounded = scaled.floor() + (drawn < scaled - scaled.floor())
        whole: Tensor = (rows.sign() * rounded * norms / levels).flatten()
        return whole[: flat.numel()].view_as(value).to(value.dtype)

    def surrogate(self, update: Tensors) -> Tensors:
        """The update itself, the mean of what is rounded at random."""
        return update

    def encode(self, packed: Encoding) -> Encoding:
        """Codes of a fixed width; zeros are left out where ``packed`` leaves them out.

        A mean of codes at stage ``sample`` is not packed.
        """
        if self.stage == "sample":
            return packed
        if self.kind == "qsgd":
            width = (2 * (self.levels or _STEPS)).bit_length()
            bucket = 512 if self.bucket is None else self.bucket
            return Encoding(bits=width, sparse=packed.sparse, bucket=bucket)
        if self.kind == "int8":
            return Encoding(bits=8, sparse=packed.sparse, bucket=0)
        return Encoding(bits=16, sparse=packed.sparse)

    def slack(self, received: Tensors) -> Tensors:
        """Half a step; each coordinate's own for floating-point formats."""
        floating = {name: value for name, value in received.items() if value.is_floating_point()}
        if self.kind == "int8":
            return {name: value.abs().amax() / (2 * _STEPS) for name, value in floating.items()}
        if self.kind == "qsgd":
            return super().slack(floating)
        format_ = torch.finfo(_HALF[self.kind])
        return {
            name: value.abs().clamp(min=format_.smallest_normal) * (format_.eps / 2)
            for name, value in floating.items()
        }

    @property
    def distortions(self) -> frozenset[Distortion]:
        """Rounding within bounds, or noise where it is drawn; a mean of codes is neither sharp."""
        if self.kind == "qsgd" or self.stage == "sample":
            return frozenset({"noise"})
        return frozenset({"rounding"})
