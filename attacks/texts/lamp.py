"""LAMP: extracting text from gradients with language model priors (Balunovic et al. 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from attacks.texts.text_matching import TextMatching


@dataclass(frozen=True)
class LAMP(TextMatching):
    """Alternate gradient steps with reorderings that a language model helps to choose.

    LAMP (Balunovic et al., NeurIPS 2022). The default is the paper's LAMP-cos, on the cosine
    distance, without a language model (its ablation ``alpha_lm = 0``); with ``prior`` set to one
    over the same vocabulary it is LAMP-cos whole. LAMP-L2+L1 is ``distance = "l2l1"``,
    ``alpha_reg = 25``, ``alpha_lm = 60``. The paper's ablations are ``distance = "l2"``,
    ``alpha_lm = 0``, ``alpha_reg = 0``, ``discrete = "end"`` or ``"none"``, and ``starts = 1``. Its
    n_init is ``starts``, its n_c ``discrete_every``, its n_d ``proposals``.

    We differ from the authors' code, which optimises padding, passes no mask, compares gradients
    that are mere rounding, reorders one sentence of a batch per round, does not move Adam's moments
    along with the words, and chooses the final guess by gradient alone. It is also given labels and
    lengths in matching order; here all combinations that are left open are tried.
    """

    title: ClassVar[str] = "LAMP"
