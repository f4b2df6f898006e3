"""What the arena writes, and the public bundle, which is read once its hashes are checked."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field

from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureStore
from fedsim.store.files import SCHEMA, Record, Sealed, check_hashes, read_record
from fedsim.store.plain_files import check_folder, digest_plain
from fedsim.tasks import load_task
from fedsim.tasks.base import Task

BUNDLE, SECRET, SUBMISSION, GRADE = "bundle.json", "secret.json", "submission.json", "grade.json"
LABEL = "submission"
"""Under which a submission's guesses are kept and scored."""
MINUTES = 30.0
"""CPU minutes of a submission: a class or a laptop can run all six tracks in an evening."""
Asked: TypeAlias = Literal["rows", "membership"]


class Rules(Record):
    """What a track asks for, and what it allows.

    Attributes:
        track: name of the experiment that was sealed.
        asked: the private rows, or which candidates are among them.
        metric: by which submissions are ranked; the higher, the better.
        model: name of the model.
        dataset: of the private rows. Nothing of it may be used but the bundle's auxiliary rows.
        drawn: whether the private rows were drawn anew and are in no data set that anyone has.
        cpu_minutes: the most that a submission may use.
        answers: by capture, how many guesses may be made, one for each private row; or of how many
            candidates the score is asked.
    """

    track: str
    asked: Asked
    metric: str
    model: str
    dataset: str
    drawn: bool
    cpu_minutes: float = Field(gt=0)
    answers: dict[str, int]


class Bundle(Sealed):
    """``bundle.json``: the rules, the hashes of the captures, and a commitment to each private row.

    Attributes:
        files: SHA-256 by name below ``captures/``; that of tensors is in the record beside them.
        commitments: salted SHA-256 of each private row, sorted, which hides whose it is.
    """

    schema_version: int = SCHEMA
    fedsim: str
    rules: Rules
    files: dict[str, str]
    commitments: tuple[str, ...]


class Secret(Sealed):
    """``secret.json`` of the truth: what opens the commitments of a bundle.

    Attributes:
        bundle: SHA-256 of ``bundle.json``.
        salts: of each private row, in hexadecimal, by client and round.
        files: SHA-256 by name below the folder.
    """

    schema_version: int = SCHEMA
    bundle: str
    salts: dict[str, tuple[str, ...]]
    files: dict[str, str]


class Submission(Sealed):
    """``submission.json``.

    Attributes:
        bundle: SHA-256 of the ``bundle.json`` that was attacked.
        name: of the attack, as the board shows it.
        options: of an attack that fedsim ran; empty for a file of guesses.
        code: SHA-256 of the attack's source, or of the file of guesses.
        cpu_seconds: of user and system time of all processes.
        measured: whether ``submit`` measured them; stated by the participant otherwise.
        files: SHA-256 by name below ``guesses/``.
    """

    schema_version: int = SCHEMA
    fedsim: str
    bundle: str
    name: str = Field(pattern=r"^[\w .,:()+/-]{1,80}$")
    options: dict[str, Any]
    code: str
    cpu_seconds: float = Field(ge=0, allow_inf_nan=False)
    measured: bool
    files: dict[str, str]


class GradedNumber(Record):
    """A mean with its 95 % interval over clients, where there are enough for one."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


class Grade(Sealed):
    """``grade.json``: one row of the board.

    Attributes:
        n: private rows.
        clients: that own them.
        word: of the judge, with how bad a leak is; empty where membership is asked.
        exact: rows that came back exactly; None where membership is asked.
        score: of the submission.
        nulls: of guesses that never saw the victim, on the same rows.
        lead: of the submission over each null.
        submission: SHA-256 of ``submission.json``.
        grader: version of fedsim that graded.
    """

    schema_version: int = SCHEMA
    track: str
    name: str
    metric: str
    n: int
    clients: int
    word: str
    exact: int | None
    score: GradedNumber
    nulls: dict[str, GradedNumber]
    lead: dict[str, GradedNumber]
    cpu_seconds: float
    measured: bool
    code: str
    bundle: str
    submission: str
    grader: str

    def text(self) -> str:
        """A few lines to print."""
        exact = "" if self.exact is None else f", {self.exact} exact: {self.word}"
        cost = "measured by fedsim submit" if self.measured else "as stated by the participant"
        lines = [
            f"{self.track}, {self.name}: {self.metric} {self.score}, {self.n} rows of "
            f"{self.clients} clients{exact}; {self.cpu_seconds:.0f} CPU seconds, {cost}"
        ]
        lines += [
            f"  less {name} ({value}): {self.lead[name]}" for name, value in self.nulls.items()
        ]
        lines.append(f"  submission {self.submission[:16]}, bundle {self.bundle[:16]}")
        return "\n".join(lines)


REMEDY = "Get the bundle again from whoever sealed it."


@dataclass(frozen=True)
class OpenBundle:
    """A bundle whose files are those of its manifest."""

    root: Path
    manifest: Bundle

    @property
    def sha256(self) -> str:
        """Hash of the manifest, by which submissions and the truth name the bundle."""
        return digest_plain(self.root / BUNDLE)

    @property
    def captures(self) -> CaptureStore:
        """What the server saw."""
        return CaptureStore(self.root / "captures")

    @cached_property
    def task(self) -> Task:
        """The task, to encode and check guesses; no network is built."""
        return load_task(self.captures.root, network=False)


def open_bundle(root: Path) -> OpenBundle:
    """Read a bundle.

    Raises:
        ConfigError: the folder is no bundle, or holds a link.
        StoreError: a file was changed, added or lost.
    """
    if not (root / BUNDLE).is_file():
        raise ConfigError(f"{root}: no bundle ({BUNDLE} is missing). Name a folder of fedsim seal.")
    check_folder(root)
    manifest = read_record(root / BUNDLE, Bundle)
    check_hashes(root / "captures", manifest.files, REMEDY)
    bundle = OpenBundle(root, manifest)
    for key in bundle.captures.keys():
        bundle.captures.load(key)  # whose tensors are in no manifest, but in the record of each
    return bundle
