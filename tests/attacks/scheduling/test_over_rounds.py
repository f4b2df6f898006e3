"""Jobs of one client over the rounds: records, failures and resumption."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import run_job
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.files import load_tensors

Jobs = Callable[..., list[JobSpec]]


def log(tmp_path: Path) -> list[str]:
    return (tmp_path / "runs").read_text().split()


def guesses(specs: list[JobSpec]) -> dict[CaptureKey, torch.Tensor]:
    paths = {key: spec.guess_path(key) for spec in specs for key in spec.keys}
    return {key: load_tensors(path)["inputs"] for key, path in paths.items()}


def test_each_round_has_a_guess_from_the_rounds_before(jobs: Jobs, tmp_path: Path) -> None:
    specs = jobs("fake_past")
    records = [record for spec in specs for record in run_job(spec)]
    assert [str(record.key) for record in records] == [
        f"round-{round_:04d}-client-{client:04d}" for client in range(3) for round_ in (1, 2)
    ]
    assert {record.status for record in records} == {"done"}
    # The fake's pixels count the rounds it has seen, a hundredth for each.
    for key, pixels in guesses(specs).items():
        assert torch.equal(pixels, torch.full((1, 1, 8, 8), key.round / 100))


def test_one_attack_over_rounds_and_one_without(jobs: Jobs) -> None:
    over, alone = jobs("fake_past"), jobs("fake_past", over=False)
    assert [len(spec.keys) for spec in over] == [2, 2, 2]
    assert [len(spec.keys) for spec in alone] == [3, 3]
    assert jobs("fake_past", round=1) == []
    assert len(jobs("fake_past", over=False, round=1)) == 1


def test_rounds_that_cannot_be_joined_are_attacked_one_by_one(jobs: Jobs, tmp_path: Path) -> None:
    (first, *_) = jobs("fake_client", act="cannot")
    assert [record.status for record in run_job(first)] == ["skipped", "skipped"]
    one, two = map(str, first.keys)
    assert log(tmp_path) == [f"{one}+{two}", one, two]


def test_a_broken_round_leaves_the_others(jobs: Jobs, captures: Path) -> None:
    spec = jobs("fake_past")[0]
    CaptureStore(captures).tensors_path(spec.keys[0]).write_bytes(b"cut")
    records = run_job(spec)
    assert [record.status for record in records] == ["interrupted", "done"]
    # Round 2 is all that the attack has seen.
    pixels = load_tensors(spec.guess_path(spec.keys[1]))["inputs"]
    assert torch.equal(pixels, torch.full((1, 1, 8, 8), 0.01))


@pytest.mark.slow
def test_a_client_fails_alone_and_is_resumed_alone(
    jobs: Jobs, tmp_path: Path, runs: Callable[[], int]
) -> None:
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
        first = run_serial(jobs("fake_client", act="raise", since=2), ledger)
        assert [record.status for record in first] == ["done"] * 4 + ["failed"] * 2
        assert runs() == 3
        assert run_serial(jobs("fake_client", act="raise", since=2), ledger) == first
        assert runs() == 3
        # A record that was lost: its client's rounds are attacked again, all from the first on.
        spec = jobs("fake_client", act="raise", since=2)[1]
        before = guesses([spec])
        spec.record_path(spec.keys[1]).unlink()
        run_serial(jobs("fake_client", act="raise", since=2), ledger)
        assert log(tmp_path)[3:] == ["+".join(map(str, spec.keys))]
        assert all(torch.equal(before[key], value) for key, value in guesses([spec]).items())
        rows = {(row.round, row.client): row.attempts for row in ledger.rows()}
    assert rows == {(r, c): 1 + (c == 1) for r in (1, 2) for c in range(3)}
