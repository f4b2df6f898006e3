"""``fedsim evidence``: a folder for a privacy assessment, without private rows."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from fedsim.api import Run
from fedsim.errors import ConfigError
from fedsim.visible import say

_REVIEWED = timedelta(days=365)


def evidence(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="a reported run", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="folder to write; default: RUN/evidence")
    ] = None,
    review: Annotated[
        str | None, typer.Option(metavar="DATE", help="review date; default: in a year")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="check a folder of evidence")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead of text")
    ] = False,
) -> None:
    """Write a folder for a privacy assessment: system, attacks, worst person, epsilon, open risks.

    It holds no private rows and no guesses. With --verify, check one against its hashes, and
    against the run if that is named or beside it.
    """
    from experiments.extras.evidence.folder import MANIFEST, PAGE, write_evidence
    from experiments.extras.evidence.folder import verify as check

    if verify is not None:
        if not (verify / MANIFEST).is_file():
            raise ConfigError(f"--verify {verify}: holds no {MANIFEST}. Name a folder of evidence.")
        said = check(verify, run)
        say(json.dumps({"verified": said}) if as_json else said)
        return
    if run is None:
        raise ConfigError("evidence: no run is named. Write fedsim evidence runs/<name>.")
    from experiments.extras.evidence.folder import compiled

    today = datetime.now(UTC).date()
    record = compiled(Run.open(run), today, _date(review) or today + _REVIEWED)
    folder = out or run / "evidence"
    sha256 = write_evidence(record, folder)
    if as_json:
        say(record.model_dump_json())
    else:
        say(f"evidence: {folder / PAGE}; manifest {sha256}")


def _date(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--review {text!r}: is no date. Write one as 2027-01-31.") from None
