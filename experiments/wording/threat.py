"""The threat-model card: who attacks, what the server was granted, and what is out of scope."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.plan.levels import level_of
from experiments.wording.catalogue import sentence
from experiments.wording.names import cell_defense, natural, title
from experiments.wording.prose import counted
from fedsim.config.cell import CaptureConfig, CellConfig, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.named_code import is_named
from fedsim.knowledge import FACTS, Fact
from fedsim.models import (
    TEXT_MODELS,
    image_models,
    image_network,
    is_image_model,
    transformer,
)
from fedsim.models.layers import has_train_mode
from fedsim.tasks import task_kind


@dataclass(frozen=True, slots=True)
class ThreatModel:
    """What was assumed in a group of cells.

    Attributes:
        granted: facts that the server knew in every cell.
        withheld: facts that it knew in none.
        varied: facts that it knew in some.
        protocol: (what, value or values), in reading order.
        defenses: each chain with the options that are no defaults.
        foreign: another application's clients replied, of whom the server knows what it was told
            and what it read off their replies.
    """

    granted: tuple[str, ...]
    withheld: tuple[str, ...]
    varied: tuple[str, ...]
    protocol: tuple[tuple[str, str], ...]
    defenses: tuple[str, ...]
    foreign: bool = False


def threat_model(cells: Sequence[CellConfig], *, foreign: bool = False) -> ThreatModel:
    """The card of cells that share task, data set, model and protocol.

    Args:
        cells: their settings.
        foreign: they hold another application's captures, so that nothing was simulated.
    """
    facts = [fact for fact in FACTS if any(_tells(fact, cell) for cell in cells)]
    grants = [cell.server_knows.grants() for cell in cells]
    count = {fact: sum(fact in granted for granted in grants) for fact in facts}
    alone = [cell.seed for cell in cells if not cell.capture.enabled]
    described = _captured if foreign else _protocol
    lines = [described(cell) for cell in cells if cell.capture.enabled or len(alone) == len(cells)]
    return ThreatModel(
        granted=tuple(fact_words(fact) for fact in facts if count[fact] == len(cells)),
        withheld=tuple(fact_words(fact) for fact in facts if count[fact] == 0),
        varied=tuple(fact_words(fact) for fact in facts if 0 < count[fact] < len(cells)),
        protocol=tuple(
            (what, " or ".join(dict.fromkeys(line[what] for line in lines if what in line)))
            for what in dict.fromkeys(what for line in lines for what in line)
        )
        + _utility_seeds(alone if len(alone) < len(cells) else []),
        defenses=tuple(
            sorted({cell_defense(cell) for cell in cells}, key=lambda c: (c != "none", natural(c)))
        ),
        foreign=foreign,
    )


def fact_words(fact: Fact) -> str:
    """What a fact is, as a clause."""
    return sentence(f"fact.{fact}")


def withheld(models: Sequence[ThreatModel]) -> tuple[str, ...]:
    """The facts that the server was told in none of several cards."""
    granted = {fact for model in models for fact in (*model.granted, *model.varied)}
    facts = dict.fromkeys(fact for model in models for fact in model.withheld)
    return tuple(fact for fact in facts if fact not in granted)


def shared_protocol(models: Sequence[ThreatModel]) -> tuple[tuple[str, str], ...]:
    """What was simulated alike in all of several cards."""
    return tuple(
        line for line in models[0].protocol if all(line in model.protocol for model in models)
    )


def _tells(fact: Fact, cell: CellConfig) -> bool:
    """Pictures have no token count, and without auxiliary rows there are none to grant."""
    if fact == "lengths":
        return not is_image_model(cell.task.model)
    return fact != "auxiliary" or cell.auxiliary is not None


def _utility_seeds(seeds: Sequence[int]) -> tuple[tuple[str, str], ...]:
    listed = ", ".join(map(str, dict.fromkeys(seeds)))
    return (("more seeds, for utility alone", listed),) if seeds else ()


def _protocol(cell: CellConfig) -> dict[str, str]:
    """What was simulated, in reading order."""
    run, task, capture = cell.federation, cell.task, cell.capture
    partition = {
        "iid": "iid",
        "dirichlet": f"by Dirichlet({run.alpha:g})",
        "by-label": f"by label, {run.classes_per_client} classes each",
    }[run.partition]
    lines = {
        "realism": level_of(cell),
        "protocol": title(run.protocol)
        + (": clients send gradients" if run.protocol == "fedsgd" else ": clients send weights"),
        "clients": f"{run.clients}, {run.participation:.0%} of them in each round, "
        f"rows dealt {partition}"
        + (f", sizes log-normal of spread {run.size_spread:g}" if run.size_spread else ""),
        "what comes back": "each client's own reply: there is no secure aggregation"
        if run.cohort == 1
        else f"the sum over each cohort of {run.cohort} clients, "
        f"{'drawn anew in each' if run.cohorts == 'redrawn' else 'the same ones in every'} round "
        "(secure aggregation, emulated)",
        "rounds": str(run.rounds),
        "batch size": str(run.batch_size),
        "client mode": _mode(cell),
        "first weights": sentence("threat.weights") if task.weights == "auto" else task.weights,
        "private rows": f"{task.dataset}, {task.split}",
    }
    if run.protocol == "fedavg":
        amount = (
            counted(run.local_steps, "step")
            if run.local_steps
            else counted(run.local_epochs, "epoch")
        )
        rows = f" of {counted(run.client_rows, 'row')}" if run.client_rows else ""
        lines["local training"] = (
            f"{amount}{rows}, {run.optimizer} of step size {run.learning_rate:g}{_training(run)}"
        )
        lines["aggregation"] = run.strategy
    if cell.auxiliary is not None:
        source = cell.auxiliary
        name = source.dataset or task.dataset
        split = ", ".join(filter(None, (name, source.split)))
        lines["attacker's rows"] = f"at most {source.rows} of {split}"
    if run.train_mode and run.batch_statistics == "kept":
        lines["batch statistics"] = "kept by the clients; the global model keeps its first ones"
    if not capture.enabled:
        lines["captured"] = "nothing: a training for its utility alone"
    elif capture.rounds or capture.clients:
        lines["captured"] = (
            f"rounds {_listed(capture.rounds)}; "
            f"{'clients' if run.cohort == 1 else 'cohorts'} {_listed(capture.clients)}"
        )
    if stored := _stored(capture):
        lines["kept of a reply"] = stored
    if cell.probes.count:
        lines["probes"] = (
            f"{cell.probes.member} member and {cell.probes.fresh} fresh ones in each captured "
            "round, the same rows each time, never aggregated"
        )
    return lines | {"seed": str(cell.seed)}


def _captured(cell: CellConfig) -> dict[str, str]:
    """What the server saw; what the clients of another application did is not known."""
    lines, run = _protocol(cell), cell.federation
    seen = {what: lines[what] for what in ("protocol", "clients", "what comes back", "rounds")}
    return seen | {"clients": f"at most {run.clients} captured in a round"}


def _stored(policy: CaptureConfig) -> str:
    """What the server keeps of a reply where that is not all; empty if it is."""
    if not policy.enabled or not policy.tensors:
        return ""
    return f"the tensors of {', '.join(policy.tensors)}"


def _training(run: FederationConfig) -> str:
    """The options of training that are no defaults."""
    usual = type(run).model_fields
    said = [f"{k} {v}" for k, v in run.training.items() if v != usual[k].default]
    return "".join(f", {setting}" for setting in said)


def _mode(cell: CellConfig) -> str:
    if not cell.federation.train_mode:
        return "eval"
    if not _has_train_mode(cell.task):
        return "train, which is eval of a model without dropout and batch statistics"
    return "train (dropout and batch statistics on)"


def _has_train_mode(task: TaskConfig) -> bool:
    """Read off a built-in or added model; one of the hub is taken to have dropout."""
    if is_named(task.model):  # not looked into: a page is written of anybody's run
        return True
    if factory := image_models().get(task.model):
        side = getattr(factory, "smallest", 1)
        options = getattr(factory, "options", {})
        return has_train_mode(image_network(task.model, (3, side, side), 2, options))
    if task.model in TEXT_MODELS:
        architecture = transformer.architecture(transformer.locate(task.model), 2)
        return has_train_mode(transformer.blank(architecture, task_kind(task)))
    return True


def _listed(numbers: Sequence[int]) -> str:
    """All of them up to a dozen, else the first and the last and how many."""
    if len(numbers) <= 12:
        return ", ".join(map(str, numbers)) or "all"
    return f"{', '.join(map(str, numbers[:3]))}, …, {numbers[-1]} ({len(numbers)} in all)"
