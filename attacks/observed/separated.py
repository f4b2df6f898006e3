"""Single clients' updates from sums over cohorts that overlap from round to round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from attacks.observed.first_linear import FirstLinear, unit_rows
from attacks.observed.word_rows import noise_variance, read_tables, standing_out, tables
from fedsim.store.capture import CaptureKey, Observation
from fedsim.types import Tensors

_DETERMINED = 1e-8
"""Distance of a client's unit vector from the row space of the matrix of cohorts, at which sums
determine its update; rounding stays below 1e-12."""
_SUMMED_RANK = 0.01
"""Singular value behind the number of examples, as a share of the one before it, up to which a
sum's gradient has that rank."""
_COMMON_SINE = 1e-3
"""Sine of the angle between spans of two sums: of directions that both share, 1e-6 at 64 rows of
CIFAR-10."""
_SEPARATE_SINE = 0.03
"""Of the first direction that they do not share, 0.3 there."""


def is_sum(seen: Observation) -> bool:
    """Whether this is a sum over known clients that use all their rows in each round."""
    known = seen.knowledge
    return bool(known.members) and bool(known.all_rows) and known.num_examples is not None


def by_updates(sums: Sequence[Observation]) -> dict[int, Observation]:
    """Updates of the clients that the sums determine, as if they did not change between rounds.

    With ``n_c`` examples of client c, a sum of N examples is ``sum_c (n_c / N) u_c``; so that N
    times the sums, and the counts N, are one linear system in ``n_c u_c`` and ``n_c``. A client is
    determined if its unit vector lies in the row space of the 0-1 matrix of the cohorts.

    Args:
        sums: with granted members and counts, of the same tensors.

    Returns:
        By client: at the mean of the broadcast weights, with the key of the last sum's round.
    """
    clients = _clients(sums)
    taking = _incidence(sums, clients)
    inverse = torch.linalg.pinv(taking)
    determined = (torch.eye(len(clients)).double() - inverse @ taking).norm(dim=1) < _DETERMINED
    if not determined.any():
        return {}
    counts = torch.tensor([float(seen.knowledge.num_examples or 0) for seen in sums]).double()
    shares, rows = (inverse @ counts)[determined], inverse[determined] * counts
    updates = [seen.update() for seen in sums]
    solved = {name: _solved(rows, [update[name] for update in updates]) for name in updates[0]}
    mean = torch.full((1, len(sums)), 1 / len(sums)).double()
    sent = {name: _solved(mean, [seen.sent[name] for seen in sums])[0] for name in sums[0].sent}
    names = [client for client, known in zip(clients, determined.tolist(), strict=True) if known]
    return {
        client: _single(sums[-1], client, sent, float(n), {k: v[i] / n for k, v in solved.items()})
        for i, (client, n) in enumerate(zip(names, shares, strict=True))
    }


def _clients(sums: Sequence[Observation]) -> list[int]:
    return sorted({client for seen in sums for client in seen.knowledge.members})


def _incidence(sums: Sequence[Observation], clients: Sequence[int]) -> Tensor:
    """Who took part in which sum, float64 ``(sum, client)``."""
    rows = [[client in seen.knowledge.members for client in clients] for seen in sums]
    return torch.tensor(rows).double()


def _solved(rows: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """``rows @ parts`` for tensors of any shape, float64 ``(row, *shape)``."""
    stacked = torch.stack([part.double() for part in parts])
    return (rows @ stacked.flatten(1)).reshape(len(rows), *stacked.shape[1:])


def _single(
    last: Observation, client: int, sent: Tensors, count: float, update: Tensors
) -> Observation:
    """What the client would have sent, in the dtypes of the wire."""
    sign = -1 if last.kind in ("difference", "weights") else 1
    base = sent if last.kind == "weights" else {}
    received = {
        name: (base.get(name, 0) + sign * value).to(last.received[name].dtype)
        for name, value in update.items()
    }
    facts = {"cohort": 1, "members": (), "num_examples": round(count), "labels": None}
    return Observation(
        CaptureKey(round=last.key.round, client=client),
        {name: value.to(last.sent[name].dtype) for name, value in sent.items()},
        received,
        last.kind,
        last.knowledge.model_copy(update={**facts, "lengths": None}),
    )


@dataclass(frozen=True)
class _Sum:
    """A sum's gradient of the first linear layer, bias beside weights, and what its rows span.

    Attributes:
        matrix: float64 ``(unit, input + 1)``.
        span: orthonormal columns ``(input + 1, rank)``.
    """

    seen: Observation
    matrix: Tensor
    span: Tensor

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self.seen.knowledge.members)


def by_spans(
    sums: Sequence[Observation], layer: FirstLinear, device: torch.device
) -> dict[int, Observation]:
    """The first layer's gradients of the clients that the sums' spans tell apart.

    The rows of the layer's gradient are combinations of its inputs, which stay as they are while
    weights move. Of a client the span is what its cohorts have in common, if they share no other
    client and that has as many directions as its rows; where spans of all clients of a cohort are
    known and independent, each row of its sum is a sum of one vector in each. A sum with fewer
    independent rows than examples tells nothing.

    Args:
        sums: with granted members and counts.
        layer: that takes the inputs.
        device: where to compute.

    Returns:
        By client: of the first round in which it was separated, with the layer's tensors alone.
    """
    spanned = (_spanned(seen, layer, device) for seen in sums)
    known = [cohort for cohort in spanned if cohort is not None]
    counts = _counts(sums)
    spans = dict(_spans(known, counts))
    separated: dict[int, Observation] = {}
    for cohort in known:
        members = cohort.seen.knowledge.members
        if not cohort.members <= spans.keys() or cohort.members <= separated.keys():
            continue
        basis = torch.cat([spans[client] for client in members], 1)
        inverse = torch.linalg.pinv(basis).T
        weights = cohort.matrix @ inverse
        # What no span explains is the sum's rounding. It stays in, enlarged as the rounding within
        # the spans is, so that an attack sees how exact the separated gradient is.
        rest = (cohort.matrix - weights @ basis.T) * torch.linalg.matrix_norm(inverse, 2)
        parts = weights.split([spans[client].shape[1] for client in members], 1)
        for client, part in zip(members, parts, strict=True):
            total = cohort.seen.knowledge.num_examples or 1
            gradient = (part @ spans[client].T + rest) * (total / counts[client])
            shape = cohort.seen.received[layer.weight].shape
            update = {
                layer.weight: gradient[:, :-1].reshape(shape).cpu(),
                layer.bias: gradient[:, -1].cpu(),
            }
            single = _single(cohort.seen, client, cohort.seen.sent, counts[client], update)
            separated.setdefault(client, single)
    return separated


def _counts(sums: Sequence[Observation]) -> dict[int, float]:
    """Examples of each client by least squares, the smallest that fit."""
    clients = _clients(sums)
    totals = torch.tensor([float(seen.knowledge.num_examples or 0) for seen in sums]).double()
    solved = torch.linalg.pinv(_incidence(sums, clients)) @ totals
    return dict(zip(clients, solved.round().clamp(min=1).tolist(), strict=True))


def _spanned(seen: Observation, layer: FirstLinear, device: torch.device) -> _Sum | None:
    matrix = unit_rows(seen, layer, device).matrix
    count = seen.knowledge.num_examples or 0
    _, values, right = torch.linalg.svd(matrix, full_matrices=False)
    if count >= len(values) or values[count] > _SUMMED_RANK * values[count - 1]:
        return None
    return _Sum(seen, matrix, right[:count].T)


def _spans(known: Sequence[_Sum], counts: dict[int, float]) -> Iterator[tuple[int, Tensor]]:
    for client, count in counts.items():
        taking = [cohort for cohort in known if client in cohort.members]
        shared = [cohort.members for cohort in taking]
        if not shared or reduce(frozenset.__and__, shared) != {client}:
            continue
        first, rows = taking[0].span, int(count)
        outside = [first - cohort.span @ (cohort.span.T @ first) for cohort in taking[1:]]
        _, sines, right = torch.linalg.svd(torch.cat(outside), full_matrices=False)
        sines, right = sines.flip(0), right.flip(0)
        if sines[rows - 1] < _COMMON_SINE and sines[rows] > _SEPARATE_SINE:
            yield client, first @ right[:rows].T


def by_words(
    sums: Sequence[Observation], network: nn.Module, device: torch.device
) -> dict[int, Observation]:
    """The rows of the word table that certainly are a client's, by the sums that they stand out of.

    A row stands out of a sum if a client of the cohort has the word, and no client has it that is
    in a sum without it. The only member that may have it in such a sum does have it (the definite
    defectives of group testing, Aldridge et al. 2019), and the row is this client's own: secure
    aggregation hides no row that one client alone touches (2508.04285).

    Args:
        sums: with granted members and counts.
        network: with the tables of the embeddings.
        device: where to compute.

    Returns:
        By client with a certain word: of the last sum in which it alone has that word, with the
        word table alone, whose other rows are 0.

    Raises:
        CannotAttack: as ``tables``.
    """
    clients, counts = _clients(sums), _counts(sums)
    taking = _incidence(sums, clients)
    rows = [tables(seen, network, device)[0].cpu() for seen in sums]
    standing = torch.zeros(len(sums), len(rows[0])).double()
    for line, words in zip(standing, rows, strict=True):
        line[standing_out(words, noise_variance(words))] = 1
    possible = (taking.T @ (1 - standing) == 0).double()
    alone = standing * (taking @ possible == 1)
    name = read_tables(sums[0], network, device).names.word
    assert name is not None
    separated = {}
    for place, client in enumerate(clients):
        table = torch.zeros_like(rows[0])
        for i in taking[:, place].nonzero()[:, 0].tolist():
            certain = (alone[i] * possible[place]).bool()
            total = sums[i].knowledge.num_examples or 1
            table[certain] = rows[i][certain] * (total / counts[client])
        if table.any():
            separated[client] = _single(
                sums[-1], client, sums[-1].sent, counts[client], {name: table}
            )
    return separated
