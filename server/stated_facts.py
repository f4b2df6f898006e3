"""What the server of another application knows because it said so itself, in its configuration."""

from collections.abc import Mapping
from typing import Any

from fedsim.knowledge import Fact, Knowledge

_FACTS: dict[str, Fact] = {
    "lr": "learning_rate",
    "learning-rate": "learning_rate",
    "client-lr": "learning_rate",
    "local-lr": "learning_rate",
    "batch-size": "batch_size",
    "local-batch-size": "batch_size",
    "local-steps": "local_steps",
    "optimizer": "optimizer",
}
"""Names that mean one thing, hyphens standing for underscores, too."""
_TRAINING = ("proximal-mu", "max-grad-norm", "weight-decay", "momentum", "label-smoothing")
_CLIPPING = "clipping-norm"
"""What Flower's wrappers of client-side clipping send to their mods, which clip the update."""
_OPTIMIZERS = frozenset({"sgd", "momentum", "adam", "adamw", "adafactor"})
_WHOLE = frozenset({"batch_size", "local_steps"})


def stated(config: Mapping[str, Any]) -> Knowledge:
    """The facts that a configuration states beyond doubt; all others stay unknown.

    Epochs are none of them: how many steps they take depends on the client's rows. Nor is a noise
    multiplier, which Flower's wrappers apply on the server.
    """
    named = {key.lower().replace("_", "-"): value for key, value in config.items()}
    facts: dict[str, Any] = {}
    for name, fact in _FACTS.items():
        if _is_sound(fact, value := named.get(name)):
            facts.setdefault(fact, value)
    given = {name: named[name] for name in _TRAINING if _positive(named.get(name))}
    training = {name.replace("-", "_"): float(value) for name, value in given.items()}
    if training:
        facts["training"] = training
    if "momentum" in training:
        facts.setdefault("optimizer", "momentum")
    if _CLIPPING in named and _positive(named[_CLIPPING]):
        facts["defense"] = ({"name": "clip", "norm": float(named[_CLIPPING])},)
    return Knowledge.model_validate(facts)


def offered(metrics: Mapping[str, Any]) -> list[str]:
    """What clients state in their metrics as options of ``fedsim attack``, to be believed or not.

    A noise multiplier with a clipping norm is DP-SGD, which Opacus reports.
    """
    named = {key.lower().replace("_", "-"): value for key, value in metrics.items()}
    options = [
        f"--knows {fact}={value}"
        for name, fact in _FACTS.items()
        if _is_sound(fact, value := named.get(name))
    ]
    noise = next((named[name] for name in _NOISE if _positive(named.get(name))), None)
    clip = next((named[name] for name in _NORMS if _positive(named.get(name))), None)
    if noise is not None and clip is not None:
        table = f'{{name = "dp_sgd", clip = {float(clip)}, noise_multiplier = {float(noise)}}}'
        options.append(f"--knows 'defense=[{table}]'")
    return list(dict.fromkeys(options))


_NOISE = ("noise-multiplier", "dp-noise-multiplier", "sigma")
_NORMS = ("max-grad-norm", "clipping-norm", "l2-norm-clip", "clip")


def _is_sound(fact: Fact, value: object) -> bool:
    if fact == "optimizer":
        return isinstance(value, str) and value in _OPTIMIZERS
    return _positive(value) and (fact not in _WHOLE or isinstance(value, int))


def _positive(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
