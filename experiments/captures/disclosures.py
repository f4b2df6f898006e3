"""What an update gives away by itself, before any attack: words, classes, batches, statistics."""

from collections import Counter
from collections.abc import Mapping
from statistics import median

from pydantic import Field

from attacks.base import Job
from attacks.observed.known_labels import known_labels
from attacks.observed.labels import Head, find_head
from attacks.observed.readings import read
from attacks.observed.running_statistics import counted_batches, tracking_layers
from attacks.observed.word_rows import moved_words
from experiments.captures.update import Update
from fedsim.errors import CannotAttack, FedsimError, message_of
from fedsim.knowledge import FACTS
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey, Observation, Setting
from fedsim.store.files import Record
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors

_ENTRIES = 16
"""Entries of a tensor whose largest change is compared with the others'; half and twice of it find
the same of the networks in the tests."""
_BALANCE = 0.05
"""Largest sum of a bias gradient, as a share of its norm, that counts as 0, which it is under a
cross-entropy. White noise alone passes in 4 % of the updates, at half and twice the share in 2 %
and 8 %; what half precision rounds is below a hundredth."""


class Words(Record):
    """The words whose rows of the word embeddings moved.

    Attributes:
        ids: of the tokens, ascending, without those that mark where a text begins and ends.
        texts: the same in words; a rare word is several tokens.
        marks: how many tokens beside these mark a text's beginning, end or masked places.
        complete: whether no other word was used.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    marks: int
    complete: bool


class Disclosure(Record):
    """One capture.

    Attributes:
        match: kind of the reply and how its tensors were matched.
        claimed: number of examples that the client states.
        labels: class -> count, for the known or the claimed number of examples.
        no_labels: why there are none.
        batches: that its normalisation layers counted.
        layers: of these layers, each of which gives away mean and variance of the batches.
        known: facts that the server knows.
        words: of texts; None where they cannot be read.
        no_words: why there are none; empty of other data.
        stated: single values in the client's metrics, which nobody believes.
        largest: the largest change of an entry.
        records: that the client sent, the model first, each with what it was read as.
        evenness: that of a usual tensor, as a share of it, near 1 where steps are signs.
    """

    key: CaptureKey
    match: str
    claimed: int | None
    labels: dict[str, int]
    no_labels: str
    batches: int | None
    layers: int
    known: tuple[str, ...]
    words: Words | None = None
    no_words: str = ""
    stated: dict[str, Setting] = Field(default_factory=dict)
    records: tuple[str, ...] = ()
    largest: float = 0.0
    evenness: float = 0.0


def disclosed(victim: Update, stated: Mapping[str, Setting] | None = None) -> Disclosure:
    """What an update gives away.

    Args:
        victim: the update.
        stated: single values in the client's metrics.
    """
    seen, task = victim.observation, victim.task
    labels, reason = _labels(victim)
    words, no_words = _words(victim)
    layers, batches = {}, None
    if task.modality == "image":
        layers = tracking_layers(seen, task.build())
        counted = [counted_batches(seen, name, layer) for name, layer in layers.items()]
        batches = next((count for count in counted if count is not None), None)
    return Disclosure(
        key=seen.key,
        match=f"{seen.kind}, {victim.match}",
        claimed=victim.claimed_examples,
        labels=labels,
        no_labels=reason,
        batches=batches,
        layers=len([name for name in layers if f"{name}.running_mean" in seen.received]),
        known=tuple(fact for fact in FACTS if seen.knowledge.has(fact, "stated")),
        words=words,
        no_words=no_words,
        stated=dict(stated or {}),
        records=tuple(map(str, victim.reading.wire)),
        **_sizes(seen),
    )


def _sizes(seen: Observation) -> dict[str, float]:
    """The largest change of an entry, and that of the median tensor as a share of it."""
    moved = [
        float(value.abs().max())
        for value in seen.update().values()
        if value.numel() >= _ENTRIES and bool(value.any())
    ]
    if seen.kind == "gradient" or not moved:
        return {}
    return {"largest": max(moved), "evenness": median(moved) / max(moved)}


def _words(victim: Update) -> tuple[Words | None, str]:
    task = victim.task
    if not isinstance(task, TextTask):
        return None, ""
    try:
        moved = moved_words(victim.observation, task.blank())
    except CannotAttack as error:
        return None, error.reason
    ids = tuple(token for token in moved.ids if token not in task.spec.special_ids)
    if not ids:
        return None, "no row of the word embeddings stands out of the noise"
    # The last word of a causal model's text predicts nothing, and moves no row.
    whole = moved.complete and task.spec.kind != "language-modelling"
    texts = tuple(task.text([token]).strip() for token in ids)
    return Words(ids=ids, texts=texts, marks=len(moved.ids) - len(ids), complete=whole), ""


def _labels(victim: Update) -> tuple[dict[str, int], str]:
    seen, task = victim.observation, victim.task
    if not task.spec.num_classes or task.spec.target != "class":
        return {}, ""
    count = seen.knowledge.num_examples or victim.claimed_examples
    if count is None:
        return {}, "the number of examples is not known. Pass --knows num_examples=N"
    facts = seen.knowledge.model_copy(update={"num_examples": count})
    known = type(seen)(seen.key, seen.sent, seen.received, seen.kind, facts)
    try:
        labels = known_labels(known, task, generator(0, "labels", str(seen.key)), Job())
    except CannotAttack as error:
        return {}, error.reason
    except FedsimError as error:
        return {}, str(error)
    except Exception as error:  # the network is foreign code
        return {}, f"{type(error).__name__}: {message_of(error)}"
    if reason := _uncounted(seen, find_head(task.build())):
        return {}, reason
    names = task.spec.class_names
    counts = Counter(int(label) for label in labels.flatten().tolist())
    return {names[k] if k < len(names) else str(k): n for k, n in sorted(counts.items())}, ""


def _uncounted(seen: Observation, head: Head) -> str:
    """Why the counts that a bias gives are none of the client's; empty if nothing is seen."""
    update, known = seen.update(), seen.knowledge
    if _blurred(update, head.bias):
        return (
            "the last layer's bias gradient does not add up to 0, as that of a cross-entropy does: "
            "noise hides the counts"
        )
    if head.weight in update and read(update[head.weight]).signs:
        return "the last layer's entries are of one size, as Adam's first step makes them"
    if seen.kind != "gradient" and (known.local_steps or 1) > 1 and known.optimizer is None:
        return (
            "how long several steps are together depends on the optimizer, which the server does "
            "not know. Pass --knows optimizer=sgd, or momentum"
        )
    return ""


def _blurred(update: Tensors, name: str | None) -> bool:
    """Whether more than its own classes stand in a bias; where entries were cut it is not known."""
    if name is None or name not in update:
        return False
    bias = update[name]
    uncut = len(bias) > 1 and bool((bias != 0).all()) and len(bias.abs().unique()) > 1
    return uncut and float(bias.sum().abs()) > _BALANCE * float(bias.norm())
