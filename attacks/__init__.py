"""The attacks by name."""

from __future__ import annotations

from attacks.base import Attack
from attacks.film.film import FILM
from attacks.images.dlg import DLG, IDLG
from attacks.images.gi_gip import GIGIP
from attacks.images.inverting import Inverting
from attacks.learned.lti import LTI
from attacks.prior_only import PriorOnly
from attacks.solved.closed_form import ClosedForm
from attacks.solved.embedding_rows import EmbeddingRows
from attacks.solved.ratio import Ratio
from attacks.solved.spear import Spear
from attacks.spans.april import APRIL
from attacks.spans.span import Span
from attacks.texts.dlg_text import DLGText
from attacks.texts.lamp import LAMP
from attacks.texts.tag import TAG
from fedsim.build import registry

ATTACKS: dict[str, type[Attack]] = {
    "dlg": DLG,
    "idlg": IDLG,
    "closed_form": ClosedForm,
    "inverting": Inverting,
    "gi_gip": GIGIP,
    "spear": Spear,
    "ratio": Ratio,
    "dlg_text": DLGText,
    "tag": TAG,
    "lamp": LAMP,
    "film": FILM,
    "span": Span,
    "april": APRIL,
    "embedding_rows": EmbeddingRows,
    "lti": LTI,
    "prior_only": PriorOnly,
}


def attack_classes() -> dict[str, type[Attack]]:
    """The project's attacks and those that installed packages add by entry point."""
    return registry(ATTACKS, "fedsim.attacks")
