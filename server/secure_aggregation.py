"""Secure aggregation as seen by the server: it receives only the sum of each cohort."""

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Error, Message
from flwr.app.message_type import MessageType
from flwr.serverapp import Grid

from fedsim.knowledge import Knowledge
from fedsim.participation import cohorts, mean
from fedsim.wire import TrainReply, round_of

_OFFERED = frozenset({"get_node_ids", "create_message", "run", "set_run", "incidents"})
"""Members of the inner grid that do not expose replies."""


class SecureAggregation:
    """A grid that returns one reply per cohort, the weighted mean of its clients' replies.

    The weights are the numbers of examples, ``n_k / sum n``. This is what the protocol of Bonawitz
    et al. 2017 computes, without the cryptography: no single reply ever reaches the server,
    including any strategy or eavesdropper in it. Sums are taken in float64 and rounded once to the
    wire's dtype, while real protocols work on quantised integers; the size of keys, shares and
    masks is not counted. If a client fails, its cohort yields that client's error, never the sum of
    the rest.

    Under FedSGD a cohort's reply equals that of one virtual client with the batches of all, with
    two exceptions: a language model weighs tokens rather than examples, and batch normalisation
    sees each client's batch separately. Buffers are averaged like parameters; integer buffers are
    rounded.

    Flower 1.41 supports SecAgg+ only in its legacy API: ``SecAggPlusWorkflow`` raises ``TypeError``
    for a context that is not a ``LegacyContext`` and drives a ``flwr.server.strategy`` through
    ``configure_fit``, and ``secaggplus_mod`` reads the reply as a ``FitRes``. No strategy of the
    Message API runs under it; Flower's pull request 4615, which would separate the protocol from
    the legacy API, is open. Its keys come from the system's randomness, so runs would not be
    repeatable either.

    Args:
        inner: the grid that the clients answer on, its nodes in the order of the clients.
        size: number of clients in a cohort; it divides the number of clients of a round.
        seed: seed of the experiment, from which cohorts are drawn.
        fixed: whether they are those of the first round for ever, or drawn anew in each round.
    """

    def __init__(self, inner: Grid, size: int, seed: int, *, fixed: bool = False) -> None:
        self._inner, self._size, self._seed, self._fixed = inner, size, seed, fixed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name not in _OFFERED:  # others, such as pull_messages, would expose single replies
            raise AttributeError(name)
        return getattr(self._inner, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """One reply for each cohort of the clients asked to train, in the order of the cohorts.

        Raises:
            ValueError: only some messages ask for training, or the cohorts are not filled.
        """
        messages = list(messages)
        kinds = {message.metadata.message_type.partition(".")[0] for message in messages}
        if MessageType.TRAIN in kinds and len(kinds) > 1:  # single replies would be exposed
            raise ValueError(f"messages of types {sorted(kinds)} at once; send 'train' alone")
        if MessageType.TRAIN not in kinds:
            return list(self._inner.send_and_receive(messages, timeout=timeout))
        clients = {node: client for client, node in enumerate(self._inner.get_node_ids())}
        asked = {clients[message.metadata.dst_node_id]: message for message in messages}
        round_ = round_of(messages[0])
        replies = {
            clients[reply.metadata.src_node_id]: reply
            for reply in self._inner.send_and_receive(messages, timeout=timeout)
        }
        drawn_in = 1 if self._fixed else round_
        return [
            _answer(number, [asked[c] for c in members], [replies.get(c) for c in members])
            for number, members in enumerate(cohorts(self._seed, drawn_in, list(asked), self._size))
        ]


def _answer(number: int, asked: Sequence[Message], replies: Sequence[Message | None]) -> Message:
    """The cohort's mean, or the error of its first client that failed."""
    parts = []
    for message, reply in zip(asked, replies, strict=True):
        if reply is None:
            return Message(Error(code=1, reason="no reply came"), reply_to=message)
        if reply.has_error():
            return reply
        parts.append(TrainReply.read(reply))
    return pooled(number, parts).write(asked[0])


def pooled(number: int, parts: Sequence[TrainReply]) -> TrainReply:
    """The cohort's reply: the mean of its clients' replies, weighted by numbers of examples."""
    total = sum(part.num_examples for part in parts)
    shares = [part.num_examples / total for part in parts]
    losses = zip(shares, parts, strict=True)
    return TrainReply(
        number,
        total,
        sum(share * part.loss for share, part in losses),
        parts[0].kind,
        Knowledge.pooled([part.knowledge for part in parts], [part.client for part in parts]),
        mean([part.tensors for part in parts], shares),
    )
