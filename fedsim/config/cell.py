"""One resolved cell of an experiment: everything a simulation needs, and nothing about attacks."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from fedsim.config.federation import FederationConfig
from fedsim.config.section import ConfigSection
from fedsim.knowledge import FACTS, Fact


class ServerKnows(ConfigSection):
    """``[server_knows]``: the threat model. The public protocol is known unless it is withheld.

    Attributes:
        labels: classes of the client's examples, without their order.
        num_examples: number of examples that the client used in the round.
        all_rows: whether these are all the examples that the client owns; never told without
            their number.
        lengths: number of tokens of each text, special tokens included, without their order.
        batch_size: number of examples in a local step.
        local_steps: number of steps that the client took in the round.
        learning_rate: learning rate of the client.
        optimizer: optimiser of the client.
        train_mode: whether dropout and batch statistics were active while the client trained.
        training: the client's other options of ``[federation]``, such as its precision, schedule,
            clipping and label smoothing.
        defense: the client's defenses and their options.
        auxiliary: the rows of ``[auxiliary]``, if that section is present.
    """

    labels: bool = False
    num_examples: bool = True
    all_rows: bool = True
    lengths: bool = False
    batch_size: bool = True
    local_steps: bool = True
    learning_rate: bool = True
    optimizer: bool = True
    train_mode: bool = True
    training: bool = True
    defense: bool = True
    auxiliary: bool = True

    def grants(self) -> frozenset[Fact]:
        """The facts that are granted."""
        facts = frozenset(fact for fact in FACTS if getattr(self, fact))
        return facts if self.num_examples else facts - {"all_rows"}


TaskKind = Literal[
    "image-classification",
    "text-classification",
    "language-modelling",
    "masked-language-modelling",
]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


class FilterConfig(ConfigSection):
    """``[task.filter]``: which texts are kept, as in Gupta et al. 2022 ("FILM"); all, by default.

    The criteria are applied one after another to the private rows, the held-out rows, and auxiliary
    rows of the task's data set. FILM keeps sentences that have fewer than 40 tokens, fewer than 5
    unknown tokens, a perplexity below 50 and a named entity.

    Attributes:
        sentences: split texts into sentences, which keep the row number of their text. Auxiliary
            rows of another data set are split too, so that a private sentence among them is found.
        tokens_below: keep texts with fewer tokens than this, special tokens not counted; 0 keeps
            all.
        unknown_below: keep texts with fewer unknown tokens, or ``<unk>``, than this; 0 keeps all.
    """

    sentences: bool = False
    tokens_below: int = Field(default=0, ge=0)
    unknown_below: int = Field(default=0, ge=0)


class TaskConfig(ConfigSection):
    """``[task]``: the model, the private rows, and the held-out rows that measure utility.

    Attributes:
        model: a hub id, a local folder, a built-in (``fedsim list models``), or a network of images
            of your own as ``module:name`` or ``file.py:name``, which may take ``num_classes``.
        dataset: a hub id with an optional ``:config``, a local folder, or a built-in.
        split: the clients' private rows; may be sliced, as in ``train[100:900]``.
        kind: what the model learns: ``image-classification``, ``text-classification``,
            ``language-modelling``, ``masked-language-modelling``, or the entry point of a task that
            an installed package adds; ``auto`` infers it from the model.
        weights: ``pretrained``, ``random``, or ``<folder>@<round>`` for the global model that an
            earlier run broadcast in that round, where the folder is that of a cell, of a run with
            one cell, or ``<run>/<option>=<value>`` for its one cell of that value; ``auto`` is
            ``random`` for a built-in model and ``pretrained`` for any other.
        input_column: the image or text column; if empty, it is found by its type.
        label_column: the column of class numbers or names; if empty, it is found by its name or
            type.
        heldout_split: rows that measure utility; if empty, the validation or test split.
        heldout_rows: largest number of held-out rows, drawn by the seed.
        max_length: length in tokens at which texts are cut, special tokens included.
        image_size: height and width in pixels that images are resized to; 0 keeps their size.
        classes: classes of the private and held-out rows; all if empty.
        tokenizer: tokenizer of a text model with random weights: a hub id, a local folder or a
            built-in; the model's own if empty.
        trained: patterns of the names of the parameters that are trained and sent, such as
            ``["*bias", "classifier*"]`` (BitFit); ``*`` stands for anything, and all are if empty.
        adapters: what is trained and sent in place of the model: ``lora``, ``rslora``, ``dora``,
            ``ia3``, ``prompt``, ``p-tuning`` or ``prefix``; if empty ``lora``, where there is a
            rank, or the model itself.
        virtual_tokens: number of the tokens of ``prompt``, ``p-tuning`` and ``prefix``.
        lora_rank: rank of the low-rank adapters; peft's 8, if 0 and ``adapters`` names them.
        lora_alpha: scale of the adapters before it is divided by the rank.
        lora_targets: last parts of the names of the linear layers that get an adapter; the query
            and value layers if empty.
        lora_dropout: dropout of the adapters' inputs, if ``federation.train_mode`` is on.
        lora_saved: last parts of the names of further modules that are trained and sent whole.
        lora_head: train and send a classifier's head as well, since its weights are random at
            first.
        packed: join a client's texts, with the end token between two, to blocks of at most
            ``max_length`` tokens, each of which is then one example of language modelling.
        unchecked: take a text model of an architecture that no test covers, too.
        filter: which texts are kept.
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
    trained: tuple[str, ...] = ()
    adapters: Literal["", "lora", "rslora", "dora", "ia3", "prompt", "p-tuning", "prefix"] = ""
    virtual_tokens: int = Field(default=8, ge=1)
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: float = Field(default=16.0, gt=0)
    lora_targets: tuple[str, ...] = ()
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_saved: tuple[str, ...] = ()
    lora_head: bool = True
    packed: bool = False
    unchecked: bool = False
    filter: FilterConfig = FilterConfig()


class AuxiliaryConfig(ConfigSection):
    """``[auxiliary]``: public rows that the attacker may own.

    Attributes:
        dataset: as in ``[task]``; the task's data set if empty.
        split: as in ``[task]``; if empty, ``public`` of a built-in, or ``train`` of a data set
            other than the task's.
        rows: largest number of rows, drawn by the seed.
        classes: classes of the rows; all if empty.
        overlap: share of the rows that belong to ``task.classes`` instead of ``classes``: "beta" in
            Learning To Invert (Wu et al. 2022), whose attacker owns the other half of the classes.
    """

    dataset: str = ""
    split: str = ""
    rows: int = Field(default=1000, ge=1)
    classes: tuple[int, ...] = ()
    overlap: float = Field(default=0.0, ge=0, le=1)


class CaptureConfig(ConfigSection):
    """``[capture]``: the replies that the server keeps, and what of them; all if empty.

    Attributes:
        enabled: false keeps nothing, so nothing is attacked and only the utility is measured.
        rounds: numbers of the rounds, from 1.
        clients: numbers of the clients, from 0; of the cohorts under secure aggregation. Probes are
            always kept.
        tensors: parts of names, whole between dots, such as ``transformer.h.0``: of a reply only
            tensors whose name contains one are kept. To an attack the others look frozen.
    """

    enabled: bool = True
    rounds: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()

    def keeps_round(self, round_: int) -> bool:
        """True if anything of the round is kept."""
        return self.enabled and (not self.rounds or round_ in self.rounds)

    def keeps(self, round_: int, sender: int) -> bool:
        """True if the reply of that client or cohort is kept in that round."""
        return self.keeps_round(round_) and (not self.clients or sender in self.clients)

    def keeps_tensor(self, name: str) -> bool:
        """True if that tensor of a reply is kept."""
        return not self.tensors or any(f".{part}." in f".{name}." for part in self.tensors)

    @field_validator("rounds", "clients", "tensors")
    @classmethod
    def _once(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"{max(values, key=values.count)!r} occurs twice; remove one")
        return values


class ProbesConfig(ConfigSection):
    """``[probes]``: client steps on the same rows in every captured round, never aggregated.

    Clients train on different rows in every round; a probe does not, which makes rounds comparable.
    It takes the same step as a client, with the same defense.

    Attributes:
        member: number of probes on rows that a client owns and trains on; the clients take turns.
        fresh: number of probes on held-out rows, which no client owns.
    """

    member: int = Field(default=0, ge=0)
    fresh: int = Field(default=0, ge=0)

    @property
    def count(self) -> int:
        """Number of probes in each captured round."""
        return self.member + self.fresh


class CandidatesConfig(ConfigSection):
    """``[candidates]``: rows of which a membership attack says who took part in an update.

    They are shuffled, and the same for all captures; only the evaluator knows which were used.

    Attributes:
        fresh: number of held-out rows among them, which nobody trains on; 0 for no candidates. A
            true positive rate at a false positive rate of 1 % needs 99 of them.
        share: share of the rows used in captured rounds that are among them.
    """

    fresh: int = Field(default=0, ge=0)
    share: float = Field(default=0.5, gt=0, le=1)


class CellConfig(ConfigSection):
    """``cell.json``: everything that determines the captures of a cell, and therefore its hash."""

    seed: int
    task: TaskConfig
    auxiliary: AuxiliaryConfig | None
    federation: FederationConfig
    capture: CaptureConfig
    probes: ProbesConfig = ProbesConfig()
    candidates: CandidatesConfig = CandidatesConfig()
    server_knows: ServerKnows
    defense: tuple[dict[str, Any], ...]

    @property
    def captured(self) -> CaptureConfig:
        """``capture`` extended by the numbers of the probes, which follow those of the clients."""
        policy, clients = self.capture, self.federation.clients
        probes = range(clients, clients + self.probes.count)
        return policy.model_copy(update={"clients": policy.clients and (*policy.clients, *probes)})

    def kind_of(self, client: int) -> Literal["none", "member", "fresh"]:
        """Whether the captures of that number are of a client or of a probe."""
        probe = client - self.federation.clients
        if probe < 0:
            return "none"
        return "member" if probe < self.probes.member else "fresh"

    @property
    def captured_rounds(self) -> tuple[int, ...]:
        """The rounds in which something is kept."""
        rounds = range(1, self.federation.rounds + 1)
        return tuple(round_ for round_ in rounds if self.capture.keeps_round(round_))
