"""DLG on text: deep leakage from gradients (Zhu et al. 2019, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.texts.matching import Distance
from attacks.texts.tag import TAG


@dataclass(frozen=True)
class DLGText(TAG):
    """Match gradients by squared differences, with Adam from a single start.

    DLG (Zhu et al., NeurIPS 2019) as LAMP's authors run it, with a high learning rate and labels
    granted or inferred from the head. The paper uses L-BFGS and also searches for the labels, which
    is ``labels = "joint"``.
    """

    title: ClassVar[str] = "DLG (text)"

    distance: Distance = "l2"
