"""One resolved setting of an experiment: what a simulation needs, and nothing of attacks."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from fedsim.federation import FederationConfig
from fedsim.knowledge import FACTS, Fact
from fedsim.section import ConfigSection

TaskKind = Literal[
    "image-classification",
    "text-classification",
    "language-modelling",
    "masked-language-modelling",
]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


class FilterConfig(ConfigSection):
    """``[task.filter]``: which texts count, as in Gupta et al. 2022 ("FILM"); all, by default.

    They apply one after another, to the private rows, those held out and auxiliary ones of the
    task's data set. FILM's are sentences of fewer than 40 tokens, 5 unknown ones and a perplexity
    of 50, with a named entity.

    Attributes:
        sentences: cut texts into sentences; they keep the number of their row. Auxiliary rows of
            another data set are cut too, so that a private sentence among them is found.
        tokens_below: keep texts of fewer tokens, special ones not counted; 0 keeps all.
        unknown_below: keep texts with fewer unknown tokens, or ``<unk>``; 0 keeps all.
        entities: keep texts that name a person, organisation, place, product or event, as found
            by spaCy, or by the rules of the metric ``nerr_rules``, which need capitals.
        perplexity_below: keep texts with a lower perplexity for the pretrained model, whatever
            ``weights`` says, start and end token included; 0 keeps all.
    """

    sentences: bool = False
    tokens_below: int = Field(default=0, ge=0)
    unknown_below: int = Field(default=0, ge=0)
    entities: Literal["off", "rules", "spacy"] = "off"
    perplexity_below: float = Field(default=0.0, ge=0)


class TaskConfig(ConfigSection):
    """``[task]``: the model, the private rows and the rows held out for utility.

    Attributes:
        model: a hub id, a local folder, or a built-in (``fedsim list models``).
        dataset: a hub id with an optional ``:config``, a local folder, or a built-in.
        split: the clients' private rows; slices as in ``train[100:900]``.
        kind: what the model learns: ``image-classification``, ``text-classification``,
            ``language-modelling``, ``masked-language-modelling``, or the entry point of a task
            that a package adds; inferred from the model where it is ``auto``.
        weights: ``pretrained``, ``random``, or ``<folder>@<round>`` for the global model that an
            earlier run broadcast in that round, in a cell's folder or a run of one cell; ``auto``
            is ``random`` for a built-in model and ``pretrained`` for any other.
        input_column: the image or text column; found by its type where it is empty.
        label_column: the label column; found by its type where it is empty.
        heldout_split: rows for utility; the data set's validation or test split where empty.
        max_length: longest sentence in tokens, special tokens included.
        image_size: height and width in pixels that images are resized to; 0 leaves them.
        classes: private and held-out rows are of these classes; of all where empty.
        tokenizer: whose tokens a text model with random weights reads, a hub id, a local folder or
            a built-in; the model's own where it is empty.
        lora_rank: rank of LoRA adapters, which then are all that is trained and sent; 0 trains the
            model itself.
        lora_alpha: scale of the adapters, divided by the rank.
        lora_targets: last parts of the names of the linear layers that get one; query and value
            where empty.
        lora_head: a classifier's head is trained and sent, too, since it is random at first.
        filter: which texts count.
    """

    model: str = Field(min_length=1)
    dataset: str = Field(min_length=1)
    split: str = "train"
    kind: str = "auto"
    weights: str = "auto"
    input_column: str = ""
    label_column: str = ""
    heldout_split: str = ""
    heldout_rows: int = Field(default=256, ge=1)
    max_length: int = Field(default=32, ge=3)
    image_size: int = Field(default=0, ge=0)
    classes: tuple[int, ...] = ()
    tokenizer: str = ""
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: float = Field(default=16.0, gt=0)
    lora_targets: tuple[str, ...] = ()
    lora_head: bool = True
    filter: FilterConfig = FilterConfig()


class AuxiliaryConfig(ConfigSection):
    """``[auxiliary]``: public rows that the attacker may own; the task's data set where empty.

    Attributes:
        rows: at most so many, drawn by the seed.
        classes: of these classes; of all where empty.
        overlap: share of the rows that are of ``task.classes`` instead of ``classes``, "beta" in
            Learning To Invert (Wu et al. 2022), whose attacker has the other half of the classes.
    """

    dataset: str = ""
    split: str = ""
    rows: int = Field(default=1000, ge=1)
    classes: tuple[int, ...] = ()
    overlap: float = Field(default=0.0, ge=0, le=1)


class CaptureConfig(ConfigSection):
    """``[capture]``: which rounds and clients the server keeps; empty for all.

    Attributes:
        enabled: false keeps nothing, so that nothing is attacked: a training for its utility alone.
        clients: by number; cohorts under secure aggregation. Probes are always kept.
    """

    enabled: bool = True
    rounds: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()

    def keeps_round(self, round_: int) -> bool:
        """Whether anything of the round is kept."""
        return self.enabled and (not self.rounds or round_ in self.rounds)

    def keeps(self, round_: int, sender: int) -> bool:
        """Whether the reply of that client or cohort is kept in the round."""
        return self.keeps_round(round_) and (not self.clients or sender in self.clients)

    @field_validator("rounds", "clients")
    @classmethod
    def _once(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(values)) < len(values):
            raise ValueError("the same number stands there twice; remove one")
        return values


class ProbesConfig(ConfigSection):
    """``[probes]``: client steps on the same rows in each captured round, never aggregated.

    The rows of a round's clients differ from round to round; those of a probe do not, so that
    rounds can be compared. A probe makes the client's own step, with its defense.

    Attributes:
        member: probes on rows that a client owns and trains on, one client after another.
        fresh: probes on held-out rows, which no client owns.
    """

    member: int = Field(default=0, ge=0)
    fresh: int = Field(default=0, ge=0)

    @property
    def count(self) -> int:
        """How many there are in each captured round."""
        return self.member + self.fresh


class ServerKnows(ConfigSection):
    """``[server_knows]``: the threat model. The public protocol is known unless it is withheld.

    Attributes:
        labels: classes of the client's examples, in no particular order.
        num_examples: how many examples the client used in a round.
        lengths: tokens of each text, special ones included, in no particular order.
        batch_size: examples in one local step.
        local_steps: how many the client made in a round.
        learning_rate: the client's.
        optimizer: the client's.
        train_mode: whether the client trained with dropout and batch statistics on.
        defense: which one the client runs, with its options.
        auxiliary: the rows of ``[auxiliary]``, where there is that section.
    """

    labels: bool = False
    num_examples: bool = True
    lengths: bool = False
    batch_size: bool = True
    local_steps: bool = True
    learning_rate: bool = True
    optimizer: bool = True
    train_mode: bool = True
    defense: bool = True
    auxiliary: bool = True

    def grants(self) -> frozenset[Fact]:
        """The facts granted."""
        return frozenset(fact for fact in FACTS if getattr(self, fact))


class CellConfig(ConfigSection):
    """``cell.json``: all that determines the captures of one cell, and thus its hash."""

    seed: int
    task: TaskConfig
    auxiliary: AuxiliaryConfig | None
    federation: FederationConfig
    capture: CaptureConfig
    probes: ProbesConfig = ProbesConfig()
    server_knows: ServerKnows
    defense: tuple[dict[str, Any], ...]

    @property
    def captured(self) -> CaptureConfig:
        """``capture`` with the numbers of the probes, which come after the clients'."""
        own, clients = self.capture, self.federation.clients
        probes = range(clients, clients + self.probes.count)
        return own.model_copy(update={"clients": own.clients and (*own.clients, *probes)})

    @property
    def captured_rounds(self) -> tuple[int, ...]:
        """The rounds of which something is kept."""
        rounds = range(1, self.federation.rounds + 1)
        return tuple(round_ for round_ in rounds if self.capture.keeps_round(round_))
