"""Secure aggregation as an observation: of each cohort only the sum reaches the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Error, Message
from flwr.app.message_type import MessageType
from flwr.serverapp import Grid

from fedsim.knowledge import Knowledge
from fedsim.participation import cohorts, mean
from fedsim.wire import TrainReply, round_of

_OFFERED = frozenset({"get_node_ids", "create_message", "run", "set_run", "incidents"})
"""What the inner grid offers that is no reply."""


class SecureAggregation:
    """A grid that answers with one reply a cohort, the mean of its clients by their examples.

    It stands for what the protocol of Bonawitz et al. 2017 computes, without the cryptography: the
    server, any strategy and eavesdropper in it included, is never given a single reply. Sums are
    exact, in float64 and rounded once to the wire's dtype, where real protocols work on quantised
    integers; the size of keys, shares and masks is not counted. A cohort of which a client failed
    comes out as that client's error, never as the sum of those that are left.

    Under FedSGD a cohort's reply is that of one virtual client with the batches of all; two cases
    are not: a language model weighs tokens and not examples, and batch normalisation saw each
    client's batch alone. Buffers are averaged like parameters, integers among them to the nearest.

    Flower 1.41 has SecAgg+ for its legacy API alone: ``SecAggPlusWorkflow`` raises ``TypeError``
    for a context that is no ``LegacyContext``, drives a ``flwr.server.strategy`` by
    ``configure_fit``, and ``secaggplus_mod`` reads the reply as a ``FitRes``. No strategy of the
    Message API runs under it; Flower's pull request 4615, which would part the protocol from the
    legacy API, is open. Its keys come from the system, so that no run would repeat either.

    Args:
        inner: the grid that the clients answer on, its nodes in the order of the clients.
        size: clients in a cohort; divides the number of clients asked in a round.
        seed: of the experiment; cohorts are drawn from it anew each round.
    """

    def __init__(self, inner: Grid, size: int, seed: int) -> None:
        self._inner, self._size, self._seed = inner, size, seed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name not in _OFFERED:  # others, such as pull_messages, would hand out single replies
            raise AttributeError(name)
        return getattr(self._inner, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """One reply for each cohort of the clients asked to train, by its number.

        Raises:
            ValueError: some are asked to train and others for something else, or no whole cohorts.
        """
        messages = list(messages)
        kinds = {message.metadata.message_type.partition(".")[0] for message in messages}
        if MessageType.TRAIN in kinds and len(kinds) > 1:  # single replies would come out
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
        return [
            _answer(number, [asked[c] for c in members], [replies.get(c) for c in members])
            for number, members in enumerate(cohorts(self._seed, round_, list(asked), self._size))
        ]


def _answer(number: int, asked: Sequence[Message], replies: Sequence[Message | None]) -> Message:
    """The cohort's mean, or the first error in it."""
    parts = []
    for message, reply in zip(asked, replies, strict=True):
        if reply is None:
            return Message(Error(code=1, reason="no reply came"), reply_to=message)
        if reply.has_error():
            return reply
        parts.append(TrainReply.read(reply))
    return pooled(number, parts).write(asked[0])


def pooled(number: int, parts: Sequence[TrainReply]) -> TrainReply:
    """The mean of a cohort's replies by their numbers of examples, numbered as the cohort."""
    total = sum(part.num_examples for part in parts)
    shares = [part.num_examples / total for part in parts]
    losses = zip(shares, parts, strict=True)
    return TrainReply(
        number,
        total,
        sum(share * part.loss for share, part in losses),
        parts[0].kind,
        Knowledge.pooled([part.knowledge for part in parts]),
        mean([part.tensors for part in parts], shares),
    )
