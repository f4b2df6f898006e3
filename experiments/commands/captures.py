"""``fedsim attack``, ``score``, ``report`` and ``doctor`` on another application's captures."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from experiments.captures import MANIFEST
from experiments.plan.overrides import override
from fedsim.config.named_code import allow
from fedsim.errors import ConfigError
from fedsim.store.plain_files import SUFFIXES
from fedsim.visible import say


def _option(help_: str, metavar: str = "") -> Any:  # noqa: ANN401
    return typer.Option(help=f"foreign captures: {help_}", metavar=metavar or None)


Model = Annotated[str | None, _option("hub id, folder, or module:function", "MODEL")]
Tokenizer = Annotated[str | None, _option("hub id or folder; default: the model's")]
Task = Annotated[str | None, _option("classification, language-modelling, ...")]
Loss = Annotated[str | None, _option("of a network of images, module:function")]
Shape = Annotated[str | None, _option("channel,height,width of images")]
InputShape = Annotated[str | None, _option("of other inputs: columns, or channel,time")]
InputRange = Annotated[str | None, _option("lowest,highest value of an input; default: 0,1")]
Base = Annotated[str | None, _option("hub id, folder or file of weights never sent")]
Alpha = Annotated[float | None, _option("lora_alpha of adapters")]
Longest = Annotated[int | None, _option("longest text in tokens; default: 64")]
_FACTS = (
    "fact of the server: labels=[0,3], num_examples, lengths, batch_size, local_steps, "
    "learning_rate, optimizer=adamw (sgd, momentum, adam, adafactor), train_mode=true, defense"
)
Knows = Annotated[list[str] | None, _option(_FACTS, "FACT=VALUE")]
Kind = Annotated[str | None, _option("weights, difference, pseudo-gradient or gradient", "KIND")]
Attacks = Annotated[str | None, _option("names with commas; default: exact ones and one search")]
Budget = Annotated[float | None, _option("seconds for each attack on each capture; default: 60")]
Rounds = Annotated[str | None, _option("rounds with commas; default: all", "ROUNDS")]
Clients = Annotated[str | None, _option("clients with commas; default: all", "CLIENTS")]
Truth = Annotated[Path | None, _option("folder that truth_mod wrote")]


_OTHERS = ("config.json", "task.json", "cell.json", "run.json")
"""Files beside which tensors are those of a model, of captures or of a run."""


def is_captures(target: str) -> bool:
    """Whether the target is a folder of captures without a run around it, or of state dicts."""
    folder = Path(target)
    inside = (folder / "experiment.toml").exists() or (folder.parent / "cell.json").exists()
    return not inside and (any(folder.glob("round-*/client-*.json")) or are_state_dicts(folder))


def are_state_dicts(folder: Path) -> bool:
    """Whether it holds the weights before and after training, in files of another framework."""
    if not folder.is_dir() or any(folder.glob("round-*/client-*.json")):
        return False
    if (folder / MANIFEST).is_file():
        return True
    if any((folder / name).exists() for name in _OTHERS):
        return False
    files = (*folder.glob("*"), *folder.glob("*/*"))
    return any(path.suffix in SUFFIXES for path in files)


def captures_of(folder: Path) -> Path:
    """The captures of a target of ``is_captures``: state dicts become such."""
    if not are_state_dicts(folder):
        return folder
    from experiments.captures.pairs import captures_in

    return captures_in(folder)


def _check_named(folder: Path, model: str | None) -> None:
    """Refuse captures of no named model, before anything slow is imported."""
    if model:
        return
    captures = folder / "captures" if are_state_dicts(folder) else folder
    if captures == folder or (captures / "task.json").exists():
        from experiments.plan.known_model import check_model_is_known

        check_model_is_known(captures.resolve())
    else:
        raise ConfigError(
            f"{folder}: holds state dicts, and nothing says which model they are of. Pass --model "
            "HUB_ID_OR_FOLDER, of a network of your own --model MODULE:NAME --loss MODULE:NAME "
            f'--image-shape 3,32,32; or write model = "..." into {folder / MANIFEST}.'
        )


@dataclass(frozen=True)
class Description:
    """What the options say about another application's captures; None where one was not given."""

    model: str | None = None
    tokenizer: str | None = None
    task: str | None = None
    loss: str | None = None
    image_shape: str | None = None
    input_shape: str | None = None
    input_range: str | None = None
    base: str | None = None
    lora_alpha: float | None = None
    max_length: int | None = None
    knows: list[str] | None = None
    kind: str | None = None

    def options(self) -> dict[str, Any]:
        """As the arguments of ``fedsim.captured``, with its facts as ``knows``."""
        values = {
            **vars(self),
            "image_shape": tuple(numbers(self.image_shape, "--image-shape")),
            "input_shape": tuple(numbers(self.input_shape, "--input-shape")),
            "input_range": numbers(self.input_range, "--input-range", float),
            "knows": override({}, self.knows or [], "--knows"),
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Chosen:
    """What is attacked of the captures, and how long."""

    attacks: str | None
    budget: float | None
    rounds: str | None
    clients: str | None


def attack_foreign(
    folder: Path, described: Description, chosen: Chosen, quiet: bool, as_json: bool
) -> int:
    """Attack the captures of another application; the exit status."""
    if not (folder / MANIFEST).is_file():
        _check_named(folder, described.model)
    from experiments.captures.attack_stage import attack_captures
    from experiments.captures.captured import captured

    for name in (described.model, described.loss):
        allow(name or "")
    options = described.options()
    if (folder / MANIFEST).is_file():
        from experiments.captures.pairs import Manifest

        stated = {k: v for k, v in Manifest.read(folder) if v}
        facts = {**stated.get("knows", {}), **options.get("knows", {})}
        options = {**stated, **options, "knows": facts}
    model = options.pop("model", None)
    _check_named(folder, model)
    foreign = captured(captures_of(folder), model, **options)
    rounds, clients = numbers(chosen.rounds, "--rounds"), numbers(chosen.clients, "--clients")
    names = chosen.attacks.split(",") if chosen.attacks else []
    budget = 60.0 if chosen.budget is None else chosen.budget
    done = attack_captures(foreign.only(rounds, clients), names, budget, quiet or as_json)
    say(done.json() if as_json else done.line())
    return 0 if any(outcome.guess for outcome in done.outcomes) else 1


def score_foreign(folder: Path, truth: Path | None, as_json: bool) -> int:
    """Score the guesses on another application's captures; the exit status."""
    from experiments.captures.pairs import truth_in
    from experiments.captures.score_stage import score_captures

    if truth is None:
        raise ConfigError(
            f"{folder}: no score is possible without the private examples. Record them by "
            "fedsim.truth_mod in a test federation, and pass its folder: --truth FOLDER."
        )
    captures = captures_of(folder)
    with TemporaryDirectory() as place:
        if captures != folder:
            truth = truth_in(truth, captures, Path(place))
        frame = score_captures(captures, truth)
    say(frame.to_json(orient="records") if as_json else frame.to_string(index=False))
    return 0


def report_foreign(folder: Path, as_json: bool) -> int:
    """Sum up the guesses on another application's captures; the exit status."""
    from experiments.captures.guess import NO_SCORE
    from experiments.captures.score_stage import report_captures

    captures = captures_of(folder)
    frame, run = report_captures(captures), captures / "run"
    page = run / "report" / "index.html"
    if as_json:
        say(frame.to_json(orient="records"))
    else:
        say(frame.to_string(index=False, float_format="%.3g", na_rep="-"))
        scored = (run / "scores.parquet").exists()
        say(f"report: {page}." + ("" if scored else f" {NO_SCORE}"))
    return 0


def numbers(text: str | None, option: str, kind: type[Any] = int) -> list[Any]:
    """Of an option with commas.

    Raises:
        ConfigError: a part is no number of this kind.
    """
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"{option} {text}: write numbers, such as 3,32,32.") from None
