"""Quantisation: fewer bits for each coordinate of the update."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import pad

from fedsim.defenses.base import DefenseFamily, Distortion, StagedDefense
from fedsim.defenses.encoding import Encoding
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import each_float
from fedsim.types import Tensors

_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
_STEPS = 127


@dataclass(frozen=True, kw_only=True)
class Quantize(StagedDefense):
    """Rounds each coordinate of the update to a number format with few bits.

    Received tensors hold the values that the server decodes, in their original dtype. The kinds are

    - ``fp16``, ``bf16``: the nearest number of the format; values beyond its range are clamped.
    - ``int8``: the nearest of 255 evenly spaced values up to plus and minus the tensor's maximum.
    - ``qsgd``: with s levels and a bucket v of coordinates, ``|v| sign(v_i) k_i / s``, where
      ``k_i`` is ``s |v_i| / |v|`` rounded up or down at random so that its mean is exact (Alistarh
      et al. 2017, section 3.1). Codes have a fixed width, where the paper uses Elias codes.

    Zeros stay 0, so untouched embedding rows remain recognisable. The surrogate is the identity. An
    adaptive attacker knows the interval of every rounded coordinate and treats ``qsgd`` as noise of
    mean 0 (Yue et al. 2023: quantisation alone is not a defense).

    Attributes:
        kind: the number format.
        levels: number of levels of ``qsgd`` besides 0; None for 127, which makes a byte with the
            sign.
        bucket: number of coordinates of ``qsgd`` that share a norm; None for 512, as in the paper,
            and 0 for a whole tensor.
    """

    title: ClassVar[str] = "quantization"
    family: ClassVar[DefenseFamily] = "compression"
    run_by: ClassVar[str] = "the client; half precision and bytes in most libraries"
    known: ClassVar[str] = "The interval of every rounded coordinate."

    kind: Literal["fp16", "bf16", "int8", "qsgd"]
    levels: Annotated[int, Field(ge=1, le=65_535)] | None = None
    bucket: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        given = {"levels": self.levels, "bucket": self.bucket}
        for name, value in given.items():
            if self.kind != "qsgd" and value is not None:
                raise ValueError(
                    f"{name} is {value}, but {self.kind} does not use it; "
                    f"leave {name} out, or set kind to 'qsgd'"
                )

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The rounded update; ``qsgd`` draws where ``rng`` lives, in the order of the model."""
        return each_float(update, lambda value: self._round(value, rng))

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
        scaled = (rows.abs() * levels / norms).nan_to_num(0.0)  # 0 / 0 in a bucket of zeros
        drawn = torch.rand(rows.shape, generator=rng, device=rng.device).to(rows.device)
        rounded = scaled.floor() + (drawn < scaled - scaled.floor())
        whole: Tensor = (rows.sign() * rounded * norms / levels).flatten()
        return whole[: flat.numel()].view_as(value).to(value.dtype)

    def surrogate(self, update: Tensors) -> Tensors:
        """The update itself, which is also the mean of random rounding."""
        return update

    def encode(self, packed: Encoding) -> Encoding:
        """Codes of a fixed width; zeros are left out if ``packed`` leaves them out.

        At stage ``sample`` the update is a mean of codes, which cannot be packed.
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
        """Half a step of the format; for floating-point formats it depends on the coordinate."""
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
        """Rounding within bounds; noise for random rounding and for a mean of codes."""
        if self.kind == "qsgd" or self.stage == "sample":
            return frozenset({"noise"})
        return frozenset({"rounding"})

    @property
    def strength(self) -> Strength | None:
        """The levels of ``qsgd``; the other kinds have none."""
        return Strength("levels", 127, 1, whole=True) if self.kind == "qsgd" else None
