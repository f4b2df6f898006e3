"""The span of the inputs of the first block's layers, and the tokens that lie in it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.token_types import used_types
from attacks.tokens.adapters import AdapterSpan, read_adapters
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.candidates import END_SINE, Candidates, candidates, joined, start_of
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.segments import Segments, type_table, types_by_place
from attacks.tokens.subspace import Subspace, rounding, span
from fedsim.errors import CannotAttack
from fedsim.knowledge import MULTIPLES
from fedsim.models.adapters import is_adapter, second_factor
from fedsim.models.embeddings import embedding_names


@dataclass(frozen=True)
class Traces:
    """The traces that tokens leave in the gradients of the first block.

    Attributes:
        model: under attack.
        before: the span of the inputs of query, key and value.
        vocabulary: token ids that may occur in the batch.
    """

    model: AttackedModel
    before: Subspace
    vocabulary: Tensor

    @property
    def layers(self) -> FirstLayers:
        """The network up to its first block."""
        return self.model.layers

    @property
    def weights(self) -> list[str]:
        """Names of the first block's weights that were sent."""
        blocks = (self.layers.tokens, *self.layers.contexts)
        sent = self.model.observation.received
        names = [name for layer in blocks for name in layer.weights(sent)]
        names += [b for name in names if (b := second_factor(name)) != name]
        return [name for name in names if name in sent]

    def shortlist(self, job: Job, behind: int = 0) -> Candidates:
        """The candidate tokens at each position that a sentence may reach.

        The token that usually starts a text is expected, unless the span has no room for it.

        Args:
            job: ends the sweep when its time is up.
            behind: rank behind the attention, which bounds the tokens of the batch.
        """
        if len(self.types) < 2:
            return self._of_type(self.types, self._places(behind), job)
        places = self._places(behind)
        return joined([self._of_type((kind,), places, job) for kind in self.types])

    @property
    def segments(self) -> Segments | None:
        """The types of an encoder's tokens; None where all have the type 0.

        Those of a single text are read off. In a batch the second sentence of a pair stands behind
        the token that ends the first.
        """
        if len(self.types) < 2:
            return Segments(self.types) if any(self.types) else None
        known, position = self.model.observation, embedding_names(self.layers.network).position
        moved, table = self._moved(), type_table(self.layers.network)
        if known.knowledge.num_examples == 1 and moved and position and table in known.received:
            assert self.layers.places is not None
            rows = known.update((position,))[position][self.layers.places.cpu()[slice(*moved)]]
            return types_by_place(known.update((table,))[table], rows)
        return Segments(self.types, self.model.task.tokens([""])[0][-1])

    @cached_property
    def types(self) -> tuple[int, ...]:
        """The types that an encoder's tokens have, as far as the gradient of their table tells."""
        used = None if self.layers.causal else used_types(self.model.observation)
        return tuple(used or (0,))

    def _of_type(self, types: tuple[int, ...], places: range, job: Job) -> Candidates:
        """The candidates of one type; only those of the first one begin a text."""
        layers = self.layers.of_types(Segments(types) if any(types) else None)
        shown = (layers, self.before, self.vocabulary)
        start = start_of(self.model.task) if types[0] == self.types[0] else None
        if start is None:
            return candidates(*shown, places, None, job)
        token = self.vocabulary.new_tensor([start])
        absent = self.before.distance(layers.of_tokens(token, places.start)) > END_SINE
        if bool(absent) or places.start:
            untested = candidates(*shown, places, None, job)
            if untested.clear and (untested.begin == 0 or start in untested.tokens[0].tolist()):
                return untested
        return candidates(*shown, places, start, job)

    def _places(self, behind: int) -> range:
        """Where tokens may stand: those that attacks look for, or more if the gradient shows it."""
        task, observation = self.model.task, self.model.observation
        last = task.spec.kind == "language-modelling"  # predicts nothing
        usual, most = task.max_length - last, task.most_tokens - last
        lengths = max(observation.knowledge.lengths or (most,))
        if self.layers.everywhere:  # a token that repeats adds no dimension here
            return range(min(max(usual, min(most, behind)), lengths))
        rank = self.before.rank + 1
        moved = self._moved()
        if moved is None:
            return range(min(max(usual, rank), most, lengths, rank))
        begin, end = moved
        return range(begin, min(most, end, begin + min(rank, lengths)))

    def last_place(self) -> int:
        """Number of places up to the last that has a gradient; 0 where no table shows them."""
        moved = self._moved()
        return 0 if moved is None else moved[1]

    def _moved(self) -> tuple[int, int] | None:
        """First place and end of the moved rows of the learned table; None if all have moved."""
        observation = self.model.observation
        name = embedding_names(self.layers.network).position
        if self.layers.places is None or name not in observation.received:
            return None
        rows = observation.update((name,))[name].any(1)[self.layers.places.cpu()]
        places = torch.nonzero(rows)[:, 0].tolist()
        return None if len(places) in {0, len(rows)} else (places[0], places[-1] + 1)


def read_traces(model: AttackedModel) -> Traces:
    """Find the first block and the span of its tokens, of an update that is a gradient's multiple.

    Raises:
        CannotAttack: the span is full, because of the client's optimizer or too many tokens.
    """
    optimizer = model.observation.knowledge.optimizer
    if optimizer not in MULTIPLES:
        raise CannotAttack(
            f"an update by {optimizer!r} is not a multiple of a gradient, so its columns span "
            "the whole space",
            "Use optimizer = 'sgd', or FedSGD.",
        )
    words, layers = model.vocabulary(padding=True), model.layers
    before = subspace(model, layers.tokens)
    if isinstance(before, AdapterSpan) and before.full:
        raise CannotAttack(
            f"the gradients of the adapters of {layers.tokens.name!r} are full: {before.reason}",
            "The batch has too many tokens, or noise, signs, pruning or weight decay fill the "
            "span. Take fewer tokens than lora_rank, or choose an attack that does not need the "
            "span.",
        )
    if before.full:
        raise CannotAttack(
            f"the gradient of {layers.tokens.name!r} has rank {before.rank} at width "
            f"{before.width}",
            "The batch has too many tokens, or noise, signs, pruning or weight decay fill the "
            "span. Choose an attack that does not need it.",
        )
    return Traces(model, before, words)


def subspace(model: AttackedModel, layer: Layer) -> Subspace:
    """The span of a layer's inputs, from those of its weights that were sent.

    Raises:
        CannotAttack: no weight was sent, or none has changed.
    """
    observation = model.observation
    names = layer.weights(observation.received)
    if not names:
        raise CannotAttack(
            f"the client does not send {layer.name!r}, whose gradient spans the tokens",
            "Freeze fewer layers.",
        )
    if is_adapter(names[0]):
        adapted = read_adapters(observation, names, model.device)
        if adapted is None:
            raise _nothing(layer)
        return adapted
    side = layer.side(observation.update(names))
    if not side.isfinite().all() or not side.any():
        raise _nothing(layer)
    wire = torch.cat([observation.received[name].flatten() for name in names])
    return span(side.to(model.device), rounding(wire))


def _nothing(layer: Layer) -> CannotAttack:
    return CannotAttack(
        f"the gradient of {layer.name!r} is zero, NaN or infinite",
        "Lower the client's learning rate, or attack another round.",
    )
