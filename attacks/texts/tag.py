"""TAG: gradient attack on transformer-based language models (Deng et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from attacks.texts.matching import Distance
from attacks.texts.text_matching import TextMatching
from attacks.texts.text_options import Discrete


@dataclass(frozen=True)
class TAG(TextMatching):
    """Squared and absolute differences, by Adam at a high rate from one start (EMNLP 2021).

    As LAMP's authors run it: ``L2^2 + 0.01 L1``, no decay, no prior and no reordering. The paper
    weights L1 by the layer's depth and does not say which end weighs more; it is constant here.
    It searches for the targets, too, which is ``labels = "joint"``; here a language model's follow
    from the words.
    """

    title: ClassVar[str] = "TAG"

    distance: Distance = "l2l1"
    steps: Annotated[int, Field(ge=1)] = 2500
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    decay: Literal["step", "linear", "none"] = "none"
    starts: Annotated[int, Field(ge=1)] = 1
    rescale: bool = False
    alpha_reg: Annotated[float, Field(ge=0)] = 0.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.0
    discrete: Discrete = "none"
