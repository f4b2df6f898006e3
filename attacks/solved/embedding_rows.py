"""Read the words of a text off the embedding gradient: which rows moved, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.labels import find_head, infer_label
from attacks.observed.word_rows import is_tied, noise_variance, standing_out, tables
from attacks.solved.cuts import CUTS
from attacks.solved.incidence import arrangement, sentence
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch


@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """The set of tokens from the word rows (FILM, 2022), their order from the position rows.

    With ``delta_p`` the loss gradient at input position ``p``, row ``p`` of the position table
    gets the sum of ``delta_p`` over the batch, and row ``v`` of the word table the sum over the
    places where token ``v`` stands. One example thus gives ``G_word = X^T G_position`` with
    one-hot ``X`` (position, token): least squares yields the sentence in order, repeated tokens
    included. FILM has no such step; it searches with a language model.

    Needs trainable word embeddings, and position embeddings for the order; no labels, lengths or
    eval mode. SGD and momentum clients are as good as gradients. Adam and AdamW clients send about
    the signs, enough for the set and mostly for the order. Weight decay moves each row along
    itself; it is measured on the median row and taken out, but decay inside Adam's gradient
    spoils the set. A tied head (GPT-2) fills every row: its rows span the final hidden states, so
    both tables are projected off that span, which takes a gradient without noise, signs or pruning
    (weights are too coarse) and fewer predicted tokens than the width, half of it for the order.
    A causal model's last token has no gradient. Padding is masked and has none either. Of a masked
    language model's text, what is certified is the text as the model saw it, masks and all.

    Confidence is ``certified`` where one sentence explains both tables: no word row is missed by
    more than ``tolerance`` of the smallest singular value of ``G_position``. Two arrangements
    differ by at least that value in some row, so no other fits. (Copies of one sentence look like
    one.)
    Rows with zeros were pruned and are never certified, since whole tokens may be lost. It is
    ``guess`` for several examples: every token found is in the guess and no other, positions
    follow ``G_position pinv(G_word)``, but which tokens share a sentence is not known. The
    objective is the miss in smallest singular values, for one example.

    Attributes:
        threshold: under noise a row of width ``d`` with energy ``e``, in units of the noise
            variance (estimated on the median row), counts where ``(e - d) / sqrt(2 d)`` is
            larger. At 4 about 3 of BERT's 30522 rows count by chance, at 5 about 0.1.
        tolerance: largest miss of a certified sentence, in smallest singular values; below a half,
            no two sentences are both certified.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    threshold: Annotated[float, Field(gt=0)] = 5.0
    tolerance: Annotated[float, Field(gt=0, lt=0.5)] = 0.01

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Tokens against the width, which takes one dimension a token for their order."""
        names, counts = embedding_names(prospect.network), prospect.tokens
        if names.word is None or names.word not in prospect.sent:
            return Feasibility("red", "tokens", counts, None, "the word embeddings are not sent")
        width = prospect.network.get_parameter(names.word).shape[1]
        tied = is_tied(prospect.network)
        ordered = max(prospect.examples) == 1 and names.position in prospect.sent
        partly = "" if ordered else "which words, not in which sentence or order"
        # A tied head's rows take one dimension a token; so do the positions.
        limit = (width - 1 if partly else width // 2) if tied else width
        found = prospect.judge("tokens", counts, limit, partly, minds_dropout=False)
        if found.colour == "red" and not tied:
            return replace(found, colour="amber", reason="which words, not in which order")
        return found

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The sentence of a single example, else the batch's words; nothing is drawn."""
        del rng
        network, spec = task.build(), task.spec
        count, lengths = observation.knowledge.num_examples, observation.knowledge.lengths
        words, positions = tables(observation, network, job.device)
        noise = noise_variance(words)
        tokens = standing_out(words, noise, self.threshold)
        most = len(words) if count is None else count * spec.input_shape[0]
        if not 0 < len(tokens) <= most:
            raise CannotAttack(
                f"{len(tokens)} rows of the word embeddings stand out, and the batch holds 1 to "
                f"{most} tokens",
                "Noise hides rows; weight decay inside Adam, or pruning a tied head, shows false "
                "ones. Choose an attack that reads other layers.",
            )
        places = standing_out(positions, noise, self.threshold)
        words, positions = words[tokens], positions[places]
        order, miss = sentence(words, positions) if count in {None, 1} else ([], float("inf"))
        # Pruning may take a token with its position, and what is left explains itself. It leaves
        # a gap, or zeros in the other rows.
        unpruned = bool((positions != 0).double().mean() > CUTS.unpruned_share)
        gapless = bool((places.diff() == 1).all())
        certain = unpruned and gapless and miss <= self.tolerance
        if count == 1 or certain:
            lines = [order]
        else:
            # A causal model's last token predicts nothing, so no row holds a trace of it.
            unseen = 1 if spec.kind == "language-modelling" else 0
            seen = None if lengths is None else [length - unseen for length in lengths]
            lines, miss = arrangement(words, positions, count, seen), float("inf")
        labels = torch.full((len(lines),), -1)
        if len(lines) == 1 and spec.num_classes:
            labels[0] = _label(observation, network)
        ids = [tokens.cpu()[line] for line in lines]
        confidence: Certificate = "certified" if certain else "guess"
        return Reconstruction(
            Batch(
                pad_sequence(ids, batch_first=True, padding_value=spec.pad_id or 0),
                labels,
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
            ),
            objective=miss if miss < float("inf") else None,
            confidence=(confidence,) * len(lines),
        )


def _label(observation: Observation, network: nn.Module) -> int:
    """The class of a single example: granted, else read off the head; -1 where it does not tell."""
    if granted := observation.knowledge.labels:
        return granted[0]
    head = find_head(network)
    try:
        return infer_label(observation.update((head.weight, head.bias)), head)
    except CannotAttack:
        return -1
