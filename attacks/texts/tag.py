"""TAG (Deng et al. 2021) and DLG (Zhu et al. 2019, section 4.2) on text."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from attacks.texts.matching import Distance
from attacks.texts.text_matching import TextMatching
from attacks.texts.text_options import Discrete


@dataclass(frozen=True)
class TAG(TextMatching):
    """Match gradients by squared and absolute differences, with Adam from a single start.

    TAG (Deng et al., EMNLP 2021) as LAMP's authors run it: ``L2^2 + 0.01 L1`` with a high learning
    rate, without decay, prior or reordering. We differ from the paper in two points. It weights L1
    by the layer's depth without saying which end weighs more; here the weight is constant. It also
    searches for the targets; here those of a language model follow from the words.
    """

    title: ClassVar[str] = "TAG"
    refined: ClassVar[bool] = False

    distance: Distance = "l2l1"
    steps: Annotated[int, Field(ge=1)] = 2500
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    starts: Annotated[int, Field(ge=1)] = 1
    alpha_reg: Annotated[float, Field(ge=0)] = 0.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.0
    discrete: Discrete = "none"


@dataclass(frozen=True)
class DLGText(TAG):
    """Match gradients by squared differences, with Adam from a single start.

    DLG (Zhu et al., NeurIPS 2019) as LAMP's authors run it, with a high learning rate and labels
    granted or inferred from the head. The paper uses L-BFGS and also searches for the labels.
    """

    title: ClassVar[str] = "DLG (text)"

    distance: Distance = "l2"
