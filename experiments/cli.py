"""The command line. Each command imports heavy modules only when it runs."""

import signal
import sys
from typing import Annotated, Any

import click
import typer
import typer.core

from experiments.commands.help_page import Chapters, advice
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
