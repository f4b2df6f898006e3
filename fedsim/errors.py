"""The errors a user may see. Each message reads ``<where>: <what is wrong>. <what to do>.``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fedsim.knowledge import Fact


class FedsimError(Exception):
    """Base of all errors that the command line prints as one line, without a traceback."""


class ConfigError(FedsimError):
    """The experiment, an option or an argument is wrong."""


class ConfigErrors(ConfigError):
    """Several mistakes of one file, a line each.

    Attributes:
        lines: the messages.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class StoreError(FedsimError):
    """A file of a run folder is missing, cut or altered."""


class CannotAttack(FedsimError):
    """The attack needs something that this observation or threat model does not give.

    No message names the attack: the record of the job does.

    Attributes:
        reason: what is wrong, a clause without a full stop.
        missing: facts of which the attack needs each, and the server knows none; empty where no
            fact would help.
        granting: how they are granted, a whole sentence; empty where none is missing.
        otherwise: what it may come from and what else to do, whole sentences.
        ended: why a search ended that might have gone on to a guess; empty if nothing was left to
            try.
    """

    def __init__(self, reason: str, otherwise: str = "", missing: Sequence[Fact] = ()) -> None:
        super().__init__(reason, otherwise)
        self.reason, self.otherwise, self.missing = reason, otherwise, tuple(missing)
        facts = " and ".join(f"server_knows.{fact}" for fact in missing)
        self.granting = f"Grant {facts}." if missing else ""
        self.ended: Literal["", "timeout", "exhausted"] = ""

    @property
    def advice(self) -> str:
        """What to do: grant what is missing, or something else."""
        return " ".join(filter(None, (self.granting, self.otherwise)))

    def __str__(self) -> str:
        return f"{self.reason}. {self.advice}"


class SimulationError(FedsimError):
    """A client or the server failed during the federated training."""


class Interrupted(Exception):
    """Ctrl-C ended a command that says how to go on; it is no failure of the code."""


class Terminated(SystemExit):
    """SIGTERM asked this process to end; it is no failure of the code that it interrupts.

    Attributes:
        advice: how to go on, if a command has said so.
    """

    advice = ""


def message_of(error: BaseException) -> str:
    """The error's message: one line of at most 500 characters that can be written anywhere."""
    try:
        text = str(error)
    except BaseException as second:  # it is the error of a plug-in
        text = f"its message cannot be printed: {type(second).__name__}"
    return one_line(text)


def one_line(text: str) -> str:
    """The text on a line of at most 500 characters that can be written anywhere."""
    return " ".join(text.split())[:500].encode(errors="replace").decode()
