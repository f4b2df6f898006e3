"""LAMP: extracting text from gradients with language model priors (Balunovic et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.texts.text_matching import TextMatching


@dataclass(frozen=True)
class LAMP(TextMatching):
    """Steps on the cosine distance in turn with orders judged by a language model (NeurIPS 2022).

    The defaults are the paper's LAMP-cos. LAMP-L2+L1 is ``distance = "l2l1"``, ``alpha_reg = 25``,
    ``alpha_lm = 60``; BERT-large takes ``optimizer = "adamw"``, ``decay = "linear"``,
    ``decay_every = 10000``, ``steps = 5000``, ``clip = 0.5`` and ``discrete_every = 200``. The
    paper's ablations are ``distance = "l2"``, ``alpha_lm = 0``, ``alpha_reg = 0``, ``discrete =
    "end"`` or ``"none"``, and ``starts = 1``.

    We differ from the authors' code, which optimises padding, passes no mask, compares gradients
    that are rounding, moves one sentence of a batch a round, leaves the moments of Adam behind when
    it moves words, and picks the last guess by gradient alone. There, labels and lengths come with
    their order; here, what is open is tried.
    """

    title: ClassVar[str] = "LAMP"
