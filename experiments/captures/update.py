"""One client's update, from tensors that a program holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from attacks.foreign.readings import OpenReply
from attacks.observed.input_range import likely_range, range_evidence
from attacks.observed.readings import on_grid
from attacks.observed.running_statistics import facts_shown
from attacks.observed.weight_decay import loss_penalty, without_decay
from experiments.captures.facts import facts_of
from experiments.captures.multiples import multiple_of
from experiments.captures.reading import Finding, Reading, descending
from experiments.captures.second_records import without_weights
from fedsim.errors import ConfigError
from fedsim.knowledge import FACTS, Knowledge, Origin
from fedsim.models.adapters import is_adapter
from fedsim.precision import at_own_precision
from fedsim.reply_kind import weights_behind
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.tasks.base import Task
from fedsim.tasks.given import Loss, Model, task_of
from fedsim.tasks.inputs import Range
from fedsim.tasks.own_tokenizer import doubt
from fedsim.tensor_names import Given, Named, lacks, named, own_tensors, weights_of
from fedsim.types import Tensors

_WORDS: dict[Kind, str] = {
    "weights": "after",
    "difference": "differences",
    "pseudo-gradient": "pseudo-gradients",
    "gradient": "gradients",
}


@dataclass(frozen=True)
class Update:
    """What a server saw of one client, with the model that it is about; no private example.

    Attributes:
        reading: the tensors, the facts that the server knows, and how they were read.
        task: the model's architecture and loss.
        claimed_examples: how many examples a client of another application says it used, which
            attacks try where the number is not known; None if it says nothing.
        difference: the same reply read as a difference, which attacks try as well; None where it
            can be no scaled difference.

    Example:
        The gradient of one picture:

        >>> import fedsim, torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> def loss(network, batch):
        ...     return torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels)
        >>> picture, label = torch.rand(1, 1, 8, 8), torch.tensor([3])
        >>> value = torch.nn.functional.cross_entropy(net(picture), label)
        >>> gradients = torch.autograd.grad(value, list(net.parameters()))
        >>> victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
        >>> print(victim)  # doctest: +ELLIPSIS
        gradient of ...
    """

    reading: Reading
    task: Task
    claimed_examples: int | None = None
    difference: Observation | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        model: Model,
        *,
        gradients: Given | None = None,
        before: Given | None = None,
        after: Given | None = None,
        lr: float | None = None,
        tokenizer: Any = None,  # noqa: ANN401
        task: str = "",
        loss: Loss | str | None = None,
        image_shape: tuple[int, ...] = (),
        input_shape: tuple[int, ...] = (),
        input_range: Range | None = None,
        max_length: int = 0,
        base: Given | nn.Module | None = None,
        **knows: Any,  # noqa: ANN401
    ) -> Update:
        """The gradient of one batch, or the weights before and after local training.

        Args:
            model: a network with the weights that the client started from; or with ``before`` a
                name or a function, see ``fedsim.tasks.given.task_of``.
            gradients: by name, or in the order of ``model.parameters()``.
            before: the weights that the client started from, if they are not those of ``model``.
            after: the weights that the client sent.
            lr: the client's learning rate, if the attacker knows it.
            tokenizer: of a text model.
            task: what a text model learns, if its class does not tell.
            loss: of a network of images: a function of (model, batch).
            image_shape: of a network of images: ``(channel, height, width)``.
            input_shape: of rows of a table, ``(column,)``, or windows of sensors, ``(channel,
                time)``, instead of ``image_shape``.
            input_range: smallest and largest value of an input, or of each channel, which attacks
                that search need; if not given, the usual one that the first layers show, or [0, 1].
            max_length: longest text in tokens that attacks look for; 64 if 0.
            base: the weights that are in neither ``before`` nor ``after``, such as those under
                adapters; those of ``model`` if that is a network.
            **knows: further facts that the attacker knows, all others being withheld: ``labels``,
                ``num_examples``, ``lengths``, ``batch_size``, ``local_steps``, ``optimizer``,
                ``train_mode``, ``defense``; see ``fedsim.knowledge.Knowledge``.

        Raises:
            ConfigError: something is missing or does not fit.
        """
        shapes = _shapes(after if gradients is None else gradients)
        made = task_of(
            model,
            tokenizer=tokenizer,
            task=task,
            loss=loss,
            image_shape=image_shape,
            input_shape=input_shape,
            input_range=input_range,
            max_length=max_length,
            arrays=shapes,
        )
        sent = _one_kind(gradients, after, before, model)
        facts = facts_of(made, knows if lr is None else {**knows, "learning_rate": lr})
        if gradients is not None:
            facts = facts.model_copy(update={"local_steps": 1})
        reading = update_of(
            made,
            sent,
            gradients if after is None else after,
            kind="weights" if gradients is None else "gradient",
            base=base if base is not None or not isinstance(model, nn.Module) else model,
            knowledge=facts,
        )
        reading = without_decayed(descending(reading, made), made)
        shown = None if input_range else range_evidence(reading.observation, made)
        likely = None if shown is None else likely_range([shown])
        if likely is None or likely.form.plain:
            return cls(reading, made)
        return cls(reading.finding(Finding("range", str(likely))), likely.of(made))

    @property
    def observation(self) -> Observation:
        """What attacks see."""
        return self.reading.observation

    @property
    def match(self) -> str:
        """How the tensors were matched to the model's, and what was found, a sentence."""
        return self.reading.match

    @property
    def doubt(self) -> str:
        """Why the model may not explain the reply; empty if it may."""
        return self.reading.doubt

    @property
    def reply(self) -> OpenReply:
        """As attacks read it."""
        return OpenReply(self.observation, self.claimed_examples, self.difference, self.doubt)

    def __str__(self) -> str:
        seen, spec = self.observation, self.task.spec
        known = ", ".join(f for f in FACTS if seen.knowledge.has(f, "stated")) or "nothing more"
        longest = ""
        if self.task.modality == "text":
            longest = f", texts of at most {spec.input_shape[0]} tokens"
        claim = (
            "" if self.claimed_examples is None else f"; claims {self.claimed_examples} examples"
        )
        doubted = doubt(self.task)
        cohort = seen.knowledge.cohort
        wire = self.reading.wire
        beside = f" It sent {', '.join(map(str, wire))}." if len(wire) > 1 else ""
        whose = "" if cohort == 1 else f" The reply is the mean of {cohort} clients."
        return (
            f"{seen.kind} of {spec.model} ({spec.kind}{longest}): {self.match}. "
            f"The attacker knows {known}{claim}.{whose}{beside}"
            + (f" Note: {doubted}." if doubted else "")
        )


def update_of(
    task: Task,
    before: Given,
    received: Given | None,
    *,
    kind: Kind,
    base: Given | nn.Module | None,
    knowledge: Knowledge,
    key: CaptureKey | None = None,
    claimed_examples: int | None = None,
    network: nn.Module | None = None,
) -> Reading:
    """Match tensors to the task's model and check them; see ``Update.of``.

    Args:
        task: the model and its loss.
        before: what the server sent.
        received: what the client sent.
        kind: what was received.
        base: where weights come from that were not sent; None to refuse where there are any.
        knowledge: what the server knows.
        key: round and client.
        claimed_examples: as in ``Update``; by as many a client may have multiplied its weights.
        network: a network of the task, to save the time of building one.

    Raises:
        ConfigError: the tensors do not fit.
    """
    network = task.blank() if network is None else network
    sent = named(before, network, "before", partial=key is not None)
    what = _WORDS[kind]
    got = named({} if received is None else received, network, what, partial=key is not None)
    tensors, completed = _completed(sent, base, network)
    reply = {name: value for name, value in got.tensors.items() if value.is_floating_point()}
    _check_moved(reply, tensors, kind, key, task.doubt)
    unsigned = multiplied = None
    if kind == "gradient":
        scored, unsigned = without_weights(reply, tensors)
        got = replace(got, tensors=got.tensors | scored)
    times = multiple_of(reply, tensors, claimed_examples) if kind == "weights" else 1
    weights = got.tensors
    if times != 1:
        weights = {k: v / times if v.is_floating_point() else v for k, v in weights.items()}
        multiplied = Finding("multiplied", f"they are {times} times weights, and were divided")
    tensors, whole = at_own_precision(tensors), at_own_precision(weights)
    whole, kind = _as_weights(tensors, whole, kind)
    observation = Observation(  # copied, as a program trains on with what it handed over
        key or CaptureKey(round=1, client=0),
        {name: value.clone() for name, value in tensors.items()},
        {name: value.clone() for name, value in whole.items()},
        kind,
        knowledge,
    )
    observation, counted = _counted(observation, network)
    absent = None if key is None else _absent(lacks(sent, network), lacks(got, network), reply)
    matched = Finding("matched", f"{what}: {got.how}")
    doubted = Finding("task", task.doubt, hides=True)
    return Reading(observation).finding(
        matched, completed, multiplied, counted, doubted, unsigned, absent
    )


def _counted(seen: Observation, network: nn.Module) -> tuple[Observation, Finding | None]:
    """With facts that nobody stated and normalisation layers show, and a word of them."""
    known = seen.knowledge.adding(facts_shown(seen, network), Origin(source="counted"))
    steps, shown = known.local_steps or 1, replace(seen, knowledge=known)
    if "local_steps" not in known.origins:
        return shown, None
    # Gradients of several batches may be accumulated into one step.
    taken = "es, taken for as many steps" if steps > 1 else ""
    return shown, Finding("counted", f"its normalisation layers counted {steps} batch{taken}")


def _absent(unsent: Sequence[str], silent: Sequence[str], reply: Tensors) -> Finding | None:
    """That a client may have weights of its own where none came; frozen ones are everyone's.

    Whoever sends adapters alone trains nothing else.
    """
    if not silent or any(map(is_adapter, reply)):
        return None
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    advice = "; pass the client's, base=state_dict or --base FILE" if unsent else ""
    return Finding(
        "absent",
        f"{silent[0]!r}{more} did not come back: where the client has its own (a personalised "
        f"head, FedBN), nothing behind them is proven{advice}",
        hides=True,
    )


def _as_weights(sent: Tensors, reply: Tensors, kind: Kind) -> tuple[Tensors, Kind]:
    """Differences as the weights behind them, whose rounding they hold, unless it was coarser."""
    floats = {name: value for name, value in reply.items() if value.is_floating_point()}
    coarse = any(value.itemsize < torch.float32.itemsize for value in floats.values())
    if kind not in ("difference", "pseudo-gradient") or coarse or on_grid(floats):
        return reply, kind
    weights = {
        name: torch.from_numpy(weights_behind(sent[name].numpy(), value.numpy(), kind))
        for name, value in reply.items()
    }
    return weights, "weights"


def _one_kind(
    gradients: Given | None, after: Given | None, before: Given | None, model: Model
) -> Given:
    """The weights that the client started from."""
    if (gradients is None) == (after is None):
        raise ConfigError(
            "Update.of: pass either gradients=, or before= and after=, the weights of a local "
            "training."
        )
    if before is not None:
        return before
    if isinstance(model, nn.Module) and gradients is not None:
        return weights_of(model)
    raise ConfigError(
        "before: the weights that the client started from are missing. Pass before=, a copy of "
        "model.state_dict() from before the training."
    )


def without_decayed(reading: Reading, task: Task) -> Reading:
    """The update without what weight decay or a penalty left of the weights that were sent."""
    if penalty := loss_penalty(reading.observation, task):
        return reading.finding(Finding("penalty", penalty, hides=True))
    seen, said = without_decay(reading.observation, task)
    return reading.finding(Finding("decay", said), observation=seen)


def _shapes(given: Given | None) -> dict[str, tuple[int, ...]]:
    if not isinstance(given, Mapping):
        return {}
    return {str(name): tuple(getattr(value, "shape", ())) for name, value in given.items()}


def _completed(
    sent: Named, base: Given | nn.Module | None, network: nn.Module
) -> tuple[Tensors, Finding | None]:
    """What was sent, with the rest from ``base``; nothing is drawn at random."""
    lacking = lacks(sent, network)
    if not lacking:
        return sent.tensors, None
    tensors = weights_of(base) if isinstance(base, nn.Module) else base
    more = {} if tensors is None else named(tensors, network, "base").tensors
    if lost := [name for name in lacking if name not in more]:
        raise ConfigError(
            f"base: {len(lost)} of the model's tensors are not on the wire, such as {lost[0]!r}. "
            "Pass the weights that the clients start from: base=model, or --base FOLDER."
        )
    whole = {name: sent.tensors.get(name, more.get(name)) for name in own_tensors(network)}
    tensors = {name: value for name, value in whole.items() if value is not None}
    return tensors, Finding(
        "completed", f"{len(lacking)} tensors that were not sent come from base"
    )


def _check_moved(
    reply: Tensors, sent: Tensors, kind: Kind, key: CaptureKey | None, doubt: str
) -> None:
    if not reply:
        raise ConfigError(
            "reply: all tensors are of whole numbers, so it was quantised in a way that is not "
            "known. Capture a client that sends floats."
        )
    if kind == "weights":
        still = all(torch.equal(value, sent[k].to(value.dtype)) for k, value in reply.items())
    else:
        still = not any(bool(value.any()) for value in reply.values())
    if still and key is not None:
        raise ConfigError(
            f"{key}: the reply equals what was sent, or is zero, so the client did not train. "
            "Attack another capture."
        )
    if still and kind == "gradient" and doubt:
        raise ConfigError(f"gradients: all are zero. For this loss that may be right: {doubt}.")
    if still and kind == "gradient":
        raise ConfigError(
            "gradients: all are zero. Call loss.backward() before, and read them before "
            "optimizer.zero_grad(); a text of one token has none."
        )
    if still:
        raise ConfigError(
            "after: equals before, so there is no update. Copy the weights before the training: "
            "state_dict() shares their memory, and {k: v.clone() for k, v in ...} does not."
        )
