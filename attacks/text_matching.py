"""What DLG, TAG and LAMP share: a text is searched for whose gradient is the one observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import nn

from attacks.adaptive import adapted, denoised
from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.embedding_rows import noise_variance, standing_out, tables
from attacks.factored import Factored
from attacks.hypotheses import Labels, hypotheses
from attacks.label_search import Classes, LabelSearch, Targets
from attacks.language_prior import LanguagePrior, load_prior
from attacks.matching import Distance, Matching, Objective
from attacks.replay import Replay, observed_gradient, replay
from attacks.search import Progress
from attacks.surrogate_model import SurrogateModel
from attacks.text_search import Lanes, Search, Weights
from attacks.vocabulary import Vocabulary, frame, words_of
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

NOTED = 25
"""Steps between two entries of the trace."""
Discrete: TypeAlias = Literal["alternate", "end", "none"]


@dataclass(frozen=True)
class TextMatching(Attack):
    """Searches word embeddings, and then their order, by the distance of gradients.

    The embeddings of all sentences of a batch are searched at once, from the word table's output
    on: positions and norms are the model's own. Start, end and padding stand where the lengths say.
    The word table's gradient is not compared (a guess that is no token has no row in it), nor are
    gradients that vanish for analytical reasons, whose cosine is rounding. The real mask is passed.
    Victims of one broadcast model share their passes. The guess is the better, as tokens, of the
    last and the lowest iterate.

    Attributes:
        distance: ``cosine``, ``l2`` or ``l2l1``.
        alpha_l1: weight of L1 in ``l2l1``.
        steps: of the optimiser.
        learning_rate: at the start.
        optimizer: ``adamw`` has epsilon 1e-6 and weight decay 0.01.
        decay: ``step`` multiplies the rate by 0.89 every ``decay_every`` steps; ``linear`` goes to
            0 after ``decay_every`` steps.
        decay_every: steps.
        clip: largest norm of a lane's slope; 0 for none.
        starts: random embeddings, and then orders of them, of which the best is taken.
        rescale: give each start the norms of the vocabulary.
        restarts: searches of one victim, the best of which counts.
        alpha_reg: weight of ``(mean norm of the guess - mean norm of the vocabulary)^2``.
        alpha_lm: weight of the language prior's loss, in nats a token.
        prior: hub id or folder of a causal language model over the same vocabulary; empty for none.
        discrete: try other orders in turn with the steps, at the ``end``, or not.
        discrete_every: steps between two rounds; the first is after a tenth of the steps.
        proposals: orders tried in a round for each sentence.
        labels: ``auto`` takes the granted labels, or reads them off the head; ``enumerate`` tries
            all; ``joint`` searches for them as DLG does.
        hypotheses: most combinations of lengths and labels tried, where they are not known; they
            compete for the first tenth of the steps.
        tokens: ``rows`` guesses only tokens whose row of the word gradient moved (FILM, 2022).
        layers: parts of parameter names; only gradients with one of them are compared. Empty: all.
        surrogate: ``sme`` for FedAvg of several steps, see ``SurrogateModel``.
        lanes: guesses that share a pass; bounds the memory.
        adaptive: use the declared defense: compare signs or the observed support, take noise off.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    grouping: ClassVar[Grouping] = "same_weights"

    distance: Distance = "cosine"
    alpha_l1: Annotated[float, Field(ge=0)] = 0.01
    steps: Annotated[int, Field(ge=1)] = 2000
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: Literal["step", "linear", "none"] = "step"
    decay_every: Annotated[int, Field(ge=1)] = 50
    clip: Annotated[float, Field(ge=0)] = 0.0
    starts: Annotated[int, Field(ge=1)] = 500
    rescale: bool = True
    restarts: Annotated[int, Field(ge=1)] = 1
    alpha_reg: Annotated[float, Field(ge=0)] = 1.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.2
    prior: str = ""
    discrete: Discrete = "alternate"
    discrete_every: Annotated[int, Field(ge=1)] = 75
    proposals: Annotated[int, Field(ge=2)] = 200
    labels: Labels = "auto"
    hypotheses: Annotated[int, Field(ge=1)] = 16
    tokens: Literal["vocabulary", "rows"] = "vocabulary"
    layers: tuple[str, ...] = ()
    surrogate: Literal["none", "sme"] = "none"
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        prepared: Tensors | None = None,
    ) -> list[Reconstruction]:
        """One guess for each observation; those of equal shape share their passes."""
        del prepared
        if not isinstance(task, TextTask) or task.spec.kind == "language-modelling":
            raise CannotAttack(
                f"text matching: the labels of {task.spec.kind!r} are the text itself. "
                "Choose 'embedding_rows', 'film' or 'span'."
            )
        prior = load_prior(self.prior, task, job.device) if self.prior else None
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, seen in enumerate(observations):
            facts = seen.knowledge
            names = tuple(seen.received)
            alike[facts.num_examples, facts.train_mode, repr(facts.defense), names].append(index)
        guesses: dict[int, Reconstruction] = {}
        for members in alike.values():
            group = [observations[i] for i in members]
            made = _Group(self, group, task, prior, [rngs[i] for i in members], job).run()
            guesses |= zip(members, made, strict=True)
        return [guesses[index] for index in range(len(observations))]


class _Group:
    """Victims of one model, whose updates have the same parts."""

    def __init__(
        self,
        options: TextMatching,
        observations: Sequence[Observation],
        task: TextTask,
        prior: LanguagePrior | None,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> None:
        self._options, self._observations, self._task = options, observations, task
        self._prior, self._rngs, self._job = prior, rngs, job
        model = replay(observations[0], task, job.device)
        wanted = {
            name: own
            for name, own in model.parameters.items()
            if not options.layers or any(part in name for part in options.layers)
        }
        self._model = Factored(Replay(task, model.network, wanted))
        if not self._model.names:
            raise CannotAttack(
                f"{observations[0].key}: no gradient was sent that a text could be matched to. "
                "Freeze less, or name other layers."
            )

    def run(self) -> list[Reconstruction]:
        """One guess a victim."""
        options = self._options
        search = self._search()
        progress = Progress(self._job)
        search.start(options.starts, self._rngs, rescale=options.rescale)
        search.optimizer = self._optimizer(search)
        burn_in, note = options.steps // 10, ""
        step = 0
        for step in range(1, options.steps + 1):
            if self._job.expired:
                step -= 1
                break
            for group in search.optimizer.param_groups:
                group["lr"] = self._rate(step - 1)
            objective = search.step(options.clip)
            if not bool(objective.isfinite().any()):
                note = f"the search diverged at step {step}; lower learning_rate"
                break
            if step == max(1, burn_in) and search.guess.shape[1] > options.restarts:
                search = search.narrowed(options.restarts)
                search.optimizer = self._optimizer(search)
            if options.discrete == "alternate" and self._due(step):
                search.rearrange(options.proposals, self._rngs)
            if step % NOTED == 0 or step == options.steps:
                progress.note(step, search.lowest(), self._text(search))
        if options.discrete == "end":
            for _ in range(sum(self._due(step) for step in range(1, options.steps + 1))):
                search.rearrange(options.proposals, self._rngs)
        expired = self._job.expired and not note
        return [
            self._result(search, victim, step, expired, note, progress)
            for victim in range(len(self._rngs))
        ]

    def _search(self) -> Search:
        options, network = self._options, self._model.network
        objective = Objective(options.distance, options.alpha_l1)
        if options.adaptive:
            objective = adapted(objective, self._observations[0])
        lanes = self._lanes()
        places = int(lanes.mask.sum((2, 3)).max())
        steps = self._observations[0].knowledge.local_steps or 1
        matching = Matching(
            self._model,
            (self._observed(seen, objective) for seen in self._observations),
            objective,
            # A little more than the rank, so that rounding finds room.
            places * steps + 4,
        )
        like = next(network.parameters())
        surrogates = None
        if options.surrogate == "sme" and self._observations[0].kind == "weights":
            surrogates = [SurrogateModel(seen, like) for seen in self._observations]
        return Search(
            matching,
            self._vocabularies(network),
            lanes,
            Weights(options.alpha_reg, options.alpha_lm, options.lanes),
            self._job,
            prior=self._prior,
            surrogates=surrogates,
        )

    def _observed(self, seen: Observation, objective: Objective) -> Tensors:
        """The gradient to match; its scale does not matter to a mean of cosines."""
        names = {name for group in self._model.layout for name in group}
        seen = replace(seen, received={k: v for k, v in seen.received.items() if k in names})
        gradient = seen.update() if objective.is_mean else observed_gradient(seen)
        if not self._options.adaptive:
            return gradient
        return denoised(gradient, self._model.weights, seen)

    def _vocabularies(self, network: nn.Module) -> list[Vocabulary]:
        words = words_of(self._task)
        if self._options.tokens == "vocabulary":
            return [Vocabulary(network, words)] * len(self._observations)
        found = []
        for seen in self._observations:
            rows, _ = tables(seen, network, torch.device("cpu"))
            moved = standing_out(rows, noise_variance(rows))
            moved = moved[torch.isin(moved, words)]
            if not len(moved):
                raise CannotAttack(
                    f"{seen.key}: no row of the word gradient stands out, so there are no tokens "
                    "to choose from. Set tokens = 'vocabulary'."
                )
            found.append(Vocabulary(network, moved))
        return found

    def _lanes(self) -> Lanes:
        """A lane for each hypothesis and restart; victims with fewer hypotheses repeat theirs."""
        options, task, network = self._options, self._task, self._model.network
        possible = [
            hypotheses(seen, task, network, options.labels, options.hypotheses, rng, self._job)
            for seen, rng in zip(self._observations, self._rngs, strict=True)
        ]
        count = max(map(len, possible)) * options.restarts
        tokens = max(length for own in possible for each in own for length in each.lengths)
        before, after = frame(task)
        meaning: LabelSearch = Classes(task.spec.num_classes)
        if not task.spec.num_classes:
            meaning = Targets(self._observations, network)
        rows = []
        for own, rng in zip(possible, self._rngs, strict=True):
            for number in range(count):
                guess = own[number % len(own)]
                lengths = torch.tensor(guess.lengths)[:, None]
                place = torch.arange(tokens)
                mask = (place < lengths).to(torch.int64)
                free = (place >= len(before)) & (place < lengths - len(after))
                ids = torch.full(mask.shape, task.spec.pad_id or 0)
                ids[:, : len(before)] = torch.tensor(before)
                for line, length in zip(ids, guess.lengths, strict=True):
                    line[length - len(after) : length] = torch.tensor(after)
                rows.append((ids, mask, free, meaning.start(guess.labels, free, rng)))
        shape = (len(possible), count)
        ids, mask, free, labels = (
            torch.stack(part).unflatten(0, shape).to(self._job.device)
            for part in zip(*rows, strict=True)
        )
        return Lanes(ids, mask, free, labels, meaning)

    def _optimizer(self, search: Search) -> torch.optim.Optimizer:
        if self._options.optimizer == "adamw":
            return torch.optim.AdamW(search.variables, eps=1e-6, weight_decay=0.01)
        return torch.optim.Adam(search.variables)

    def _rate(self, step: int) -> float:
        options = self._options
        if options.decay == "step":
            return options.learning_rate * 0.89 ** (step // options.decay_every)
        if options.decay == "linear":
            return options.learning_rate * max(0.0, 1 - step / options.decay_every)
        return options.learning_rate

    def _due(self, step: int) -> bool:
        """Whether other orders are tried after this step."""
        burn_in, every = self._options.steps // 10, self._options.discrete_every
        return step > burn_in and step % every == 1 % every

    def _text(self, search: Search) -> str:
        """The first sentence of the first victim, for somebody who watches."""
        ids = search.nearest(0, 0)[0][search.lanes.free[0, 0, 0]]
        return self._task.text(ids.tolist())

    def _result(
        self,
        search: Search,
        victim: int,
        step: int,
        expired: bool,
        note: str,
        progress: Progress,
    ) -> Reconstruction:
        ids, labels, lane, distance = search.tokens(victim)
        mask = search.lanes.mask[victim, lane]
        meaning = search.lanes.meaning
        if self._prior is None and self._options.alpha_lm and not note:
            note = "without a language prior; name one as prior, or train one with fedsim prior"
        return Reconstruction(
            Batch(ids, meaning.settled(labels, victim), mask),
            objective=distance,
            steps=step,
            trace=progress.trace(victim),
            expired=expired,
            note=note,
        )
