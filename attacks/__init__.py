"""The attacks by name."""

from __future__ import annotations

from attacks.base import Attack
from attacks.dlg import DLG, IDLG
from attacks.dlg_text import DLGText
from attacks.embedding_rows import EmbeddingRows
from attacks.film import FILM
from attacks.inverting import Inverting
from attacks.lamp import LAMP
from attacks.prior_only import PriorOnly
from attacks.span import Span
from attacks.tag import TAG
from fedsim.build import registry

ATTACKS: dict[str, type[Attack]] = {
    "dlg": DLG,
    "idlg": IDLG,
    "inverting": Inverting,
    "dlg_text": DLGText,
    "tag": TAG,
    "lamp": LAMP,
    "film": FILM,
    "span": Span,
    "embedding_rows": EmbeddingRows,
    "prior_only": PriorOnly,
}


def attack_classes() -> dict[str, type[Attack]]:
    """The project's attacks and those that installed packages add by entry point."""
    return registry(ATTACKS, "fedsim.attacks")
