"""``fedsim prior``: a small language model of the auxiliary rows, for attacks on word order."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import torch

from experiments.console import Console
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan
from experiments.priors.prior_training import HEAD, Recipe, train
from fedsim.cell import AuxiliaryConfig, CellConfig
from fedsim.errors import ConfigError, StoreError
from fedsim.files import Record, digest, read_record, write_json
from fedsim.models import transformer
from fedsim.seeds import generator
from fedsim.setting import load_setting
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
