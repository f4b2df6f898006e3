"""The attacks by name."""

from __future__ import annotations

from attacks.april import APRIL
from attacks.base import Attack
from attacks.closed_form import ClosedForm
from attacks.dlg import DLG, IDLG
from attacks.dlg_text import DLGText
from attacks.embedding_rows import EmbeddingRows
from attacks.film import FILM
from attacks.gi_gip import GIGIP
from attacks.inverting import Inverting
from attacks.lamp import LAMP
from attacks.lti import LTI
from attacks.prior_only import PriorOnly
from attacks.ratio import Ratio
from attacks.span import Span
from attacks.spear import Spear
from attacks.tag import TAG
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
