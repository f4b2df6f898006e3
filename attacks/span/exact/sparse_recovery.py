"""Sentences from adapters of a smaller rank than the batch has words."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.proofs.certificate import Prover, proven
from attacks.proofs.last_tokens import ended
from attacks.span.exact.growth import Growth
from attacks.tokens.adapters import read_adapters
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.candidates import start_of
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.pursuit import Pursuit, few_rows
from attacks.tokens.sentences import SpanSentence
from attacks.tokens.subspace import Subspace
from fedsim.models.lora import is_adapter
from fedsim.tasks.text import TextTask

_PURSUED_ATOMS = 1 << 17  # most rows of its dictionary, those with the largest share in the space
_PURSUED_CHOICES = 256  # choices of one word for each place that are tried

NOTE = "the adapters have a smaller rank than the batch has words, which a sparse pursuit found."
_CHUNK = 4096  # tokens in one forward pass


def recover_sparse(
    model: AttackedModel, rng: torch.Generator, job: Job, rows: bool
) -> Reconstruction | None:
    """The sentences of a batch whose words outnumber the rank of the adapters; None without any.

    The updates of all ``A`` before the attention are few combinations ``D X`` of the inputs ``X``
    of all tokens. These are rows of a known dictionary, and where they are fewer than the model is
    wide, hardly any other rows have the same combinations: a pursuit finds the words
    (``few_rows``). Where positions are learned it finds their places with them; otherwise a causal
    model's sentences are grown by the same test of the layers behind the attention. They are
    certified if their gradient is the observed one.

    Args:
        model: under attack; its update has to be a multiple of a gradient.
        rng: draws the prefixes that a word's usual inputs are taken of.
        job: ends the search when its time is up.
        rows: exclude words whose embedding row is zero, if an untied table is sent.
    """
    observation, task = model.observation, model.task
    if observation.knowledge.optimizer not in {None, "sgd", "momentum"}:
        return None
    lines = _lines(model, model.vocabulary(rows=rows), rng, job)
    if not lines:
        return None
    first = [name for name in observation.received if is_adapter(name)]
    prover, known = Prover(observation, task, model.network, first), None
    if task.spec.kind == "language-modelling":
        _, known = ended([prover], lines)
        lines = known.lines
    for sure in (True, False):
        sentences = [SpanSentence(line, 0.0, sure) for line in lines]
        guess = proven(prover, sentences, known)
        if guess.certified:
            break
    return replace(guess, expired=job.expired, note=NOTE)


def _lines(
    model: AttackedModel, words: Tensor, rng: torch.Generator, job: Job
) -> list[tuple[int, ...]]:
    layers, task = model.usual_layers, model.task
    count = model.observation.knowledge.num_examples or 1
    space = _space(model, layers.tokens)
    places = None if space is None else _places(layers, words, space, task, count, job)
    if places is None:
        return []
    if count == 1 and not layers.everywhere:
        whole = all(len(entry) == 1 for entry in places)
        return [tuple(int(entry) for entry in places)] if whole else []
    if not layers.causal:
        return []
    spaces = {entry: _space(model, entry) for entry in (*layers.contexts, *layers.later)}
    behind = {layer: entry for layer, entry in spaces.items() if entry is not None}
    return Growth.of(layers, behind, places, task, rng).sentences(count, job)


def _space(model: AttackedModel, layer: Layer) -> Subspace | None:
    """The space of the combinations of a layer's inputs that its adapters show."""
    observation = model.observation
    names = layer.weights(observation.received)
    if not names or not is_adapter(names[0]):
        return None
    adapters = read_adapters(observation, names, model.device)
    return None if adapters is None else adapters.inputs


def _places(
    layers: FirstLayers, words: Tensor, space: Subspace, task: TextTask, count: int, job: Job
) -> list[Tensor] | None:
    """The words of the batch at each place that a sentence may have; None if they are too many."""
    start = start_of(task)
    longest = task.max_length - (task.spec.kind == "language-modelling")
    tried = range(1 if layers.everywhere else longest)
    ids, places, atoms = [], [], []
    most = max(1, _PURSUED_ATOMS // len(tried))
    for place in tried:
        inputs = torch.cat([layers.of_tokens(part, place) for part in words.split(_CHUNK)])
        near = space.rough_distance(inputs).topk(min(most, len(words)), largest=False).indices
        ids.append(words[near])
        places.append(torch.full_like(near, place))
        atoms.append(inputs[near])
    kinds, dictionary = torch.cat(places), torch.cat(atoms)
    rows = None
    if count == 1 and not layers.everywhere:
        rows = few_rows(space.basis, dictionary, job, kinds)
    if rows is None:
        rows = few_rows(space.basis, dictionary, job)
        if rows and count == 1 and not layers.everywhere:
            rows = _one_each(space.basis, dictionary, rows, kinds)
    if not rows:
        return None
    tokens, at = torch.cat(ids)[rows], kinds[rows]
    first = [] if start is None else [words.new_tensor([start])]
    if layers.everywhere:
        return [*first, *[tokens] * (longest - len(first))]
    last = int(at.max())
    return [*first, *[tokens[at == place] for place in range(len(first), last + 1)]]


def _one_each(basis: Tensor, atoms: Tensor, rows: list[int], kinds: Tensor) -> list[int] | None:
    """One row of each kind among some that explain a space; None if no such choice does.

    Two words at two places are four rows of which one is a sum of the others, up to their norms.
    """
    weights = torch.linalg.lstsq(atoms[rows].T.to(basis), basis).solution.norm(dim=1)
    by_kind: dict[int, list[int]] = {}
    for row, weight in zip(rows, (weights / weights.max()).tolist(), strict=True):
        if weight > CUTS.pursued_room:
            by_kind.setdefault(int(kinds[row]), []).append(row)
    for choice in islice(product(*by_kind.values()), _PURSUED_CHOICES):
        if Pursuit.of(basis).plus(atoms[[*choice]]).done:
            return [*choice]
    return None
