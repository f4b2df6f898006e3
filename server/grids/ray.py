"""Clients in a fixed number of Ray processes, which are replaced if they hang or die."""

import time
from dataclasses import dataclass
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.app.user_config import UserConfig

from fedsim.process import unchanged
from server.grids.local import LocalGrid, failed, load_app

_POLL = 0.2


class _Worker:
    """Client app in a process of its own."""

    def __init__(self, reference: str) -> None:
        self.app = load_app(reference)

    def reply(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Run one client; the returned context carries its state to the next round."""
        with unchanged():
            return self.app(message, context), context


@dataclass
class _Call:
    """A message that a worker is processing: its index, the worker, the attempt and its start."""

    index: int
    worker: int
    attempt: int
    started: float


class Workers:
    """A fixed number of client processes, which several grids may use one after another.

    Starting one takes seconds of imports, longer than many simulations.

    Args:
        app: name of the client app, ``module:attribute``, which each process loads.
        count: number of processes, each with one CPU.
        gpus: share of a GPU for each process.
    """

    def __init__(self, app: str, count: int, gpus: float = 0.0) -> None:
        actor = ray.remote(_Worker).options(num_cpus=1, num_gpus=gpus)
        self._actor, self._app = actor, app
        self._actors: list[Any] = [actor.remote(app) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, index: int, message: Message, context: Context) -> Any:  # noqa: ANN401
        """Start a client on a worker; returns Ray's reference to the reply."""
        return self._actors[index].reply.remote(message, context)

    def replace(self, index: int) -> None:
        """Kill a worker if it is alive, and start another in its place."""
        ray.kill(self._actors[index], no_restart=True)
        self._actors[index] = self._actor.remote(self._app)

    def close(self) -> None:
        """Kill all workers, which frees their CPUs and GPUs for the attacks."""
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors = []


class RayGrid(LocalGrid):
    """Runs clients in worker processes on a Ray cluster that has already been started.

    Flower's own backend takes the whole cluster, hands messages to dead actors and waits for hung
    ones forever; see CONTRIBUTING.

    Args:
        workers: the processes that run the clients; they outlive the grid.
        clients: number of nodes.
        run_config: passed to every client in its context.
        timeout: seconds after which a client counts as hung.
        retries: number of times that a client is run again after its worker died or hung.
    """

    def __init__(
        self,
        workers: Workers,
        clients: int,
        run_config: UserConfig,
        *,
        timeout: float = 600.0,
        retries: int = 1,
    ) -> None:
        super().__init__(clients, run_config)
        self._workers, self._timeout, self._retries = workers, timeout, retries

    def execute(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Keep every worker busy until each message has its reply."""
        replies: dict[int, Message] = {}
        waiting = [(index, 1) for index in reversed(range(len(messages)))]
        idle = list(range(len(self._workers)))
        busy: dict[Any, _Call] = {}
        limit = self._timeout if timeout is None else min(timeout, self._timeout)
        while waiting or busy:
            while waiting and idle:
                index, attempt = waiting.pop()
                call = _Call(index, idle.pop(), attempt, time.monotonic())
                context = self._contexts[messages[index].metadata.dst_node_id]
                reference = self._workers.call(call.worker, messages[index], context)
                busy[reference] = call
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=_POLL)
            now = time.monotonic()
            late = [r for r, call in busy.items() if r not in ready and now - call.started > limit]
            for reference in [*ready, *late]:
                call = busy.pop(reference)
                message = messages[call.index]
                trouble = (
                    f"the client's worker gave no answer within {limit:g} s"
                    if reference in late
                    else self._collect(reference, call, message, replies)
                )
                if trouble is not None:
                    self._workers.replace(call.worker)
                    if call.attempt <= self._retries:
                        waiting.append((call.index, call.attempt + 1))
                        outcome = "replaced the worker and ran the client again"
                    else:
                        replies[call.index] = failed(message, f"{trouble}, {call.attempt} times")
                        outcome = "gave up"
                    client = message.metadata.dst_node_id - self.get_node_ids()[0]
                    self.incidents.append(f"client {client}: {trouble}; {outcome}")
                idle.append(call.worker)
        return [replies[index] for index in range(len(messages))]

    def _collect(
        self,
        reference: Any,  # noqa: ANN401
        call: _Call,
        message: Message,
        replies: dict[int, Message],
    ) -> str | None:
        """Store the reply; returns a description of the failure if the worker died."""
        try:
            reply, context = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # the client raised, and would do so again
            cause = error.cause
            replies[call.index] = failed(message, f"{type(cause).__name__}: {cause}")
            return None
        except ray.exceptions.RayActorError:
            return "the client's worker died"
        self._contexts[message.metadata.dst_node_id] = context
        replies[call.index] = reply
        return None
