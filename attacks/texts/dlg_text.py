"""DLG on text: deep leakage from gradients (Zhu et al. 2019, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.texts.matching import Distance
from attacks.texts.tag import TAG


@dataclass(frozen=True)
class DLGText(TAG):
    """Squared differences, by Adam at a high rate from one start (NeurIPS 2019).

    As LAMP's authors run it, with labels granted or read off the head. The paper uses L-BFGS and
    searches for the labels too, which is ``labels = "joint"``.
    """

    title: ClassVar[str] = "DLG (text)"

    distance: Distance = "l2"
