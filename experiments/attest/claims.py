"""A declared defense held against replies: consistent, refuted by a number, or not told."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from experiments.attest.findings import OPEN, Attested, Part
from experiments.attest.noise import CHANCE
from experiments.attest.seen import Reply
from experiments.captures.update import Update
from experiments.wording.epsilons import Epsilons
from fedsim.config.build import suggest
from fedsim.defenses import DEFENSES, build_chain
from fedsim.defenses.base import Defense, Distortion
from fedsim.defenses.chain import Chain
from fedsim.errors import ConfigError
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
_SEEN_OF: dict[Distortion, tuple[Part, ...]] = {
    "sign": ("signs",),
    "sparsity": ("sparsity",),
    "truncation": ("cut",),
    "rounding": ("grid", "format"),
}
"""What a defense does to each entry -> the parts, of which any shows it; the reply tells which
entries it left."""
_OF_NOISE: tuple[Part, ...] = ("noise", "noise shape")
Word: TypeAlias = Literal["consistent", "refuted", "not told"]
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
    word: Word
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.key or 'the claim itself'}: {self.word}{reasons}."


@dataclass(frozen=True)
class Declared:
    """``--claim "local_dp clip=1 epsilon=10 delta=1e-5"``, or as an application writes it.

    Attributes:
        text: the claim.
        chain: the defenses.
    """

    text: str
    chain: Chain

    @classmethod
    def parse(cls, text: str) -> Declared:
        """Read a defense's name and its options, between spaces, commas or in parentheses.

        Several stand in the order in which a client applies them, with a ``+`` between spaces.

        Raises:
            ConfigError: there is no such defense, or an option cannot be.
        """
        return cls(text, build_chain(map(_table, re.split(r"\s\+\s", text)), "--claim"))

    def itself(self) -> Held:
        """Whether the numbers of the claim fit each other."""
        pairs = zip(self.chain.defenses, self.chain.tables, strict=True)
        laws = [(law, known) for each, known in pairs if (law := each.gaussian) and law.std]
        law, known = laws[0] if laws else (None, {})
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
        """One reply beside the claim.

        It is refuted by what no client sends that did all of it, whatever it did beyond, and
        consistent where each part is seen, but for clipping, which no single reply shows.
        """
        reply, parts = Reply(victim), [*zip(self.chain.names, self.chain.defenses, strict=True)]
        beside = [
            _Beside(reply, seen, *part, parts[place + 1 :]) for place, part in enumerate(parts)
        ]
        against = [reason for each in beside for reason in each.against()]
        if against:
            return Held(key=seen.key, word="refuted", reasons=tuple(against))
        shown = [[*each.fits()] for each in beside]
        fits = [reason for reasons in shown for reason in reasons]
        pairs = zip(beside, shown, strict=True)
        unseen = [each for each, reasons in pairs if not reasons]
        untold = [each.untold() for each in unseen if each.defense.distortions != {"scale"}]
        word: Word = "consistent" if fits and not untold else "not told"
        return Held(key=seen.key, word=word, reasons=(*fits, *untold))


@dataclass(frozen=True)
class _Beside:
    """One part of a claim beside a reply: what contradicts it, shows it, or keeps it from sight."""

    reply: Reply
    seen: Attested
    name: str
    defense: Defense
    after: list[tuple[str, Defense]]  # what the client applies later

    @property
    def _undoes(self) -> list[str]:
        """Later parts after which neither noise nor a norm has the size that is claimed."""
        kept = _SEEN_OF.keys() | {"inputs"}
        return [name for name, each in self.after if not each.distortions <= kept]

    def _later(self, distortion: Distortion) -> list[Defense]:
        return [each for _, each in self.after if distortion in each.distortions]

    def against(self) -> Iterator[str]:
        """Numbers that contradict it."""
        for part in () if self.defense.per_example else _SHOWN.get(self.name, ()):
            if self.seen[part].state == "absent":
                yield f"{part}: there is none"
        std, clip = noise_of(self.defense, self.reply.victim)
        if self._undoes:
            return
        if std:
            yield from self._too_quiet(std)
            if (low := self.seen["noise"].low) is not None and low > _MARGIN * std:
                yield f"noise of at least {low:.3g}, claimed {std:.3g}"
            yield from (self.seen[part].text for part in _OF_NOISE if not self.seen[part].sound)
        # What leaves entries out at random may make the others larger, as QSGD does.
        scaled = self.seen["sparsity"].state == "present" and not self._later("sparsity")
        if math.isfinite(clip) and not self.reply.signed and not scaled:
            yield from _too_long(self.reply, std or 0.0, clip)

    def fits(self) -> Iterator[str]:
        """What shows it."""
        parts: list[tuple[Part, ...]] = [(part,) for part in _SHOWN.get(self.name, ())]
        parts = parts or [_SEEN_OF.get(each, ()) for each in self.defense.distortions]
        shown = [[k for k in each if self.seen[k].state == "present"] for each in parts]
        if all(shown):
            yield from (self.seen[each[0]].text for each in shown)
        std, noise = noise_of(self.defense, self.reply.victim)[0], self.seen["noise"]
        if std and noise.value and None not in (noise.low, noise.high) and not self._undoes:
            interval = f"{noise.low:.3g} to {noise.high:.3g}"
            yield f"noise of {noise.value:.3g} ({interval}), claimed {std:.3g}"

    def untold(self) -> str:
        """Why nothing shows it: what is named after it, or seen and not named."""
        if self.defense.gaussian is None:
            return f"{self.name}: {OPEN}"
        hides = [name for name, each in self.after if each.distortions - {"inputs", "rounding"}]
        if hides:
            return f"{self.name} before {' and '.join(hides)} is {OPEN}"
        hiding: tuple[Part, ...] = ("signs", "sparsity", "cut")
        texts = [self.seen[k].text for k in hiding if self.seen[k].state == "present"]
        texts = texts or ["entries of one size"] * self.reply.signed
        if texts := texts or ["entries left out"] * self.reply.masked:
            return f"{', '.join(texts)}, which the claim does not name: noise before is {OPEN}"
        return f"{self.name}: {self.seen['noise'].text}"

    def _too_quiet(self, std: float) -> Iterator[str]:
        """Tensors that cannot carry so much noise."""
        left_out = self._later("sparsity")
        known = self.reply.most_noise(
            kept_largest=bool(left_out) and all(each.keeps_largest for each in left_out)
        )
        quiet = {name: most for name, most in known.items() if most < std}
        if quiet:
            name = min(quiet, key=lambda each: quiet[each])
            more = f" and {len(quiet) - 1} of {len(known) - 1} others" if len(quiet) > 1 else ""
            most = f"can carry {quiet[name]:.3g} at most"
            yield f"sigma {std:.3g} is claimed, and {name!r}{more} {most}"


def noise_of(defense: Defense, victim: Update) -> tuple[float | None, float]:
    """Standard deviation and clipping norm of the update that are claimed."""
    law, seen = defense.gaussian, victim.observation
    if law is None or law.std is None:
        return None, math.inf
    known = seen.knowledge
    std, clip = law.std / known.cohort**0.5, law.clip
    if not defense.per_example:
        return std, clip
    once = seen.kind == "gradient" or known.local_steps == 1
    rows = known.batch_size or (known.num_examples if once else None)
    if rows is None:
        return None, math.inf
    std = std / (rows if defense.changes_sum else rows**0.5)
    if seen.kind == "gradient":
        return std, clip
    rate, steps = known.learning_rate, known.local_steps
    if rate is None or steps is None or known.optimizer != "sgd":
        return None, math.inf
    return rate * steps**0.5 * std, rate * steps * clip


def _too_long(reply: Reply, std: float, clip: float) -> Iterator[str]:
    """Whether the update is longer than clip, noise and rounding allow.

    With a chance of ``exp(-x)`` a noncentral chi-squared number of ``n`` degrees and centre ``l``
    exceeds ``n + l + 2 sqrt((n + 2 l) x) + 2 x`` (Birge 2001).
    """
    update, rare = reply.update, -math.log(CHANCE)
    count = sum(value.numel() for value in update.values())
    least = ((value.abs() - reply.steps[name]).clamp(min=0) for name, value in update.items())
    norm = math.sqrt(sum(float(value.square().sum()) for value in least))
    spread = 2 * std * math.sqrt((count * std**2 + 2 * clip**2) * rare)
    most = math.sqrt(clip**2 + count * std**2 + spread + 2 * rare * std**2)
    if norm > most * (1 + 1e-4):
        yield f"norm {norm:.4g}, and clip {clip:g} with sigma {std:.3g} allows {most:.4g}"


def verdict(claimed: Sequence[Held]) -> Word:
    """Of a claim for all replies: one that refutes it is enough."""
    words = {each.word for each in claimed if each.key is not None}
    if any(each.word == "refuted" for each in claimed):
        return "refuted"
    return "consistent" if words == {"consistent"} else "not told"


def _table(text: str) -> dict[str, Any]:
    """Name and options of one defense of a claim."""
    name, *words = [word for word in re.split(r"[\s,()]+", text) if word] or [""]
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
    if name == "prune" and isinstance(options.get("keep"), float):  # as a share
        options["fraction"] = 1 - options.pop("keep")
    return {"name": name, **options}


def _number(text: str) -> Any:  # noqa: ANN401
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
