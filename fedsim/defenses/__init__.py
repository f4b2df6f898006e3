"""Registry of the defenses, and construction of chains from an experiment's tables."""

from collections.abc import Iterable, Mapping

from fedsim.config.build import build, registry
from fedsim.defenses.ats import Ats
from fedsim.defenses.base import Defense, NoDefense
from fedsim.defenses.censor import Censor
from fedsim.defenses.chain import Chain
from fedsim.defenses.clip import Clip
from fedsim.defenses.dp_client import DpClient, DpServer
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.defenses.error_feedback import ErrorFeedback
from fedsim.defenses.ffa_lora import FedsaLora, FfaLora
from fedsim.defenses.freeze_embeddings import FreezeEmbeddings
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.ghost import Ghost
from fedsim.defenses.local_dp import LocalDp
from fedsim.defenses.mixup import Mixup
from fedsim.defenses.optimal_noise import OptimalNoise
from fedsim.defenses.percentile_privacy import PercentilePrivacy, SvtPrivacy
from fedsim.defenses.pfgd import Pfgd
from fedsim.defenses.prune import DualPrune, Prune
from fedsim.defenses.quantize import Quantize
from fedsim.defenses.sign import Sign
from fedsim.defenses.soteria import Soteria
from fedsim.defenses.svdefense import SvDefense
from fedsim.defenses.tip import Tip
from fedsim.defenses.withhold import Withhold
from fedsim.errors import ConfigError

DEFENSES: dict[str, type[Defense]] = {
    "none": NoDefense,
    "gaussian_noise": GaussianNoise,
    "clip": Clip,
    "dp_sgd": DpSgd,
    "dp_client": DpClient,
    "dp_server": DpServer,
    "local_dp": LocalDp,
    "error_feedback": ErrorFeedback,
    "prune": Prune,
    "percentile_privacy": PercentilePrivacy,
    "svt_privacy": SvtPrivacy,
    "quantize": Quantize,
    "sign": Sign,
    "freeze_embeddings": FreezeEmbeddings,
    "soteria": Soteria,
    "censor": Censor,
    "pfgd": Pfgd,
    "ats": Ats,
    "optimal_noise": OptimalNoise,
    "dual_prune": DualPrune,
    "tip": Tip,
    "svdefense": SvDefense,
    "withhold": Withhold,
    "ffa_lora": FfaLora,
    "fedsa_lora": FedsaLora,
    "ghost": Ghost,
    "mixup": Mixup,
}


def build_chain(tables: Iterable[Mapping[str, object]], where: str) -> Chain:
    """Chain of the defenses that the tables name; ``none`` adds nothing to it.

    For example ``build_chain([{"name": "prune", "fraction": 0.9}], "defenses")``.

    Args:
        tables: name and options of each defense, in order.
        where: path of the tables in the experiment file, for messages.

    Raises:
        ConfigError: a name or an option is wrong; a defense of single gradients follows one of
            their sum or of the update; the epsilons of two defenses protect different units; or
            ``error_feedback`` follows a defense of the update or is combined with an epsilon.
    """
    known = registry(DEFENSES, "fedsim.defenses")
    names: list[str] = []
    defenses: list[Defense] = []
    late, unit = "", None
    for index, table in enumerate(tables):
        defense, name = build(known, table, f"{where}[{index}]"), str(table["name"])
        if late and defense.per_example:
            raise ConfigError(
                f"{where}[{index}]: {name!r} changes single gradients and has to come before "
                f"{late}. "
                "List it first, or set its stage to 'client'."
            )
        if defense.remembers and late:
            raise ConfigError(
                f"{where}[{index}]: {name!r} adds what earlier rounds left to the whole update and "
                f"has to come before {late}. List it first."
            )
        if defense.changes_update or defense.changes_step or defense.changes_sum:
            whole = "the update" if defense.changes_update else "their mean"
            late = f"{name!r}, which changes {'their sum' if defense.changes_sum else whole}"
        if unit is not None and defense.unit not in {None, unit}:
            raise ConfigError(
                f"{where}[{index}]: the epsilon of {name!r} protects one {defense.unit} of a "
                f"client, but that of an earlier defense protects one {unit}. Leave one of them "
                "out, or replace it by gaussian_noise."
            )
        unit = defense.unit or unit
        if not isinstance(defense, NoDefense):
            names.append(name)
            defenses.append(defense)
    chain = Chain(tuple(names), tuple(defenses))
    if chain.remembers and chain.unit is not None:
        raise ConfigError(
            f"{where}: epsilon does not count what error_feedback carries over. Leave one of the "
            "two out."
        )
    return chain
