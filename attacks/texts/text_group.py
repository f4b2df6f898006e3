"""A joint search for victims of one broadcast model, with the lengths and labels left open."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations

import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.observed.declared import declared, granted_noise
from attacks.observed.factored import Factored
from attacks.observed.known_labels import known_labels
from attacks.observed.local_steps import LocalSteps
from attacks.observed.replay import Replay, observed_gradient, replay, step_length
from attacks.observed.word_rows import noise_variance, standing_out
from attacks.texts.frames import Frames, Vocabulary, frame, words_of
from attacks.texts.label_search import LabelSearch, NextTokens, Targets
from attacks.texts.language_prior import LanguagePrior
from attacks.texts.low_rank import shrink
from attacks.texts.matching import Matching, TextObjective, adapted, stepped
from attacks.texts.text_options import TextOptions
from attacks.texts.text_search import Search
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors

_SHORTEST = 3
"""Tokens of a sentence of one word, between start and end."""
_LABEL_ORDERS = 720
"""Most orders of the labels tried; more than six sentences have more."""
_MOST = 16
"""Most hypotheses, which compete for the first tenth of the steps."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One answer for all sentences of a batch.

    Attributes:
        lengths: tokens of each sentence, special tokens included.
        labels: class of each sentence; None where they are searched for.
    """

    lengths: tuple[int, ...]
    labels: tuple[int, ...] | None


def hypotheses(
    observation: Observation,
    task: Task,
    network: nn.Module,
    rng: torch.Generator,
    job: Job,
) -> list[Hypothesis]:
    """The distinct answers that the granted facts and the update leave open, at most sixteen.

    Granted lengths and labels are in no order, so that which label goes with which length is open.
    Where lengths are not granted, the rows of the position table that moved give the longest, which
    is then taken for all sentences; where that table was not sent, all lengths are tried. Labels
    are granted, else read from the head's gradient.
    """
    count = observation.knowledge.num_examples
    assert count is not None
    sizes = _lengths(observation, network, task, count)
    if not task.spec.num_classes:
        return [Hypothesis(size, None) for size in sizes][:_MOST]
    classes = known_labels(observation, task, rng, job).tolist()
    # Sentences of equal length are interchangeable, and so are equal labels.
    distinct: dict[Hypothesis, None] = {}
    for size in sizes:
        for order in islice(permutations(classes), _LABEL_ORDERS):
            pairs = sorted(zip(size, order, strict=True))
            distinct[Hypothesis(*map(tuple, zip(*pairs, strict=True)))] = None
    return list(distinct)[:_MOST]


def _lengths(
    observation: Observation, network: nn.Module, task: Task, count: int
) -> list[tuple[int, ...]]:
    if observation.knowledge.lengths is not None:
        return [tuple(observation.knowledge.lengths)]
    longest = task.spec.input_shape[0]
    # The last token of a causal language model predicts nothing, and its row does not move.
    still = task.spec.kind == "language-modelling"
    table = embedding_names(network).position
    if table is not None and table in observation.received:
        rows = observation.update([table])[table]
        places = standing_out(rows, noise_variance(rows))
        # RoBERTa and OPT count from 2.
        if len(places) and (length := int(places[-1] - places[0]) + 1 + still) <= longest:
            return [(length,) * count]
    return [(length,) * count for length in range(_SHORTEST, longest + 1)]


_DENOISED_SIDE = 32
"""Rows and columns below which singular values say nothing of the noise."""
_NOISE_MARGIN = 1.1
"""Factor on the variance of the declared noise, which is itself measured on a few thousand
draws."""


@dataclass(frozen=True)
class TextGroup:
    """Victims that are searched for together, with the hypotheses about each.

    Attributes:
        options: options of the attack.
        observations: one per victim.
        possible: hypotheses of each victim, the same number for all.
        rngs: one generator per victim.
    """

    options: TextOptions
    observations: Sequence[Observation]
    possible: Sequence[Sequence[Hypothesis]]
    task: TextTask
    prior: LanguagePrior | None
    rngs: Sequence[torch.Generator]
    job: Job

    def search(self) -> Search:
        """The search, ready to start.

        Raises:
            CannotAttack: no gradient was sent that a text could be matched to.
        """
        options, model = self.options, self._model()
        objective = stepped(TextObjective(options.distance), self.observations[0])
        if options.adaptive:
            objective = adapted(objective, self.observations[0])
        lanes = self._lanes(model)
        places = int(lanes.mask.sum((2, 3)).max())
        steps = self.observations[0].knowledge.local_steps or 1
        rank = places * steps
        observed = (self._observed(seen, model, objective, rank) for seen in self.observations)
        # A little more than the rank, so that rounding finds room.
        matching = Matching(model, observed, objective, rank + 4)
        vocabulary = Vocabulary(model.network, words_of(self.task))
        return Search(matching, vocabulary, lanes, options, self.job, self.prior)

    def _model(self) -> Factored:
        model = replay(self.observations[0], self.task, self.job.device)
        wanted = {
            name: parameter
            for name, parameter in model.parameters.items()
            if not self.options.layers or any(part in name for part in self.options.layers)
        }
        factored = Factored(Replay(self.task, model.network, wanted))
        if not factored.names:
            raise CannotAttack(
                "no gradient was sent that a text could be matched to",
                "Freeze less, or name other layers.",
            )
        return factored

    def _observed(
        self, seen: Observation, model: Factored, objective: TextObjective, rank: int
    ) -> Tensors:
        """The gradient to match; a mean of cosines ignores its scale."""
        names = {name for group in model.layout for name in group}
        seen = replace(seen, received={k: v for k, v in seen.received.items() if k in names})
        if objective.is_mean:
            gradient = seen.update()
        else:
            gradient = observed_gradient(seen, "'span' does without it.")
        if not self.options.adaptive:
            return gradient
        length = 1.0 if objective.is_mean else step_length(seen)
        clean = denoised(gradient, model.weights, seen, rank, length)
        # Where noise alone explains everything, nothing would be left to match.
        return clean if any(bool(clean[name].any()) for name in model.names) else gradient

    def _lanes(self, model: Factored) -> Frames:
        """One candidate for each hypothesis."""
        lengths = [
            length for hypotheses in self.possible for each in hypotheses for length in each.lengths
        ]
        count = len(self.possible[0])
        meaning = self._meaning(model.network)
        rows = [
            self._lane(each, max(lengths), meaning, rng)
            for hypotheses, rng in zip(self.possible, self.rngs, strict=True)
            for each in hypotheses
        ]
        ids, mask, free, labels = (
            torch.stack(part).unflatten(0, (-1, count)).to(self.job.device)
            for part in zip(*rows, strict=True)
        )
        return Frames(ids, mask, free, labels, meaning)

    def _meaning(self, network: nn.Module) -> LabelSearch:
        if self.task.spec.kind == "language-modelling":
            return NextTokens(network)
        if self.task.spec.num_classes:
            return LabelSearch()
        return Targets(self.observations, network)

    def _lane(
        self, guess: Hypothesis, tokens: int, meaning: LabelSearch, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Special tokens, mask, places of words, and labels, as ``Frames`` has them."""
        before, after = frame(self.task)
        lengths, place = torch.tensor(guess.lengths)[:, None], torch.arange(tokens)
        mask = (place < lengths).to(torch.int64)
        free = (place >= len(before)) & (place < lengths - len(after))
        ids = torch.full(mask.shape, self.task.spec.pad_id or 0)
        ids[:, : len(before)] = torch.tensor(before)
        for line, length in zip(ids, guess.lengths, strict=True):
            line[length - len(after) : length] = torch.tensor(after)
        return ids, mask, free, meaning.start(guess.labels, free, rng)


def denoised(
    gradient: Tensors,
    weights: frozenset[str],
    observation: Observation,
    rank: int,
    length: float = 1.0,
) -> Tensors:
    """The gradient with declared noise and rounding removed from its ``weights``.

    A weight gradient of few tokens has low rank, so that singular values below the noise edge are
    noise (``attacks.texts.low_rank``). Zeros of a pruned update stay zeros. If the amount of noise
    is unknown, it is measured; weights whose rank may be too high to measure it stay as they are.

    Args:
        gradient: the update divided by ``length``, float64.
        weights: names of the gradients that are sums of one outer product per token and step.
        observation: the client's update and declared facts.
        rank: number of tokens over all local steps.
        length: of the step, see ``attacks.observed.replay.step_length``.
    """
    chain = declared(observation)
    if not {"noise", "rounding"} & chain.distortions:
        return gradient
    pruned = "sparsity" in chain.distortions
    noise = _noise(chain, observation)
    slack = chain.slack({name: length * gradient[name] for name in weights & gradient.keys()})
    clean = gradient.copy()
    for name, bound in slack.items():
        value = gradient[name]
        side = min(value.shape)
        if side < _DENOISED_SIDE or (noise is None and 2 * rank > side):
            continue
        # An error that is uniform within +-s has the variance s^2 / 3.
        rounding = float(bound.square().mean()) / 3
        most = math.inf if noise is None else (noise + rounding) / length**2
        shrunk = shrink(value, most)
        clean[name] = shrunk.where(value != 0, 0) if pruned else shrunk
    return clean


def _noise(chain: Chain, observation: Observation) -> float | None:
    """Variance of the noise in each coordinate of the update; None if it is unknown.

    It is unknown, for example, where it depends on the update: then an update of zeros gets none.
    """
    known, lost = observation.knowledge, chain.distortions
    if "sign" in lost or ("rounding" in lost and known.cohort > 1):
        return None
    total = 0.0
    for defense, table in zip(chain.defenses, chain.tables, strict=True):
        if "noise" in defense.distortions:
            alone = replace(observation, knowledge=known.model_copy(update={"defense": (table,)}))
            variance = _of_steps(alone) if defense.per_example else (granted_noise(alone) or 0) ** 2
            if not variance:
                return None
            total += _NOISE_MARGIN * variance
    return total


def _of_steps(observation: Observation) -> float | None:
    """``_noise`` of a per-example defense, which adds noise in every local step."""
    known, steps = observation.knowledge, LocalSteps.of(observation)
    rate = known.learning_rate if known.optimizer == "sgd" else None
    rate = 1.0 if observation.kind == "gradient" else rate
    if steps is None or rate is None:
        return None
    total = 0.0
    for rows, count in steps.batches:
        size = {"num_examples": known.cohort * (rows.stop - rows.start)}
        alone = replace(observation, kind="gradient", knowledge=known.model_copy(update=size))
        total += count * (rate * (granted_noise(alone) or 0)) ** 2
    return total
