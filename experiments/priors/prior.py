"""``fedsim prior``: a small language model of the auxiliary rows, for attacks on word order."""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from attacks.texts.language_prior import LanguagePrior
from experiments.console import Console
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan
from fedsim.config.cell import AuxiliaryConfig, CellConfig, TaskConfig
from fedsim.config.setting import load_setting
from fedsim.errors import ConfigError, StoreError
from fedsim.models import transformer
from fedsim.seeds import derive, generator, seeded
from fedsim.store.files import Record, digest, read_record, write_json
from fedsim.tasks import task_kind
from fedsim.tasks.text import TextTask, texts_of

_RECORD, _WEIGHTS = "prior.json", "model.safetensors"
_HELDOUT = 0.05  # share of the texts held out for early stopping
_FEWEST = 20  # fewest texts, so that at least one is held out


class TrainedPrior(Record):
    """``prior.json``: the recipe of a prior and its perplexity on held-out texts.

    Attributes:
        texts: number of texts trained on.
        heldout: number of texts held out.
        epochs: number of epochs with the lowest held-out loss.
        perplexity: on the held-out texts, special tokens included.
        sha256: hash of ``model.safetensors``.
    """

    recipe: Recipe
    texts: int
    heldout: int
    epochs: int
    perplexity: float
    sha256: str

    def line(self, folder: Path) -> str:
        """The last line of the command."""
        return (
            f"prior for {self.recipe.task.model}: {self.texts} texts, {self.epochs} epochs, "
            f"perplexity {self.perplexity:.1f} on {self.heldout} held out; "
            f'set prior = "{folder}" under [[attacks]]'
        )


def train_prior(
    plan: Plan, folder: Path, *, width: int, layers: int, epochs: int, quiet: bool
) -> TrainedPrior:
    """Train on the auxiliary rows of the first seed, and write a folder for ``load_prior``.

    A prior of the same recipe that lies there is kept.

    Raises:
        ConfigError: the plan has no texts that the attacker owns, or the folder is taken.
    """
    if width % HEAD:
        raise ConfigError(f"--width {width}: it is no multiple of {HEAD}. Write one that is.")
    config, auxiliary = _source(plan)
    sizes = {"width": width, "layers": layers, "epochs": epochs}
    recipe = Recipe(seed=config.seed, task=config.task, auxiliary=auxiliary, **sizes)
    if (finished := _finished(folder, recipe)) is not None:
        return finished
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {folder}: cannot be made ({error.strerror}). Name another folder."
        ) from None
    setting = load_setting(config)
    task, rows = setting.task, setting.holdings.auxiliary
    assert isinstance(task, TextTask)
    assert rows is not None
    if len(rows) < _FEWEST:
        raise ConfigError(
            f"auxiliary: {len(rows)} rows are too few to learn a language from. "
            f"Name {_FEWEST} or more, better thousands."
        )
    lines = [torch.tensor(line) for line in task.tokens(texts_of(rows, task.spec.model))]
    order = torch.randperm(len(lines), generator=generator(recipe.seed, "prior", "heldout"))
    lines = [lines[i] for i in order]
    held = max(1, round(_HELDOUT * len(lines)))
    with Console(quiet) as console:
        network, best, loss = train(task, lines[held:], lines[:held], recipe, console)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        with transformer.quiet():
            network.save_pretrained(temporary)
        task.tokenizer.save_pretrained(str(temporary))
        trained = TrainedPrior(
            recipe=recipe,
            texts=len(lines) - held,
            heldout=held,
            epochs=best,
            perplexity=math.exp(loss),
            sha256=digest((temporary / _WEIGHTS).read_bytes()),
        )
        write_json(temporary / _RECORD, trained)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return trained


def _source(plan: Plan) -> tuple[CellConfig, AuxiliaryConfig]:
    """The first cell and its auxiliary rows, which must be those of all cells.

    What is private to one cell must not be public to another.
    """
    configs = [cell.config for cell in make_cells(plan, Path("runs") / plan.name)]
    first = configs[0]
    if task_kind(first.task) == "image-classification":
        raise ConfigError(
            f"task.model: {first.task.model!r} takes images, and a language prior is for texts. "
            "Name an experiment on text."
        )
    if first.auxiliary is None:
        raise ConfigError(
            "auxiliary: is missing, and a prior may learn from no other rows. "
            'Add [auxiliary] with dataset = "..." or split = "...".'
        )
    if not any(config.server_knows.auxiliary for config in configs):
        raise ConfigError(
            "server_knows.auxiliary: it is off, so the attacker owns no rows to learn from. "
            "Turn it on."
        )
    for config in configs[1:]:
        for key, value, other in (
            ("task.model", first.task.model, config.task.model),
            ("task.dataset", first.task.dataset, config.task.dataset),
            ("task.split", first.task.split, config.task.split),
            ("auxiliary", first.auxiliary, config.auxiliary),
        ):
            if value != other:
                raise ConfigError(
                    f"{key}: it is {_short(value)} in one cell of {plan.name} and {_short(other)} "
                    "in another, and a prior fits one of them. Name an experiment with one value, "
                    "or set it by --set."
                )
    return first, first.auxiliary


def _short(value: str | AuxiliaryConfig | None) -> str:
    if isinstance(value, AuxiliaryConfig):
        value = " ".join(f"{key}={part}" for key, part in value if part)
    return repr(value)


def _finished(folder: Path, recipe: Recipe) -> TrainedPrior | None:
    """The prior in the folder, if it is complete and of this recipe; else None."""
    if not folder.exists():
        return None
    if not (folder / _RECORD).is_file():
        raise ConfigError(
            f"--out {folder}: it is there and no prior of fedsim's. Name another folder."
        )
    try:
        trained = read_record(folder / _RECORD, TrainedPrior)
    except StoreError as error:
        raise ConfigError(f"--out: {error}") from None
    old, new = trained.recipe.model_dump(), recipe.model_dump()
    if differing := [key for key in new if old[key] != new[key]]:
        raise ConfigError(
            f"--out {folder}: the prior there has another {differing[0]}. Name another folder."
        )
    weights = folder / _WEIGHTS
    if not weights.is_file() or digest(weights.read_bytes()) != trained.sha256:
        raise ConfigError(f"--out {folder}: the weights there are altered. Remove the folder.")
    return trained


HEAD = 32
"""Width of an attention head."""
_PATIENCE = 3  # epochs without a better held-out loss
_BATCH = 16
_DROPOUT = 0.3
_SMOOTHING = 0.1  # of the targets, so that words which the few texts lack stay possible
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.1


class Recipe(Record):
    """Everything that determines the trained weights.

    Attributes:
        width: of the hidden layers, a multiple of 32.
        epochs: passes over the texts at most.
    """

    seed: int
    task: TaskConfig
    auxiliary: AuxiliaryConfig
    width: int
    layers: int
    epochs: int


def train(
    task: TextTask, lines: list[Tensor], heldout: list[Tensor], recipe: Recipe, console: Console
) -> tuple[Any, int, float]:
    """The network of the epoch with the lowest held-out loss, the epoch and the loss.

    Args:
        task: gives the tokenizer.
        lines: ids of each text.
        heldout: texts that it stops by.
        recipe: sizes and seed.
        console: shows each step.
    """
    network: Any = _build(task, recipe)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    rng = generator(recipe.seed, "prior", "batches")
    best, least, weights = 0, math.inf, {}
    console.expect("prior", recipe.epochs * math.ceil(len(lines) / _BATCH))
    with seeded(derive(recipe.seed, "prior", "dropout")):
        for epoch in range(1, recipe.epochs + 1):
            network.train()
            order = torch.randperm(len(lines), generator=rng).tolist()
            for ids, mask in _batches([lines[i] for i in order]):
                real = mask[:, 1:] == 1
                states = network.base_model(input_ids=ids).last_hidden_state[:, :-1][real]
                logits, targets = network.lm_head(states), ids[:, 1:][real]
                loss = F.cross_entropy(logits, targets, label_smoothing=_SMOOTHING)
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                console.advance("prior", f"perplexity {math.exp(least):.1f}" if best else "")
            network.eval()
            if (now := _loss(network, heldout)) < least:
                best, least, weights = epoch, now, copy.deepcopy(network.state_dict())
            elif epoch - best >= _PATIENCE:
                break
    network.load_state_dict(weights)
    return network, best, least


def _build(task: TextTask, recipe: Recipe) -> torch.nn.Module:
    tokenizer = task.tokenizer
    start = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    architecture = {
        "model_type": "gpt2",
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "n_positions": task.max_length,
        "n_embd": recipe.width,
        "n_layer": recipe.layers,
        "n_head": recipe.width // HEAD,
        "bos_token_id": start,
        "eos_token_id": end,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), _DROPOUT),
    }
    seed = derive(recipe.seed, "prior", "weights")
    return transformer.build(architecture, "language-modelling", seed)


def _batches(lines: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids padded on the right, and the mask."""
    for first in range(0, len(lines), _BATCH):
        part = lines[first : first + _BATCH]
        mask = pad_sequence([torch.ones_like(line) for line in part], batch_first=True)
        yield pad_sequence(list(part), batch_first=True), mask


def _loss(network: Any, lines: Sequence[Tensor]) -> float:  # noqa: ANN401
    """Mean cross-entropy over all predicted tokens."""
    prior = LanguagePrior("prior", network)
    counts = torch.tensor([len(line) - 1 for line in lines])
    means = torch.cat([prior.loss(ids, mask) for ids, mask in _batches(lines)])
    return float((means * counts).sum() / counts.sum())
