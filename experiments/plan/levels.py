"""Realism levels L1 to L4, from a textbook setting to a deployed federation.

Each level includes the conditions of all levels below it. A cell's level is computed from its
resolved options, never from what the file declares. "Withheld" means ``false`` under
``[server_knows]``.

==== ======================================================================================
L0   The oracle's control, ``fedsim doctor``: the client's step replayed on its true data. It
     needs the private data, so it is not an attack, and no setting has this level.
L1   Textbook: everything below L2. DLG and LAMP are usually run this way: FedSGD, one
     example, eval mode, labels and lengths given.
L2   Relaxed knowledge: ``labels`` and ``lengths`` withheld, ``batch_size`` of at least 2,
     ``train_mode`` on, so that dropout masks and batch statistics, where the model has any, are
     the client's own. LeNet and MLP have none: their gradients are those of eval mode at any
     level, and ``fedsim show`` says so. Running batch statistics are on the wire; after one step
     they give the batch's own away, which ``federation.batch_statistics = "kept"`` prevents.
L3   Protocol: ``protocol = "fedavg"`` of at least two local steps, uneven clients (any
     ``partition`` but iid), and at least three rounds captured. What is public stays known: batch
     size, steps, learning rate, optimiser, the number of examples that the mean is weighted by.
L4   Deployed: secure aggregation over at least two clients, not every client in each round;
     ``num_examples``, ``batch_size``, ``local_steps``, ``learning_rate``, ``optimizer`` and
     ``training`` withheld.
==== ======================================================================================

No level requires a defense: defenses are reported in a column of their own, next to an undefended
baseline. Malicious servers would be L5 and are out of scope. The levels follow the practice
described by Du et al. 2025 (2404.05403), Dimitrov et al. 2022 (2206.12395) and Huang
et al. 2021.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from experiments.plan.overrides import set_value
from fedsim.config.cell import CaptureConfig, CellConfig, ServerKnows
from fedsim.config.federation import FederationConfig
from fedsim.errors import ConfigError

Level: TypeAlias = Literal["L1", "L2", "L3", "L4"]
LEVELS: tuple[Level, ...] = get_args(Level)
MANY_ROUNDS = 3
"""Captured rounds needed to distinguish an early, a middle and a late one."""
_SECRETS = (
    "num_examples",
    "batch_size",
    "local_steps",
    "learning_rate",
    "optimizer",
    "training",
)


class LeveledSections(NamedTuple):
    """The sections of an experiment that determine its level."""

    federation: FederationConfig
    server_knows: ServerKnows
    capture: CaptureConfig


class Condition(NamedTuple):
    """One condition of a level.

    Attributes:
        option: the dotted option that decides.
        needs: the required value, in words.
        holds: True for sections that meet the condition.
    """

    option: str
    needs: str
    holds: Callable[[LeveledSections], bool]


def _withheld(fact: str) -> Condition:
    return Condition(
        f"server_knows.{fact}", "false", lambda given: not getattr(given.server_knows, fact)
    )


def _captured(given: LeveledSections) -> int:
    return len(given.capture.rounds) or given.federation.rounds


def _several_steps(given: LeveledSections) -> bool:
    run = given.federation
    if run.local_steps:
        return run.local_steps > 1
    return run.local_epochs > 1 or run.client_rows > run.batch_size


CONDITIONS: dict[Level, tuple[Condition, ...]] = {
    "L1": (),
    "L2": (
        _withheld("labels"),
        _withheld("lengths"),
        Condition("federation.batch_size", "at least 2", lambda s: s.federation.batch_size >= 2),
        Condition("federation.train_mode", "true", lambda s: s.federation.train_mode),
    ),
    "L3": (
        Condition("federation.protocol", "'fedavg'", lambda s: s.federation.protocol == "fedavg"),
        Condition("federation.local_epochs", "at least 2, for several steps", _several_steps),
        Condition("federation.partition", "not 'iid'", lambda s: s.federation.partition != "iid"),
        Condition("federation.rounds", "at least 3", lambda s: s.federation.rounds >= MANY_ROUNDS),
        Condition("capture.rounds", "at least 3 of them", lambda s: _captured(s) >= MANY_ROUNDS),
    ),
    "L4": (
        Condition(
            "federation.participation", "less than 1", lambda s: s.federation.participation < 1
        ),
        Condition("federation.secure_aggregation", "at least 2", lambda s: s.federation.cohort > 1),
        *map(_withheld, _SECRETS),
    ),
}

_FILLED: dict[Level, dict[str, object]] = {
    "L1": {"server_knows.labels": True, "server_knows.lengths": True},
    "L2": {
        "server_knows.labels": False,
        "server_knows.lengths": False,
        "federation.batch_size": 4,
        "federation.train_mode": True,
    },
    "L3": {
        "federation.protocol": "fedavg",
        "federation.local_epochs": 2,
        "federation.client_rows": 8,
        "federation.partition": "dirichlet",
        "federation.rounds": MANY_ROUNDS,
    },
    "L4": {
        "federation.participation": 0.5,
        **{f"server_knows.{fact}": False for fact in _SECRETS},
    },
}
"""Options that a level sets in addition to those of lower levels. L1's apply to L1 alone, since it
grants what L2 withholds."""


def level_of(config: CellConfig) -> Level:
    """The highest level whose conditions, and those of all lower levels, a cell meets."""
    given = LeveledSections(config.federation, config.server_knows, config.capture)
    reached: Level = "L1"
    for level in LEVELS:
        if not all(condition.holds(given) for condition in CONDITIONS[level]):
            return reached
        reached = level
    return reached


def contradiction(level: Level, config: CellConfig) -> str | None:
    """One line naming the option that keeps a cell below its declared level, or None."""
    given = LeveledSections(config.federation, config.server_knows, config.capture)
    for lower in LEVELS[: LEVELS.index(level) + 1]:
        for condition in CONDITIONS[lower]:
            if not condition.holds(given):
                section, name = condition.option.split(".")
                value = getattr(getattr(given, section), name)
                return (
                    f"{condition.option}: {_written(value)} contradicts level = {level!r}, which "
                    f"needs {condition.needs}. Remove the option, or declare {level_of(config)!r}."
                )
    return None


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else repr(value)


def filled(level: Level, table: Mapping[str, Any]) -> dict[str, object]:
    """Options of a level, by dotted name, that an experiment's table neither sets nor sweeps.

    At L4 all clients drawn in a round form one cohort and the server sees only their sum, as in
    deployed secure aggregation.
    """
    levels: list[Level] = ["L1"] if level == "L1" else list(LEVELS[1 : LEVELS.index(level) + 1])
    options = {key: value for rung in levels for key, value in _FILLED[rung].items()}
    open_ = {key: value for key, value in options.items() if not _stands(table, key)}
    if level == "L4" and not _stands(table, "federation.secure_aggregation"):
        share = _number(table, "participation", open_.get("federation.participation"))
        clients = _number(table, "clients", FederationConfig().clients)
        open_["federation.secure_aggregation"] = max(1, round(share * clients))
    return open_


def _stands(table: Mapping[str, Any], key: str) -> bool:
    section, name = key.split(".")
    options, sweep = table.get(section), table.get("sweep")
    return (isinstance(options, Mapping) and name in options) or (
        isinstance(sweep, Mapping) and key in sweep
    )


def _number(table: Mapping[str, Any], name: str, otherwise: object) -> float:
    """A number under ``[federation]``; anything else is refused when the table is validated."""
    options = table.get("federation")
    value = options.get(name, otherwise) if isinstance(options, Mapping) else otherwise
    return float(value) if isinstance(value, int | float) else 1.0


def at_level(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table, completed with the options of its level or of each level it sweeps."""
    level, sweep = table.get("level"), table.get("sweep")
    swept = sweep.get("level") if isinstance(sweep, dict) else None
    if not isinstance(swept, list):
        swept = []
    if level not in LEVELS and not swept:
        return table
    if level is not None and swept:
        raise ConfigError(f"level: {level!r} is set, and level is swept as well. Remove one.")
    settled: dict[str, Any] = json.loads(json.dumps(table))
    if swept:
        settled["sweep"]["level"] = [
            {"level": rung, **filled(rung, table)} if rung in LEVELS else rung for rung in swept
        ]
    elif level is not None:
        for key, value in filled(level, table).items():
            if isinstance(settled.get(key.split(".")[0], {}), dict):  # else it is refused below
                set_value(settled, key, value, key)
    return settled


def check_levels(values: Sequence[object]) -> None:
    """Raise ``ConfigError`` if a swept value is not the name of a level."""
    for value in values:
        if not isinstance(value, dict):
            raise ConfigError(
                f"sweep.level: {value!r} is not a level. Choose from {', '.join(LEVELS)}."
            )
