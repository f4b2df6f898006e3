"""Thresholds of the text attacks that match gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextCuts:
    """Thresholds on what of a gradient is matched, and how."""

    # Largest part of a gradient's norm that its factors may miss; rounding of float32 is about
    # 1e-7.
    factor_miss: float = 1e-5
    denoised_side: int = 32  # rows and columns below which singular values say nothing of the noise
    # Factor on the variance of the declared noise, which is itself measured on a few thousand
    # draws.
    noise_margin: float = 1.1
    label_orders: int = 720  # most orders of the labels tried; more than six sentences have more


CUTS = TextCuts()
