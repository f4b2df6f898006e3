"""One sentence in closed form from its position rows (APRIL, Lu et al. 2022, for text)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.word_rows import is_tied, noise_variance, standing_out, tables
from attacks.proofs.certificate import Prover, batch_of
from attacks.proofs.verdict import certificate
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.candidates import nearest, start_of
from attacks.tokens.cuts import CUTS
from attacks.tokens.exact_traces import read_traces
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.embeddings import embedding_names
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask


@dataclass(frozen=True)
class APRIL(Attack):
    """Recover the sentence of a single example from the gradient of its position embeddings.

    APRIL (Lu et al., CVPR 2022) starts from the same fact: row ``p`` of the position gradient is
    the loss gradient ``delta_p`` at the sum of the embeddings. We differ in the second step. Their
    identity solves for the input of the first attention, but only if there is neither layer
    normalisation before it nor a skip connection around it, which rules out BERT and GPT-2. Two
    closed forms replace it.

    If the word rows are sent, ``G_word = X^T delta`` with one-hot ``X (position, token)``, and the
    largest entry of each column of ``G_word pinv(delta)`` is the token. This is the first step of
    ``embedding_rows`` without its token set, and therefore without a threshold. The part of a tied
    head is projected off first, for which the tokens may fill at most half of the width.

    If the word rows are frozen, the position rows reveal the length. The token at each position is
    the one whose input to the first attention is nearest to the column space of the query, key and
    value gradients, without any search or any layer behind the attention.

    Confidence is ``certified`` if the sentence, with the class inferred from the head, reproduces
    the observed gradient, and ``guess`` otherwise. The objective is the relative error of that
    gradient.
    """

    title: ClassVar[str] = "APRIL"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Whether each reply holds one example, and its tokens compared with the width."""
        names, network = embedding_names(prospect.network), prospect.network
        if (most := max(prospect.examples)) > 1:
            reason = f"a reply holds {most} examples, and the attack handles one"
            return Feasibility("red", "examples", prospect.examples, 1, reason)
        if names.position is None or names.position not in prospect.sent:
            reason = "no position embeddings are sent"
            return Feasibility("red", "tokens", prospect.tokens, None, reason)
        width = network.get_parameter(names.position).shape[1]
        halved = names.word in prospect.sent and is_tied(network)
        return prospect.judge("tokens", prospect.tokens, width // 2 if halved else width)

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """One sentence; nothing is random."""
        del rng
        assert isinstance(task, TextTask)
        network = task.model(observation.sent, device=job.device)
        model = AttackedModel.of(observation, task, network)
        observation = model.observation
        names = embedding_names(network)
        count = observation.knowledge.num_examples
        if count != 1:
            raise CannotAttack(
                f"the batch holds {count} examples, and position rows add up over them",
                "Set federation.batch_size = 1, or choose 'span'.",
            )
        if names.position is None:
            raise CannotAttack(
                f"{type(network).__name__} has no table of positions",
                "Choose 'span', which does without one.",
            )
        if names.position not in observation.received:
            raise CannotAttack(
                "the client does not send the position embeddings (frozen); the reply has no "
                f"{names.position!r}",
                "Choose 'span', which does without them.",
            )
        first = [names.position]
        if names.word in observation.received:
            ids = by_rows(observation, network, job)
        else:
            traces = read_traces(model)
            first += traces.weights
            moved = observation.update((names.position,))[names.position].any(1)
            length = min(int(moved.sum()), task.max_length)
            ids = nearest(traces.layers, traces.before, traces.vocabulary, length).tolist()
        end = task.tokenizer.eos_token_id
        if task.spec.kind == "language-modelling" and end is not None:
            ids.append(end)  # it predicts nothing and leaves no trace
        prover, start = Prover(observation, task, network, first), start_of(task)
        match = prover.match([tuple(ids)])
        if not match.proof.holds and start is not None:
            # Its row may have no gradient: that of padding, if they share an id.
            match = prover.match([(start, *ids[1:])])
        return Reconstruction(
            batch_of(match.lines, task, match.labels),
            objective=match.proof.error,
            confidence=(certificate(match.proof),),
        )


def by_rows(observation: Observation, network: nn.Module, job: Job) -> list[int]:
    """The token at each position by least squares, ``X = G_word pinv(G_position)``."""
    words, positions = tables(observation, network, job.device)
    positions = positions[standing_out(positions, noise_variance(words))]
    values = torch.linalg.svdvals(positions)
    rank = int((values > CUTS.singular_value * values.max()).sum()) if len(values) else 0
    if not 0 < len(positions) == rank:
        raise CannotAttack(
            f"{len(positions)} position rows stand out and have rank {rank}",
            "Every token needs an independent row: at most as many tokens as the width, or half "
            "the width if the head is tied. Take a shorter text, or choose 'span'.",
        )
    ids: list[int] = (words @ torch.linalg.pinv(positions)).argmax(0).tolist()
    return ids
