"""Whether an exact attack can work at all, before any is run: what a reply holds against ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.adapters import AdapterSpan
from attacks.closed_form import convolutions
from attacks.first_linear import find_first_linear
from attacks.judges import best_judge, read_traces
from attacks.spear import Spear
from attacks.subspace import Subspace
from clients.train import schedule
from fedsim.capture import CaptureKey, Observation
from fedsim.cell import CellConfig
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models.embeddings import embedding_names
from fedsim.participation import cohorts, draw
from fedsim.seeds import generator
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows, Tensors

Colour: TypeAlias = Literal["green", "amber", "red"]
_REPLIES = 32  # looked at, the first ones
_SHORT = 50  # rows, of which the shortest is tried


@dataclass(frozen=True, slots=True)
class Light:
    """What an exact attack on the replies of a cell comes up against.

    Attributes:
        colour: green where nothing is in the way, red where the attack cannot work, amber where it
            works on some replies or in part.
        what: what is counted in each reply.
        counts: one for each reply that was looked at.
        limit: the largest count that the attack takes; None where no number decides.
        reason: why it is not green.
    """

    attack: str
    colour: Colour
    what: str
    counts: tuple[int, ...]
    limit: int | None
    reason: str = ""

    @property
    def number(self) -> str:
        """``9 (4 to 23) of 381``: median, range and limit."""
        low, high = min(self.counts), max(self.counts)
        spread = "" if low == high else f" ({low} to {high})"
        of = "" if self.limit is None else f" of {self.limit}"
        return f"{median(self.counts):g}{spread}{of}"

    def text(self) -> str:
        """One line."""
        line = f"{self.attack:<15}{self.colour:<7}{self.what} {self.number}"
        return f"{line}: {self.reason}" if self.reason else line


@dataclass(frozen=True, slots=True)
class Reply:
    """What one reply is about.

    Attributes:
        rows: positions among the private rows; of all clients of a cohort.
        steps: local steps.
    """

    rows: tuple[int, ...]
    steps: int


def replies(config: CellConfig, labels: Tensor) -> Iterator[Reply]:
    """The replies that the server will keep, by round and client, as the clients draw them."""
    run, seed = config.federation, config.seed
    parts = partition(labels, run.clients, run, seed)
    for round_ in config.capture.rounds or range(1, run.rounds + 1):
        drawn = draw(seed, round_, run.clients, run.participation)
        groups: Sequence[tuple[int, ...]] = [(client,) for client in drawn]
        if run.cohort > 1:
            groups = cohorts(seed, round_, drawn, run.cohort)
        elif config.capture.clients:
            groups = [group for group in groups if group[0] in config.capture.clients]
        for group in groups:
            rows: list[int] = []
            steps = 0
            for client in group:
                plan = schedule(run, seed, len(parts[client]), round_, client)
                used = dict.fromkeys(position for step in plan for position in step)
                rows += [parts[client][position] for position in used]
                steps = max(steps, len(plan))
            yield Reply(tuple(rows), steps)


def lights(config: CellConfig, task: Task, private: Rows, weights: Tensors) -> list[Light]:
    """The lights of the exact attacks on what the model is, at the first weights.

    The attacks' own checks decide on the model, by one sentence's gradient without a defense;
    the counts are those of the private rows. Nothing is attacked.
    """
    some = tuple(islice(replies(config, private.labels), _REPLIES))
    lamp = _Lamp(config, task, private, weights, some)
    found = lamp.text() if isinstance(task, TextTask) else lamp.images()
    return [lamp.dimmed(light) for light in found]


@dataclass(frozen=True)
class _Lamp:
    config: CellConfig
    task: Task
    private: Rows
    weights: Tensors
    replies: tuple[Reply, ...]

    @cached_property
    def network(self) -> nn.Module:
        """As the clients train it: what they freeze needs no gradient."""
        network = self.task.model(self.weights).train(self.config.federation.train_mode)
        build_chain(self.config.defense, "defense").on_model(network)
        return network

    @cached_property
    def sent(self) -> frozenset[str]:
        """The parameters that clients send."""
        return frozenset(k for k, p in self.network.named_parameters() if p.requires_grad)

    @cached_property
    def examples(self) -> tuple[int, ...]:
        """In each reply."""
        return tuple(len(reply.rows) for reply in self.replies)

    @cached_property
    def dropout(self) -> bool:
        """Whether masks change what a layer gets."""
        parts = [part for part in self.network.modules() if isinstance(part, nn.Dropout)]
        return any(part.training and part.p > 0 for part in parts)

    def dimmed(self, light: Light) -> Light:
        """Amber instead of green, where the update is not one exact gradient."""
        if light.colour != "green":
            return light
        run = self.config.federation
        if lost := sorted(build_chain(self.config.defense, "defense").distortions - {"scale"}):
            what = " and ".join(lost)
            reason = f"the defense leaves no exact gradient ({what})"
        elif run.protocol == "fedavg" and run.optimizer in ("adam", "adamw"):
            reason = f"an update by {run.optimizer} is no gradient"
        elif (steps := max(reply.steps for reply in self.replies)) > 1:
            reason = f"the update sums {steps} steps"
        elif self.dropout and light.attack != "embedding_rows":
            reason = "dropout is on, and its masks are not known"
        else:
            return light
        return replace(light, colour="amber", reason=reason)

    def _light(
        self, attack: str, what: str, counts: tuple[int, ...], limit: int, more: str = ""
    ) -> Light:
        """By how many counts are within the limit."""
        fitting = sum(count <= limit for count in counts)
        if fitting == len(counts):
            return Light(attack, "amber" if more else "green", what, counts, limit, more)
        reason = f"{len(counts) - fitting} of {len(counts)} replies hold more"
        return Light(attack, "amber" if fitting else "red", what, counts, limit, reason)

    def text(self) -> Iterator[Light]:
        """span, embedding_rows and april."""
        assert isinstance(self.task, TextTask)
        unseen = 1 if self.task.spec.kind == "language-modelling" else 0
        inputs, tokens = [], []
        for reply in self.replies:
            batch = self.task.encode(self.private.take(reply.rows))
            assert batch.mask is not None
            # A causal model's last token predicts nothing, and leaves no trace.
            lengths = (batch.mask.sum(1) - unseen).tolist()
            lines = [
                ids[:length] for ids, length in zip(batch.inputs.tolist(), lengths, strict=True)
            ]
            inputs.append(len({place for line in lines for place in enumerate(line)}))
            tokens.append(sum(lengths))
        yield self._span(self.task, tuple(inputs))
        yield from self._tables(tuple(tokens))

    def _span(self, task: TextTask, inputs: tuple[int, ...]) -> Light:
        what = "different inputs"
        some = self.private.take(range(min(len(self.private), _SHORT)))
        batch = task.encode(some)
        assert batch.mask is not None
        shortest = int(batch.mask.sum(1).argmin())
        network = self.network.eval()
        received = task.gradient(network, task.encode(some.take([shortest])))
        run = self.config.federation
        known = Knowledge(optimizer=run.optimizer if run.protocol == "fedavg" else None)
        key = CaptureKey(round=1, client=0)
        observation = Observation(key, self.weights, received, "gradient", known)
        try:
            traces = read_traces(observation, task, network)
            behind = best_judge(traces.layers, traces.before, observation).subspace
        except CannotAttack as error:
            return Light("span", "red", what, inputs, None, _reason(error))
        limit = min(_room(traces.before), behind.most - 1)
        return self._light("span", what, inputs, limit)

    def _tables(self, tokens: tuple[int, ...]) -> Iterator[Light]:
        names = embedding_names(self.network)
        everything = dict(self.network.named_parameters(remove_duplicate=False))
        word, what = names.word, "tokens"
        single = max(self.examples) == 1
        if word is None or word not in self.sent:
            yield Light(
                "embedding_rows", "red", what, tokens, None, "the word embeddings are not sent"
            )
        else:
            width = everything[word].shape[1]
            tied = any(own is everything[word] for name, own in everything.items() if name != word)
            order = names.position in self.sent
            more = "" if single and order else "which words, not in which sentence or order"
            # A tied head's rows take one dimension a token; so do the positions.
            limit = (width - 1 if more else width // 2) if tied else width
            light = self._light("embedding_rows", what, tokens, limit, more)
            if light.colour == "red" and not tied:
                light = replace(light, colour="amber", reason="which words, not in which order")
            yield light
        if not single:
            reason = f"a reply holds {max(self.examples)} examples, and it takes one"
            yield Light("april", "red", "examples", self.examples, 1, reason)
        elif names.position not in self.sent or names.position is None:
            yield Light("april", "red", what, tokens, None, "the position embeddings are not sent")
        else:
            width = everything[names.position].shape[1]
            halved = word in self.sent and any(
                own is everything[str(word)] for name, own in everything.items() if name != word
            )
            yield self._light("april", what, tokens, width // 2 if halved else width)

    def images(self) -> Iterator[Light]:
        """spear, ratio and closed_form."""
        network = self.network.eval().double()
        try:
            layer = find_first_linear(network, self.task, generator(self.config.seed, "light"))
        except CannotAttack as error:
            for attack in ("spear", "ratio"):
                yield Light(attack, "red", "examples", self.examples, None, _reason(error))
        else:
            linear = network.get_submodule(layer.module)
            assert isinstance(linear, nn.Linear)
            yield self._spear(linear)
            yield self._ratio(linear)
        yield self._closed_form(network)

    def _spear(self, linear: nn.Linear) -> Light:
        limit = min(linear.out_features, linear.in_features + 1) - 1
        drawn = Spear().samples
        likely = 1 + int(math.log2(drawn))
        more = ""
        if max(self.examples) > likely:
            more = f"of 2^(B-1) submatrices it draws {drawn:,}, enough for about B = {likely}"
        return self._light("spear", "examples", self.examples, limit, more)

    def _ratio(self, linear: nn.Linear) -> Light:
        alone = []
        for reply in self.replies:
            images = self.task.encode(self.private.take(reply.rows)).inputs.flatten(1).double()
            active = F.linear(images, linear.weight, linear.bias) > 0
            alone.append(int(((active & (active.sum(0) == 1)).sum(1) > 1).sum()))
        what, total = "examples with two units of their own", sum(self.examples)
        share = sum(alone) / total
        colour: Colour = "green" if share == 1 else "amber" if share else "red"
        reason = "" if share == 1 else f"{share:.0%} of the examples, at the first weights"
        return Light("ratio", colour, what, tuple(alone), None, reason)

    def _closed_form(self, network: nn.Module) -> Light:
        what = "examples"
        try:
            layers = convolutions(network, self.task.spec.input_shape)
        except CannotAttack as error:
            return Light("closed_form", "red", what, self.examples, 1, _reason(error))
        if missing := [one.name for one in layers if f"{one.name}.weight" not in self.sent]:
            reason = f"{missing[0]!r} is not sent"
            return Light("closed_form", "red", what, self.examples, 1, reason)
        return self._light("closed_form", what, self.examples, 1)


def _room(found: Subspace) -> int:
    """The largest rank that leaves room to tell tokens, as the attack sees it."""
    if isinstance(found, AdapterSpan):
        return found.most - 1
    ranks = range(found.most, 0, -1)
    spans = (Subspace(torch.empty(found.width, rank, device="meta"), found.most) for rank in ranks)
    return next((one.rank for one in spans if not one.full), 0)


def _reason(error: CannotAttack) -> str:
    """What an attack says without its own name and its advice."""
    return str(error).partition(": ")[2].partition(". ")[0]
