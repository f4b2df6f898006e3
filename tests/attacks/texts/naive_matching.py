"""Gradient matching as the papers write it: every weight gradient formed, one guess at a time.

With small networks of each family, and victims to try it on.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.observed.factored import Factored
from attacks.observed.replay import Replay
from attacks.texts.matching import SOFTNESS, TextObjective
from fedsim.config.cell import TaskKind
from fedsim.defenses.prune import Prune
from fedsim.tasks import TASKS
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.language_modelling import IGNORED
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

VOCABULARY, WIDTH, CLASSES, PAD = 50, 32, 3, 0
ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
    "initializer_range": 0.1,
    "pad_token_id": PAD,
    "num_labels": CLASSES,
}
SIZES: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "albert": {**ENCODER, "embedding_size": 16},
    "electra": {**ENCODER, "embedding_size": 16},
    "mpnet": ENCODER,
    "roberta": {**ENCODER, "max_position_embeddings": 18},
    "distilbert": {
        **ENCODER,
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
    },
    "gpt2": {
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 16,
        "initializer_range": 0.1,
        "bos_token_id": PAD,
        "eos_token_id": PAD,
        "pad_token_id": PAD,
        "num_labels": CLASSES,
    },
}
CLASSIFY: TaskKind = "text-classification"
CASES: list[tuple[str, TaskKind]] = [
    ("bert", CLASSIFY),
    ("bert", "masked-language-modelling"),
    ("albert", CLASSIFY),
    ("gpt2", "language-modelling"),
    ("gpt2", CLASSIFY),
]
LENGTHS = {1: [[6], [4], [5]], 3: [[6, 4, 3], [3, 5, 5], [4, 6, 3]]}
"""Tokens of the examples of each victim, by the size of the batch."""

_WORDS = re.compile(r"word_embeddings\.weight$|wte\.weight$")
# MPNet's table of relative positions is none of the layers whose gradient comes in factors.
_OTHER = re.compile(r"relative_attention_bias\.weight$")
# The softmax does not change when all keys are moved alike.
_ZERO = re.compile(r"\.(key|k|k_lin)\.bias$")
_POSITIONS = re.compile(r"position_embeddings\.weight$|wpe\.weight$")
_TYPES = re.compile(r"token_type_embeddings\.weight$")


def compared(names: Iterable[str]) -> list[str]:
    """The names of a transformer's parameters whose gradients a guess is compared by."""
    left_out = (_WORDS, _ZERO, _OTHER)
    return [name for name in names if not any(part.search(name) for part in left_out)]


def gradient(
    network: nn.Module, task: Task, names: Iterable[str], words: Tensor, batch: Batch
) -> Tensors:
    """Autograd's, with its graph, at word embeddings ``(example, token, width)``."""
    parameters = {name: p for name, p in network.named_parameters() if name in set(names)}
    word: nn.Module = network.get_input_embeddings()  # type: ignore[operator]
    handle = word.register_forward_hook(lambda *_: words)
    try:
        loss = task.loss(network, batch)
    finally:
        handle.remove()
    slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    return dict(zip(parameters, slopes, strict=True))


def distance(guess: Tensors, observed: Tensors, objective: TextObjective, tokens: int) -> Tensor:
    """The objective over the tensors of ``guess`` that were received as anything but 0.

    Args:
        guess: the gradient by name.
        observed: at least those names.
        objective: what to compare.
        tokens: rows of the position table that guesses can reach; the width of ``tanh`` is the mean
            over these.
    """
    terms = [
        _term(own, observed[name].to(own), objective, _reached(name, own, tokens))
        for name, own in guess.items()
        if observed[name].any()
    ]
    total = torch.stack(terms).sum()
    return total / len(terms) if objective.is_mean else total


def _term(own: Tensor, seen: Tensor, objective: TextObjective, reached: Tensor) -> Tensor:
    if objective.form == "tanh":
        width = SOFTNESS * reached.detach().square().mean().sqrt()
        return 1 - _cosine((own / width).tanh(), seen.sign())
    if objective.form == "support":
        own = torch.where(seen == 0, 0, own)
    if objective.distance == "cosine":
        return 1 - _cosine(own, seen)
    alpha = 0.01 if objective.distance == "l2l1" else 0.0
    return (own - seen).square().sum() + alpha * (own - seen).abs().sum()


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()


def _reached(name: str, own: Tensor, tokens: int) -> Tensor:
    if _POSITIONS.search(name):
        return own[:tokens]
    return own[:1] if _TYPES.search(name) else own


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(model: str, kind: TaskKind = CLASSIFY) -> Task:
    classes = CLASSES if kind == CLASSIFY else 0
    spec = TaskSpec(
        kind=kind,
        model=model,
        architecture={"model_type": model, **SIZES[model]},
        num_classes=classes,
        input_shape=(12,),
        pad_id=PAD,
    )
    cls = TASKS[kind]
    assert issubclass(cls, TextTask)
    return cls(spec, tokenizer=cast(Any, None))


@cache
def factored(model: str, kind: TaskKind, dtype: torch.dtype) -> Factored:
    """Shared between tests: nothing in it changes."""
    task = small(model, kind)
    network = task.build().to(dtype)
    return Factored(Replay(task, network, dict(network.named_parameters())))


@cache
def private(kind: TaskKind, examples: int) -> tuple[Batch, ...]:
    """Three victims' batches, each padded to its own longest example."""
    batches = []
    for number, lengths in enumerate(LENGTHS[examples]):
        steps, ends = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
        mask = (steps < ends).to(torch.int64)
        ids = torch.randint(3, VOCABULARY, mask.shape, generator=rng(number)) * mask
        labels = torch.randint(CLASSES, (examples,), generator=rng(number + 3))
        if kind != CLASSIFY:
            # A mean over tokens is shared fairly by victims that predict equally many.
            labels = torch.where((steps < ends) & (steps >= ends - 2), ids, IGNORED)
        batches.append(Batch(ids, labels, mask))
    return tuple(batches)


@cache
def client(model: str, kind: TaskKind, dtype: torch.dtype) -> tuple[Task, nn.Module]:
    task = small(model, kind)
    return task, task.build().to(dtype)


def sent(
    model: str,
    kind: TaskKind,
    batch: Batch,
    objective: TextObjective | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensors:
    """The gradient of a client, pruned or as signs where the objective is made for that."""
    task, network = client(model, kind, dtype)
    update = {name: value.double() for name, value in task.gradient(network, batch).items()}
    form = "plain" if objective is None else objective.form
    if form == "support":
        return Prune(fraction=0.5, scope="tensor").surrogate(update)
    return {k: v.sign() for k, v in update.items()} if form == "tanh" else update


def stacked(batches: list[Batch], candidates: int) -> Batch:
    """Labels and masks of all guesses; of the ids no more than where padding is."""
    longest = max(batch.inputs.shape[1] for batch in batches)

    def padded(values: Tensor, fill: int) -> Tensor:
        extra = longest - values.shape[1]
        return F.pad(values, (0, extra), value=fill)

    masks, labels = [], []
    for batch in batches:
        assert batch.mask is not None
        own = batch.labels if batch.labels.dim() == 1 else padded(batch.labels, IGNORED)
        masks += [padded(batch.mask, 0)] * candidates
        labels += [own] * candidates
    mask = torch.cat(masks)
    return Batch(2 * mask, torch.cat(labels), mask)  # MPNet counts positions by ids that are not 1


def words(model: Factored, *shape: int, seed: int = 5) -> Tensor:
    """Random guesses ``(victim, candidate, example, token, width)``."""
    like = next(model.network.parameters())
    width = model.network.get_input_embeddings().embedding_dim  # type: ignore[operator]
    guess = torch.randn(*shape, width, generator=rng(seed), dtype=torch.float64)
    return guess.to(like.dtype).requires_grad_()


@dataclass
class Setting:
    """Some victims of one network, and guesses of their batches."""

    model: str
    kind: TaskKind
    batches: list[Batch]
    observed: list[Tensors]
    guess: Tensor
    batch: Batch

    def naive(self, objective: TextObjective, victim: int, candidate: int) -> tuple[Tensor, Tensor]:
        """The distance and its slope in the words, without the padding other victims need."""
        task, network = client(self.model, self.kind, self.guess.dtype)
        own, seen = self.batches[victim], self.observed[victim]
        tokens = own.inputs.shape[1]
        point = self.guess[victim, candidate, :, :tokens].detach().requires_grad_()
        formed = gradient(network, task, compared(seen), point, own)
        value = distance(formed, seen, objective, self.guess.shape[3])
        (slope,) = torch.autograd.grad(value, point)
        full = torch.zeros_like(self.guess[victim, candidate])
        full[:, :tokens] = slope
        return value.detach(), full


def setting(
    model: str,
    kind: TaskKind,
    objective: TextObjective,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Setting:
    victims, candidates, examples = shape
    batches = list(private(kind, examples)[:victims])
    observed = [sent(model, kind, batch, objective) for batch in batches]
    batch = stacked(batches, candidates)
    guess = words(factored(model, kind, dtype), *shape, batch.inputs.shape[1])
    return Setting(model, kind, batches, observed, guess, batch)
