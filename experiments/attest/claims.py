"""A declared defense held against replies: consistent, refuted by a number, or not told."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.attest.findings import Attested, Part
from experiments.attest.noise import CHANCE, bounds
from experiments.captures.update import Update
from experiments.wording.epsilons import Epsilons
from fedsim.config.build import suggest
from fedsim.defenses import DEFENSES, build_chain
from fedsim.defenses.base import Gaussian
from fedsim.defenses.chain import Chain
from fedsim.errors import ConfigError
from fedsim.magnitudes import squared_norm
from fedsim.store.capture import CaptureKey
from fedsim.store.files import Record

_APPS = {
    "LocalDpMod": ("local_dp", ("clipping_norm", "sensitivity", "epsilon", "delta")),
    "DpClientMod": ("dp_client", ("clip", "noise_multiplier")),
    "fixedclipping_mod": ("clip", ("norm",)),
    "PrivacyEngine": ("dp_sgd", ("noise_multiplier", "max_grad_norm")),
    "opacus": ("dp_sgd", ("noise_multiplier", "max_grad_norm")),
    "PercentilePrivacy": ("percentile_privacy", ("percentile", "gamma")),
}
"""As applications write it -> a defense, and its options in their order."""
_OTHER_NAMES = {
    "local_dp": {"clip": "clipping_norm"},
    "dp_sgd": {"max_grad_norm": "clip"},
    "clip": {"clip": "norm"},
}
_SHOWN: dict[str, tuple[Part, ...]] = {
    "sign": ("signs",),
    "prune": ("sparsity",),
    "svt_privacy": ("sparsity",),
    "withhold": ("withheld",),
    "freeze_embeddings": ("withheld",),
}
"""Defense -> what has to be seen of it."""
_OF_NOISE: tuple[Part, ...] = ("noise", "noise shape")
_MARGIN = 1.1
"""Factor by which noise may exceed what is claimed of it. Half and twice of the excess judge the
134 replies of ``noise`` alike."""


class Held(Record):
    """One reply, or the numbers of the claim itself, beside the claim.

    Attributes:
        key: the reply; None for the claim's own numbers.
        word: how they stand to each other.
        reasons: the numbers, in words.
    """

    key: CaptureKey | None
    word: Literal["consistent", "refuted", "not told"]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.key or 'the claim itself'}: {self.word}{reasons}."


@dataclass(frozen=True)
class Declared:
    """``--claim "local_dp clip=1 epsilon=10 delta=1e-5"``, or as an application writes it.

    Attributes:
        text: the claim.
        chain: the defense.
    """

    text: str
    chain: Chain

    @classmethod
    def parse(cls, text: str) -> Declared:
        """Read a defense's name and its options, between spaces, commas or in parentheses.

        Raises:
            ConfigError: there is no such defense, or an option cannot be.
        """
        name, *words = [word for word in re.split(r"[\s,()]+", text) if word]
        name, places = _APPS.get(name, (name, ()))
        if name not in DEFENSES:
            raise ConfigError(f"--claim: {name!r} is no defense. {suggest(name, DEFENSES)}")
        options: dict[str, Any] = {}
        for place, word in enumerate(words):
            key, _, value = word.rpartition("=")
            if not key and place >= len(places):
                raise ConfigError(f"--claim: {word!r} has no name. Write option=value.")
            key = key or places[place]
            options[_OTHER_NAMES.get(name, {}).get(key, key)] = _number(value)
        if name == "local_dp" and "clipping_norm" in options:
            # Two updates of this norm differ by up to twice of it.
            options.setdefault("sensitivity", 2 * float(options["clipping_norm"]))
        return cls(text, build_chain(({"name": name, **options},), "--claim"))

    @property
    def gaussian(self) -> Gaussian | None:
        """Clipping and noise of the whole update, or of each example; None without any."""
        known = [each.gaussian for each in self.chain.defenses]
        return next((each for each in known if each is not None), None)

    def itself(self) -> Held:
        """Whether the numbers of the claim fit each other."""
        law, known = self.gaussian, self.chain.tables[0] if self.chain.tables else {}
        if law is None or not law.std or not known.get("epsilon"):
            return Held(key=None, word="not told", reasons=())
        delta, claimed = float(known["delta"]), float(known["epsilon"])
        reached = Epsilons.of(1, 1.0, law.std / law.clip, delta)
        reasons = [f"sigma {law.std:.3g} at clip {law.clip:g} is {reached}"]
        if reached.epsilon <= claimed:
            return Held(key=None, word="consistent", reasons=tuple(reasons))
        reasons.append(f"claimed {claimed:g} a message")
        moved, share = known.get("sensitivity"), float(known.get("sensitivity", 0)) / (2 * law.clip)
        if moved is not None and share < 1:
            apart = f"what two updates of clip {law.clip:g} differ by"
            reasons.insert(0, f"sensitivity {moved:g} is {share:.2g} of {apart}")
        return Held(key=None, word="refuted", reasons=tuple(reasons))

    def held(self, victim: Update, seen: Attested) -> Held:
        """One reply beside the claim."""
        against, fits = [*self._against(victim, seen)], [*self._fits(victim, seen)]
        if against:
            return Held(key=seen.key, word="refuted", reasons=tuple(against))
        if fits:
            return Held(key=seen.key, word="consistent", reasons=tuple(fits))
        return Held(key=seen.key, word="not told", reasons=())

    def _against(self, victim: Update, seen: Attested) -> Iterator[str]:
        for name in self.chain.names:
            for part in _SHOWN.get(name, ()):
                if seen[part].state == "absent":
                    yield f"{part}: there is none"
        std, clip = self.noise(victim)
        if std:
            yield from _too_quiet(victim, std)
            if (low := seen["noise"].low) is not None and low > _MARGIN * std:
                yield f"noise of at least {low:.3g}, claimed {std:.3g}"
            yield from (seen[part].text for part in _OF_NOISE if not seen[part].sound)
        if math.isfinite(clip):
            yield from _too_long(victim, std or 0.0, clip)

    def _fits(self, victim: Update, seen: Attested) -> Iterator[str]:
        for name in self.chain.names:
            for part in _SHOWN.get(name, ()):
                if seen[part].state == "present":
                    yield seen[part].text
        std, found = self.noise(victim)[0], seen["noise"]
        if std and found.low is not None and found.high is not None and found.value:
            interval = f"{found.low:.3g} to {found.high:.3g}"
            yield f"noise of {found.value:.3g} ({interval}), claimed {std:.3g}"

    def noise(self, victim: Update) -> tuple[float | None, float]:
        """Standard deviation and clipping norm of the update that are claimed."""
        law, seen = self.gaussian, victim.observation
        if law is None or law.std is None:
            return None, math.inf
        known = seen.knowledge
        std, clip = law.std / known.cohort**0.5, law.clip
        if not self.chain.per_example:
            return std, clip
        once = seen.kind == "gradient" or known.local_steps == 1
        rows = known.batch_size or (known.num_examples if once else None)
        if rows is None:
            return None, math.inf
        std = std / (rows if self.chain.changes_sum else rows**0.5)
        if seen.kind == "gradient":
            return std, clip
        rate, steps = known.learning_rate, known.local_steps
        if rate is None or steps is None or known.optimizer != "sgd":
            return None, math.inf
        return rate * steps**0.5 * std, rate * steps * clip


def _too_quiet(victim: Update, std: float) -> Iterator[str]:
    """Tensors that cannot carry so much noise."""
    known = bounds(victim.observation)
    quiet = {name: most for name, most in known.items() if most < std}
    if quiet:
        name = min(quiet, key=lambda each: quiet[each])
        more = f" and {len(quiet) - 1} of {len(known) - 1} others" if len(quiet) > 1 else ""
        yield f"sigma {std:.3g} is claimed, and {name!r}{more} can carry {quiet[name]:.3g} at most"


def _too_long(victim: Update, std: float, clip: float) -> Iterator[str]:
    """Whether the update is longer than clip and noise allow.

    With a chance of ``exp(-x)`` a noncentral chi-squared number of ``n`` degrees and centre ``l``
    exceeds ``n + l + 2 sqrt((n + 2 l) x) + 2 x`` (Birge 2001).
    """
    update, rare = victim.observation.update(), -math.log(CHANCE)
    count = sum(value.numel() for value in update.values())
    norm = float(squared_norm(update)) ** 0.5
    spread = 2 * std * math.sqrt((count * std**2 + 2 * clip**2) * rare)
    most = math.sqrt(clip**2 + count * std**2 + spread + 2 * rare * std**2)
    if norm > most * (1 + 1e-4):
        yield f"norm {norm:.4g}, and clip {clip:g} with sigma {std:.3g} allows {most:.4g}"


def verdict(claimed: Sequence[Held]) -> Literal["consistent", "refuted", "not told"]:
    """Of a claim for all replies: one that refutes it is enough."""
    words = {each.word for each in claimed if each.key is not None}
    if any(each.word == "refuted" for each in claimed):
        return "refuted"
    return "consistent" if words == {"consistent"} else "not told"


def _number(text: str) -> Any:  # noqa: ANN401
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
