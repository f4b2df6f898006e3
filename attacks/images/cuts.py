"""Thresholds of the image attacks that match gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageCuts:
    """Thresholds of ``dlg`` and ``idlg``."""

    # Share of its objective to which ``patience`` steps must bring a start that is not given
    # up; one that converges does better.
    progress: float = 0.6


CUTS = ImageCuts()
