"""The records of a run: one per job, one per score, one per measure of utility."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from pydantic import Field

from fedsim.knowledge import Fact
from fedsim.store.capture import Keyed
from fedsim.store.files import Record, Sealed

Status: TypeAlias = Literal["done", "skipped", "failed", "timeout", "exhausted", "interrupted"]
STATUSES: tuple[Status, ...] = get_args(Status)
State: TypeAlias = Literal["queued", "running", "done", "skipped", "failed", "timeout", "exhausted"]
"""Of a row of the ledger."""
UNFINISHED = "unfinished: the clock ended it"
"""Begins the reason of a job with the status ``timeout``."""
CUT: frozenset[Status] = frozenset({"timeout", "exhausted"})
"""Jobs that the clock or a budget of their own ended."""
LOST = CUT | {"failed"}
"""Jobs that show nothing by what they did not return: a blank guess or one that came too early."""
UNSCORED: frozenset[Status] = frozenset({"skipped", "interrupted"})
"""Statuses of jobs that say nothing about the attack; an interrupted one is run again."""
Certificate: TypeAlias = Literal["certified", "consistent", "in_span", "guess"]
"""The best first: the guess makes the observed update; it does but for what noise, rounding or
pruning explains; its tokens lie in the span of the gradient; nothing speaks for it."""
ProbeKind: TypeAlias = Literal["none", "member", "fresh"]
"""A client's own step, or a probe on rows that a client owns, or on rows that none owns."""
Modality: TypeAlias = Literal["image", "text"]
MAIN: dict[Modality, str] = {"image": "psnr", "text": "rougeL"}
"""The metric by which attacks and examples are ranked; the higher, the more leaked."""
PRIOR_ONLY = "prior_only"
FRESH_ROW = "fresh_row"
"""A row that nobody used in the place of a member, ranked among the other such rows."""
OTHER_CLIENT = "other_client"
"""The attack on another client's reply, with the victim's own granted facts and broadcast."""
SECOND_CLIENT = "second_client"
"""As ``other_client`` with another donor. Both are drawn at random: neither is privileged."""
CONTROLS = (OTHER_CLIENT, SECOND_CLIENT)
OTHER_CLIENTS = "other_clients"
"""All that the attack guessed in the round for clients who do not hold the text."""


def shown(status: str) -> str:
    """The status in the words of tables: a clock that ended a job left it unfinished."""
    return "unfinished" if status == "timeout" else status


@dataclass(frozen=True, slots=True, order=True)
class AttackKey:
    """One attack with its options as canonical JSON; ``adaptive`` if it models the defense.

    Its fields are columns of the rows.
    """

    attack: str
    attack_options: str
    adaptive: bool


class DefenseKey(NamedTuple):
    """A chain of defenses by its bare name, with its options as canonical JSON; both are columns.

    Without a defense the name is ``none`` and the options are an empty list.
    """

    defense: str
    defense_options: str


class ExampleKey(NamedTuple):
    """One private example in one captured round; ``example`` is its position in the batch."""

    cell: str
    round: int
    client: int
    example: int


class JobRecord(Keyed, Sealed):
    """What became of one attack on one observation. Always written, also when the worker died.

    Attributes:
        attack: the attack's label in the experiment, unique there.
        status: ``interrupted`` if the machine ended it and not the attack: a file, the disk, the
            memory or the worker's process. Such a job is not settled, and has no score.
            ``exhausted`` if a budget among the attack's own options ended its search: the same on
            any machine, and no more evidence that nothing leaks than what the clock ended.
        reason: why a job was skipped or failed; for ``done`` what there is to know, or nothing.
        cause: what is wrong, the clause of a refusal; empty of other jobs, and in older runs.
        missing: facts without which a refusal stands; empty in older runs.
        advice: what helps against it, whole sentences; empty with it.
        seconds: wall time in the worker.
        device: ``cpu``, or the name of the GPU that computed; empty in older runs.
        peak_bytes: the worker's largest resident memory, or GPU memory where it had one.
        objective: the attacker's own final objective; None where it has none.
        confidence: per guessed example, where the attack can tell.
        trace: (step, seconds, objective), thinned to at most some hundreds.
        sha256: hash of the guess file; None where there is no guess.
    """

    attack: str
    status: Status
    reason: str = ""
    cause: str = ""
    missing: tuple[Fact, ...] = ()
    advice: str = ""
    seconds: float = 0.0
    device: str = ""
    peak_bytes: int = 0
    objective: float | None = None
    steps: int = 0
    confidence: tuple[Certificate, ...] | None = None
    trace: tuple[tuple[int, float, float], ...] = ()
    attempts: int = 1
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One value of one metric on one private example; a row of ``scores.parquet``.

    A run has a million of them, so that it is no ``Record``, which takes ten times the memory.

    ``value`` is None where the job was skipped or interrupted, a control left no guess, or there is
    nothing to measure. A failed job, one that was cut short without a guess and an example that no
    guess was matched to are scored as a blank guess. ``control`` is ``none`` for the attack itself,
    else one of ``CONTROLS``, of whose second there is the main metric alone, or ``other_clients``,
    of which there is ``exact_match`` alone.
    ``probe`` is ``none`` for a client, else the kind of the probe. ``row`` is the example's number
    in the split that it is from, by which the same example is known again. ``cause`` is that of the
    job's record.
    """

    run: str
    cell: str
    seed: int
    task: str
    model: str
    dataset: str
    split: str
    protocol: str
    batch_size: int
    local_steps: int
    defense: str
    defense_options: str
    attack: str
    attack_options: str
    adaptive: bool
    control: str
    round: int
    client: int
    probe: str
    example: int
    row: int | None = None
    metric: str
    value: float | None
    unit: str
    status: str
    reason: str
    objective: float | None
    certified: bool | None
    level: str | None
    seconds: float
    cause: str = ""

    @property
    def unscored(self) -> bool:
        """Whether the job says nothing about the attack."""
        return self.status in UNSCORED

    @property
    def attack_key(self) -> AttackKey:
        """Which attack was scored."""
        return AttackKey(self.attack, self.attack_options, self.adaptive)

    @property
    def example_key(self) -> ExampleKey:
        """Which example the guess was compared with."""
        return ExampleKey(self.cell, self.round, self.client, self.example)


class UtilityRow(Record):
    """One utility metric of the global model after a round; a row of ``utility.parquet``.

    Round 0 is the model before training. ``epsilon`` is None where nothing private is claimed;
    ``add_or_remove`` and ``replace`` are its values by relation of neighbours at ``delta``, each
    unit in a release with a chance of ``rate``. ``bytes_up`` is the size of all replies of the
    round.
    """

    run: str
    cell: str
    seed: int
    defense: str
    defense_options: str
    round: int
    metric: str
    value: float
    epsilon: float | None
    bytes_up: int
    seconds: float
    add_or_remove: float | None = None
    replace: float | None = None
    rate: float | None = None
    delta: float | None = None


class UtilityPoint(Record):
    """One utility metric of the global model after ``round``; round 0 is before training.

    ``seconds`` is the wall time since the measurement before.
    """

    round: int
    metric: str
    value: float
    seconds: float


TRAINING = "training.json"


class TrainingRecord(Record):
    """``training.json`` of a cell: the utility so far; gone when the training has ended."""

    utility: tuple[UtilityPoint, ...]


class SimulationRecord(Sealed):
    """``simulation.json``: written when the training has ended, so its presence says so.

    Attributes:
        bytes_up: size of all replies, by round.
        client_rows: how many private rows each client holds, by its number; empty in older runs.
        incidents: workers that died or hung and were replaced.
        captures: SHA-256 of the files below ``captures/``, by name; empty in older runs.
        truth: as ``captures``, of ``truth/``; empty if another engine ran the apps.
    """

    seconds: float
    utility: tuple[UtilityPoint, ...]
    bytes_up: dict[int, int]
    incidents: tuple[str, ...]
    client_rows: tuple[int, ...] = ()
    captures: dict[str, str] = Field(default_factory=dict)
    truth: dict[str, str] = Field(default_factory=dict)
