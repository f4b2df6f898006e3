"""Partitions: disjoint, seeded, as skewed as asked, and never with an empty client."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.config.federation import FederationConfig
from fedsim.data.partition import partition
from fedsim.errors import ConfigError

LABELS = torch.arange(10).repeat(60)
"""Ten classes of 60 rows each."""


def _deal(clients: int, seed: int = 0, labels: Tensor = LABELS, **options: Any) -> list[list[int]]:
    return partition(labels, clients, FederationConfig(**options), seed)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by-label"])
@pytest.mark.parametrize("clients", [1, 7, 20])
def test_no_row_is_dealt_twice_and_no_client_is_empty(kind: str, clients: int) -> None:
    parts = _deal(clients, partition=kind)
    rows = [row for part in parts for row in part]
    assert len(parts) == clients
    assert all(parts)
    assert len(set(rows)) == len(rows)
    assert all(part == sorted(part) for part in parts)
    if kind != "by-label":
        assert sorted(rows) == list(range(600))


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by-label"])
def test_the_seed_alone_decides(kind: str) -> None:
    np.random.seed(5)
    before = np.random.random()
    np.random.seed(5)
    first = _deal(5, seed=3, partition=kind)
    torch.manual_seed(99)
    assert _deal(5, seed=3, partition=kind) == first
    assert _deal(5, seed=4, partition=kind) != first
    assert np.random.random() == before


def test_iid_parts_are_of_equal_size() -> None:
    assert sorted(len(part) for part in _deal(7)) == [85, 85, 86, 86, 86, 86, 86]


def _skew(parts: list[list[int]]) -> float:
    """Mean share of a client's most frequent class."""
    return float(np.mean([torch.bincount(LABELS[part]).max() / len(part) for part in parts]))


def test_dirichlet_goes_from_one_class_each_to_iid() -> None:
    skews = [_skew(_deal(10, partition="dirichlet", alpha=alpha)) for alpha in (0.1, 1.0, 1000.0)]
    assert skews[0] > 0.45 > skews[1] > 0.2 > skews[2]
    assert skews[2] == pytest.approx(0.1, abs=0.02)


def test_dirichlet_deals_rows_without_classes() -> None:
    parts = _deal(4, labels=torch.zeros(50, dtype=torch.int64), partition="dirichlet", alpha=5.0)
    assert sorted(row for part in parts for row in part) == list(range(50))


@pytest.mark.parametrize("owned", [1, 2, 10])
def test_by_label_gives_each_client_its_number_of_classes(owned: int) -> None:
    parts = _deal(10, partition="by-label", classes_per_client=owned)
    assert [len(set(LABELS[part].tolist())) for part in parts] == [owned] * 10
    assert [len(part) for part in parts] == [60] * 10


def test_by_label_leaves_rows_that_nobody_owns() -> None:
    parts = _deal(2, partition="by-label", classes_per_client=3)
    assert [len(part) for part in parts] == [180, 180]


def test_more_clients_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        _deal(12, labels=LABELS[:10])
    assert str(error.value) == (
        "federation.clients: 12 clients cannot share 10 private rows. "
        "Use at most 10 clients, or a longer task.split."
    )


def test_a_too_small_alpha_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        _deal(50, labels=LABELS[:60], partition="dirichlet", alpha=0.01)
    assert str(error.value) == (
        "federation.alpha: with 0.01, some of the 50 clients got none of the 60 private rows in "
        "each of 100 draws. Use a larger alpha, fewer clients or a longer task.split."
    )


def test_more_classes_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"classes_per_client: 11 is more than the 10 classes"):
        _deal(3, partition="by-label", classes_per_client=11)


def test_clients_without_a_row_of_their_class_are_refused() -> None:
    labels = torch.tensor([0] * 9 + [1])
    with pytest.raises(ConfigError, match=r"federation.clients: 1 of 4 clients got no row"):
        _deal(4, labels=labels, partition="by-label", classes_per_client=1)


def test_sizes_are_log_normal_and_every_row_is_dealt() -> None:
    labels = torch.zeros(200_000, dtype=torch.int64)
    parts = _deal(400, labels=labels, size_spread=0.8)
    assert sum(map(len, parts)) == len(labels)
    logs = np.log([len(part) for part in parts])
    assert np.std(logs) == pytest.approx(0.8, rel=0.1)
    skewness = np.mean(((logs - logs.mean()) / logs.std()) ** 3)
    assert abs(skewness) < 0.4  # that of the sizes themselves is about 3


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by-label"])
def test_a_spread_makes_any_partition_uneven_and_leaves_no_client_empty(kind: str) -> None:
    options: dict[str, Any] = {"partition": kind, "alpha": 20.0}
    even = np.std([len(part) for part in _deal(10, **options)])
    uneven = np.std([len(part) for part in _deal(10, size_spread=1.0, **options)])
    assert uneven > 2 * even + 10
    parts = _deal(60, size_spread=3.0, labels=LABELS[:80]) if kind == "iid" else None
    assert parts is None or min(map(len, parts)) == 1
