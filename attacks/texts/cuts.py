"""Thresholds of the text attacks that match gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextCuts:
    """Thresholds on what of a gradient is matched, and how.

    Attributes:
        factor_miss: largest part of a gradient's norm that its factors may miss; rounding of
            float32 is about 1e-7.
        denoised_side: rows and columns below which singular values say nothing of the noise.
        noise_margin: factor on the variance of the declared noise, which is itself measured on a
            few thousand draws.
        label_orders: most orders of the labels tried; more than six sentences have more.
    """

    factor_miss: float = 1e-5
    denoised_side: int = 32
    noise_margin: float = 1.1
    label_orders: int = 720


CUTS = TextCuts()
