"""The command line. Each command imports heavy modules only when it runs."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import click
import typer
import typer.core

from experiments.attest.command import attest
from experiments.commands.added import shipped_extras
from experiments.commands.audit import audit
from experiments.commands.calibrate import calibrate
from experiments.commands.check import check
from experiments.commands.describe import describe
from experiments.commands.diff import diff
from experiments.commands.doctor import doctor
from experiments.commands.help_page import Chapters, advice
from experiments.commands.init import init
from experiments.commands.limits import limits
from experiments.commands.list import list_
from experiments.commands.ls import ls
from experiments.commands.new import new
from experiments.commands.open import open_
from experiments.commands.prepare import prepare
from experiments.commands.prior import prior
from experiments.commands.rm import rm
from experiments.commands.run import attack, report, run, score, simulate
from experiments.commands.schema import schema
from experiments.commands.show import show
from experiments.origin import check_origin
from fedsim import __version__
from fedsim.errors import ConfigErrors, FedsimError, Interrupted, Terminated
from fedsim.visible import say

_INTERRUPTED, _TERMINATED = 130, 143
_CONTINUE = "Run the same command again to continue."
# With rich present, typer escapes the brackets of help texts although markup is off.
typer.core.HAS_RICH = False
app = typer.Typer(
    name="fedsim",
    cls=Chapters,
    invoke_without_command=True,
    suggest_commands=False,  # click does it already
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def fedsim(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Simulate federated learning with an honest-but-curious server.

    Attack the updates that it captured, and report how much private data they leaked.
    """
    if version:
        say(f"fedsim {__version__}")
    elif ctx.invoked_subcommand is None:
        say(ctx.get_help())


for _command in (
    *(run, simulate, attack, score, report),
    *(show, prepare, prior, init),
    *(calibrate, check, diff, doctor, limits, audit, attest),
    *(ls, rm),
    *(describe, schema, new),
):
    app.command()(_command)
app.command("list")(list_)
app.command("open")(open_)
for _name, _extra in shipped_extras():
    app.command(_name)(_extra)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut the cleaning up
    raise Terminated(_TERMINATED)


def main() -> None:
    """Run the command line. A user's mistake ends in one line on stderr, never in a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        check_origin()
        result: Any = app(standalone_mode=False)
    except ConfigErrors as error:
        sys.exit(max(map(_complain, error.lines)))
    except FedsimError as error:
        sys.exit(_complain(str(error)))
    except OSError as error:
        sys.exit(_complain(f"{str(error).rstrip('.')}. Correct it and run the same command again."))
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Interrupted as stop:
        _complain(f"interrupted. {stop}")
        sys.exit(_INTERRUPTED)
    except Terminated as stop:
        _complain(f"terminated. {stop.advice or _CONTINUE}")
        raise
    except Exception as error:
        if not isinstance(error, click.UsageError):
            raise
        sys.exit(_complain(advice(error)))
    if result == _INTERRUPTED:  # typer catches KeyboardInterrupt itself
        _complain(f"interrupted. {_CONTINUE}")
    sys.exit(result or 0)


def _complain(message: str) -> int:
    say(f"fedsim: {' '.join(message.split())}", error=True)
    return 2


if __name__ == "__main__":
    main()
