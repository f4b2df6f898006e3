"""The attacks by name.

May import: fedsim, never fedsim.store.truth or fedsim.data, nor Flower.
"""

from collections.abc import Mapping

from attacks.base import Attack
from attacks.disaggregate import Disaggregate
from attacks.film.film import FILM
from attacks.images.bayes import Bayes
from attacks.images.dlg import DLG, IDLG
from attacks.images.gi_gip import GIGIP
from attacks.images.inverting import Inverting
from attacks.learned.lti import LTI
from attacks.learned.ridge import Ridge
from attacks.learned.statistics import Statistics
from attacks.membership.membership import Membership
from attacks.prior_only import PriorOnly
from attacks.solved.closed_form import ClosedForm
from attacks.solved.embedding_rows import EmbeddingRows
from attacks.solved.patch_rows import PatchRows
from attacks.solved.spear import Spear
from attacks.span.span import Span
from attacks.texts.lamp import LAMP
from attacks.texts.tag import TAG, DLGText
from fedsim.config.build import registry

ATTACKS: dict[str, type[Attack]] = {
    "dlg": DLG,
    "idlg": IDLG,
    "closed_form": ClosedForm,
    "patch_rows": PatchRows,
    "inverting": Inverting,
    "gi_gip": GIGIP,
    "bayes": Bayes,
    "spear": Spear,
    "dlg_text": DLGText,
    "tag": TAG,
    "lamp": LAMP,
    "film": FILM,
    "span": Span,
    "embedding_rows": EmbeddingRows,
    "lti": LTI,
    "ridge": Ridge,
    "statistics": Statistics,
    "membership": Membership,
    "disaggregate": Disaggregate,
    "prior_only": PriorOnly,
}


def attack_classes() -> dict[str, type[Attack]]:
    """The project's attacks and those that installed packages add by entry point."""
    return registry(ATTACKS, "fedsim.attacks")


def attacks_for(table: Mapping[str, object]) -> dict[str, type[Attack]]:
    """Classes among which the one of a table is; for a built-in no code of others is loaded."""
    return ATTACKS if table.get("name") in ATTACKS else attack_classes()
