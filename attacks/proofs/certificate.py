"""Proof by gradient that a guessed batch is the client's."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from attacks.base import Reconstruction
from attacks.observed.calls import noted
from attacks.observed.labels import find_head
from attacks.observed.replay import check_options, step_length
from attacks.proofs.verdict import NO_PROOF, Proof, certificate, compare
from attacks.tokens.layout import RIGHT, Layout, batch_of
from attacks.tokens.span_membership import SpanSentence
from fedsim.knowledge import Fact
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_SCALE: frozenset[Fact] = frozenset({"learning_rate", "local_steps"})
_CERTAIN = 0.02
"""Largest difference from 0 and 1 of what is a member of a class or is none."""
_ABSENT_WEIGHT = 0.05
"""Weight below which a sentence is absent, as a share of the largest."""
_PROOF_SENTENCES = 32
"""Most sentences tried for a batch, and the largest multiplicity."""


@dataclass(frozen=True)
class MatchedBatch:
    """Sentences with their classes, and what their gradient proves.

    Attributes:
        lines: sentences, repeated as often as they occur in the batch.
        labels: classes, -1 if unknown; always -1 for a language model.
        proof: of their gradient, over all parameters and over the first layers, which are the most
            sensitive to a single token; of nothing without labels.
        note: what the head's gradient tells of targets that are no classes; else empty.
    """

    lines: list[tuple[int, ...]]
    labels: list[int]
    proof: Proof = NO_PROOF
    note: str = ""


@dataclass(frozen=True)
class Prover:
    """Compares the gradients of guesses with the observed one.

    Attributes:
        observation: holds the observed gradient.
        task: defines the loss.
        network: as broadcast, in float32 and eval mode.
        first: names of the first layers' weights.
        layout: how the client set its texts into the batch.
        smoothing: share of each label that a language model's client spreads over all tokens,
            heeded where tokens are compared with their weights.

    Raises:
        CannotAttack: as ``attacks.observed.replay.check_options``.
    """

    observation: Observation
    task: Task
    network: nn.Module = field(repr=False)
    first: Sequence[str]
    layout: Layout = RIGHT
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a client that trained with an option that a gradient does not stand for."""
        check_options(self.observation)

    def match(
        self, sentences: Sequence[tuple[int, ...]], known: MatchedBatch | None = None
    ) -> MatchedBatch:
        """Give the sentences their labels and multiplicities, and compare gradients.

        Args:
            sentences: distinct sentences, the likeliest first.
            known: what ``compare`` said of some sentences of a language model.
        """
        count = self.observation.knowledge.num_examples
        sentences = list(sentences)[:_PROOF_SENTENCES]
        likely = sentences[:count]
        labels = [-1] * len(likely)
        if self.task.spec.target != "class":
            return self._by_slopes(likely)
        if self.task.spec.num_classes:
            shares = self._shares(likely)
            if shares is None:
                return MatchedBatch(likely, labels)
            labels = [label for label, _ in shares]
        if known is not None and sorted(known.lines) == sorted(likely):
            match = replace(known, lines=likely)
        else:
            match = self.compare(likely, labels)
        if not match.proof.holds:
            if self.task.spec.num_classes:
                shares = self._shares(sentences) or []
            else:
                shares = [(-1, weight) for weight in self._weights(sentences)]
            counts = _counts([weight for _, weight in shares])
            rows = [row for row, times in enumerate(counts) for _ in range(times)]
            lines, labels = [sentences[row] for row in rows], [shares[row][0] for row in rows]
            again = self.compare(lines, labels)
            match = again if again.proof.holds else match
        times = count // len(match.lines) if count and match.lines else 1
        if match.proof.holds and times > 1 and count == times * len(match.lines):
            # Repeating the whole batch does not change its mean gradient.
            match = replace(match, lines=match.lines * times, labels=match.labels * times)
        return match

    def compare(self, lines: list[tuple[int, ...]], labels: list[int] | Tensor) -> MatchedBatch:
        """Compare the gradient of labelled sentences, in the multiplicities given."""
        shown = [-1] * len(lines) if isinstance(labels, Tensor) else labels
        if not lines:
            return MatchedBatch(lines, shown)
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(name in self.observation.received)
        guessed = self._gradient(lines, labels)
        proof = compare(self.observation, guessed, (self.first,), alone=self.first)
        return MatchedBatch(lines, shown, proof)

    def batch(self, lines: Sequence[tuple[int, ...]], labels: Sequence[int] | Tensor) -> Batch:
        """The batch as the client's, on the network's device."""
        device = next(self.network.parameters()).device
        return batch_of(lines, self.task, labels, self.layout, self.smoothing).to(device)

    def _gradient(
        self, lines: Sequence[tuple[int, ...]], labels: Sequence[int] | Tensor
    ) -> Tensors:
        with self.layout.applied(self.network):
            return self.task.gradient(self.network, self.batch(lines, labels))

    def _by_slopes(self, lines: list[tuple[int, ...]]) -> MatchedBatch:
        """Compare the gradient of sentences under a loss that is known by its slopes alone."""
        slopes = self._slopes(lines) if lines else None
        if slopes is None:
            return MatchedBatch(lines, [-1] * len(lines))
        match = self.compare(lines, slopes[0].float())
        return replace(match, note=self._targets(*slopes)) if match.proof.holds else match

    def _targets(self, slopes: Tensor, logits: Tensor) -> str:
        """The targets under the losses of transformers, means of squares or binary entropies.

        Their slopes at the logits ``z`` are ``2 (z - y) / n`` and ``(sigmoid(z) - y) / n`` with the
        targets ``y`` and the number ``n`` of outputs of the batch.
        """
        known = self.observation.knowledge
        if self.observation.kind != "gradient" and known.missing(_SCALE, "counted"):
            return ""
        slopes = slopes.numel() / step_length(self.observation) * slopes
        if self.task.spec.target == "numbers":
            shown = [", ".join(f"{y:.4g}" for y in row) for row in (logits - slopes / 2).tolist()]
            return f"targets, if the loss is the mean squared error: {'; '.join(shown)}"
        member = logits.sigmoid() - slopes
        if float((member - member.round()).abs().max()) > _CERTAIN:
            return ""
        sets = [torch.nonzero(row > 0.5)[:, 0].tolist() for row in member]
        return f"classes: {'; '.join(', '.join(map(str, classes)) or 'none' for classes in sets)}"

    def _shares(self, lines: Sequence[tuple[int, ...]]) -> list[tuple[int, float]] | None:
        """The class of each sentence and its weight in the batch; None if the head was not sent.

        Of the slopes ``w_i (p_i - one_hot_i)`` the only negative entry is the class, so that no
        assignment of classes has to be tried.
        """
        solution = self._slopes(lines)
        if solution is None:
            return None
        slopes, logits = solution
        classes = slopes.argmin(1)
        once = logits.softmax(1) - one_hot(classes, logits.shape[1])
        weights = (slopes * once).sum(1) / once.square().sum(1).clamp(min=1e-30)
        return list(zip(classes.tolist(), weights.tolist(), strict=True))

    def _slopes(self, lines: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor] | None:
        """Slopes of the loss at each sentence's logits, and the logits ``(sentence, output)``.

        The head's gradient is ``sum_i c_i f_i^T`` with the features ``f_i``, which the sentences
        determine, and the slopes ``c_i``, which follow by least squares. None if the head was not
        sent.
        """
        head = find_head(self.network)
        if head.weight not in self.observation.received:
            return None
        batch = self.batch(lines, [0] * len(lines))
        layer = self.network.get_submodule(head.layer)
        with torch.no_grad(), noted({head.layer: layer}) as calls:
            self.task.loss(self.network, batch)
        features, logits = calls[-1].input.double(), calls[-1].output.double()
        assert batch.mask is not None
        if features.dim() == 3:  # GPT-2 classifies the last real token
            last = torch.arange(len(lines)), batch.mask.sum(1) - 1
            features, logits = features[last], logits[last]
        update = self.observation.update((head.weight, head.bias))
        gradient = update[head.weight].to(features)
        if head.bias in update:
            features = torch.cat([features, features.new_ones(len(lines), 1)], 1)
            gradient = torch.cat([gradient, update[head.bias].to(features)[:, None]], 1)
        return (gradient @ torch.linalg.pinv(features)).T, logits

    def _weights(self, lines: Sequence[tuple[int, ...]]) -> list[float]:
        """The weight of each sentence in a language model's batch, by the first layers' gradient.

        The loss is the mean over predicted tokens, so each gradient is scaled by the sentence's
        length.
        """
        columns = []
        for line in lines:
            gradient = self._gradient([line], [-1])
            columns.append(
                (len(line) - 1) * torch.cat([gradient[name].flatten() for name in self.first])
            )
        observed = self.observation.update(self.first)
        goal = torch.cat([observed[name].flatten() for name in self.first]).to(columns[0].device)
        # Normal equations suffice: the gradients of different sentences are far from parallel.
        # On the CPU, as CUDA's only solver assumes full rank, which equal sentences have not.
        table = torch.stack(columns, 1).double()
        square, right = (table.T @ table).cpu(), (table.T @ goal[:, None]).cpu()
        solution = torch.linalg.lstsq(square, right).solution
        weights: list[float] = solution[:, 0].tolist()
        return weights


def proven(
    prover: Prover, sentences: Sequence[SpanSentence], known: MatchedBatch | None = None
) -> Reconstruction:
    """The sentences with their confidence, those in the span first.

    Args:
        prover: compares gradients.
        sentences: distinct, complete sentences.
        known: see ``Prover.match``.
    """
    count = prover.observation.knowledge.num_examples
    sentences = sorted(sentences, key=lambda sentence: (not sentence.in_span, sentence.sine))
    good = [sentence.ids for sentence in sentences if sentence.in_span]
    rest = [sentence.ids for sentence in sentences if not sentence.in_span]
    lines, labels, objective, note = [], [], None, ""
    level: Certificate = "in_span"
    if good:
        match = prover.match(good, known)
        level = certificate(match.proof, "in_span")
        lines, labels, objective, note = match.lines, match.labels, match.proof.error, match.note
        if not match.proof.holds:  # a predicted token is not in the span
            unproven = {sentence.ids for sentence in sentences if sentence.predicted}
            lines = [line[:-1] if line in unproven else line for line in lines]
    more = rest[: max(0, count - len(lines))] if count else rest[: not lines]
    shown = Layout(segments=prover.layout.segments)
    confidence: list[Certificate] = [level] * len(lines)
    confidence += ["guess"] * len(more)
    return Reconstruction(
        batch_of([*lines, *more], prover.task, [*labels, *[-1] * len(more)], shown),
        objective=objective,
        confidence=tuple(confidence),
        note=note,
    )


def _counts(weights: Sequence[float]) -> list[int]:
    """Multiplicity of each sentence, on the assumption that the rarest occurs once."""
    real = [weight for weight in weights if weight > _ABSENT_WEIGHT * max(weights)]
    most = _PROOF_SENTENCES
    return [min(most, max(0, round(weight / min(real)))) if real else 1 for weight in weights]
