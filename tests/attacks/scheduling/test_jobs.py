"""Plans, jobs in this process, and the records that each leaves."""

import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, Event, JobSpec, settled
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.prepared import PreparedRecord
from attacks.scheduling.worker import run_job, thin
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.files import load_tensors, read_record, write_json

Jobs = Callable[..., list[JobSpec]]


def names(specs: list[JobSpec]) -> list[list[str]]:
    return [[f"{key.round}.{key.client}" for key in spec.keys] for spec in specs]


def guess(spec: JobSpec) -> torch.Tensor:
    record = read_record(spec.record_path(spec.keys[0]), JobRecord)
    return load_tensors(spec.guess_path(spec.keys[0]), record.sha256)["inputs"]


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("fake", [["1.0"], ["1.1"], ["1.2"], ["2.0"], ["2.1"], ["2.2"]]),
        ("fake_weights", [["1.0", "1.1"], ["1.2"], ["2.0", "2.1"], ["2.2"]]),
        ("fake_client", [["1.0", "2.0"], ["1.1", "2.1"], ["1.2", "2.2"]]),
    ],
)
def test_groups(jobs: Jobs, name: str, groups: list[list[str]]) -> None:
    whole = jobs(name, chunk=2)
    assert names(whole) == groups
    early = [spec for number in (1, 2) for spec in jobs(name, round=number, chunk=2)]
    assert early == ([] if name == "fake_client" else whole)


def test_spec_is_small_and_holds_the_options_that_are_no_defaults(jobs: Jobs) -> None:
    spec = jobs(act="nan")[0]
    assert len(pickle.dumps(spec)) < 4000
    assert "since" not in spec.table
    assert spec.table["act"] == "nan"
    assert spec.captures.is_absolute()
    with pytest.raises(ConfigError, match=re.escape("attacks.fake.acts: fake has no such option")):
        jobs(acts="nan")


def test_done(jobs: Jobs) -> None:
    spec = jobs()[0]
    phases: list[str] = []
    (record,) = run_job(spec, lambda progress: phases.append(progress.phase))
    assert (record.status, record.reason, record.objective) == ("done", "", 0.25)
    assert (record.steps, record.confidence, record.attempts) == (900, ("guess",), 1)
    assert len(record.trace) == 200
    assert record.trace[0][0] == 0
    assert record.trace[-1][0] == 900
    assert record.peak_bytes > 10_000_000
    assert phases == ["load", "reconstruct"]
    assert settled(spec) == [record]
    assert guess(spec).shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("cannot", "skipped", r"fake: the embedding is frozen\. Train it\."),
        ("raise", "failed", r"RuntimeError: singular matrix \(fake_attacks\.py:\d+\)"),
        ("nan", "failed", "non-finite guess"),
        ("words", "failed", r"ValidationError: .* objective Input should be a valid number.*"),
        ("few", "failed", r"ValueError: 0 guesses for 1 observations \(worker\.py:\d+\)"),
    ],
)
def test_no_guess(jobs: Jobs, act: str, status: str, reason: str) -> None:
    spec = jobs(act=act)[0]
    (record,) = run_job(spec)
    assert record.status == status
    assert re.fullmatch(reason, record.reason)
    refusal = ("the embedding is frozen", "Train it.") if act == "cannot" else ("", "")
    assert (record.cause, record.advice) == refusal
    assert record.sha256 is None
    assert not spec.guess_path(spec.keys[0]).exists()
    assert settled(spec) == [record]


def test_expired_guess_is_kept(jobs: Jobs) -> None:
    spec = jobs(act="expire", demand=Demand(budget=0.2))[0]
    (record,) = run_job(spec)
    assert (record.status, record.reason) == ("timeout", "unfinished: the clock ended it")
    assert record.seconds >= 0.2
    assert guess(spec).isfinite().all()


def test_a_refusal_after_the_clock_ended_the_search_is_unfinished(jobs: Jobs) -> None:
    (record,) = run_job(jobs(act="refuse-late", demand=Demand(budget=0.1))[0])
    assert record.status == "timeout"
    assert re.match(r"unfinished: the clock ended it; \S+: no sentence lies", record.reason)


def test_broken_capture_interrupts_its_own_job_alone(jobs: Jobs, captures: Path) -> None:
    spec = jobs("fake_weights")[0]
    broken = CaptureStore(captures).tensors_path(spec.keys[1])
    broken.write_bytes(broken.read_bytes()[:-1])
    records = run_job(spec)
    assert [record.status for record in records] == ["done", "interrupted", "done"]
    assert records[1].reason.startswith(f"StoreError: {broken}: the file is cut or altered")


def test_missing_task_interrupts(jobs: Jobs, captures: Path) -> None:
    (captures / "task.json").unlink()
    (record,) = run_job(jobs()[0])
    assert record.status == "interrupted"
    assert record.reason.startswith(f"StoreError: {captures / 'task.json'}: the file is missing.")


def test_withheld_fact_is_skipped(jobs: Jobs, captures: Path) -> None:
    store, key = CaptureStore(captures), CaptureKey(round=1, client=0)
    known = store.record(key)
    withheld = known.knowledge.model_copy(update={"labels": None})
    path = store.tensors_path(key).with_suffix(".json")
    write_json(path, known.model_copy(update={"knowledge": withheld}))
    records = run_job(jobs("fake_client")[0])
    assert [record.status for record in records] == ["skipped", "done"]
    assert records[0].reason.startswith(
        "fake_client: it needs labels, which the server does not know"
    )


def test_guess_depends_on_key_and_label_only(jobs: Jobs) -> None:
    first, second = jobs()[:2]
    run_job(first)
    alone = guess(first)
    run_job(second)
    torch.rand(7)
    run_job(first)
    assert torch.equal(guess(first), alone)
    assert not torch.equal(guess(second), alone)
    other = dataclasses.replace(first, label="other")
    run_job(other)
    assert not torch.equal(guess(other), alone)


def test_globals_are_left_alone(jobs: Jobs) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    run_job(jobs(demand=Demand(threads=2))[0])
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_prepared_once_per_weights(jobs: Jobs, tmp_path: Path) -> None:
    specs = jobs("fake_learner")
    for spec in specs:
        run_job(spec)
    log = (tmp_path / "prepared").read_text().split()
    assert log == ["round-0001-client-0000", "None", "round-0002-client-0000", "None"]
    folder = specs[0].guesses.parent / "prepared"
    sidecars = [read_record(path, PreparedRecord) for path in folder.glob("*.json")]
    assert [sidecar.order for sidecar in sidecars] == [("shift", "again")] * 2
    before = guess(specs[2])
    run_job(specs[2])
    assert torch.equal(guess(specs[2]), before)
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"cut")
    (record,) = run_job(specs[2])
    assert record.status == "done"
    assert torch.equal(guess(specs[2]), before)


def test_serial_resumes(jobs: Jobs, tmp_path: Path, runs: Callable[[], int]) -> None:
    events: list[Event] = []
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
        first = run_serial(jobs(act="raise", since=2), ledger, events.append)
        assert runs() == 6
        again = run_serial(jobs(act="raise", since=2), ledger, events.append)
        assert runs() == 6
        assert again == first
        assert [e.resumed for e in events if e.state == "settled"] == [False] * 6 + [True] * 6
        run_serial(jobs(act="raise", since=2), ledger, retry_failed=True)
        assert runs() == 8
        rows = ledger.rows()
    assert [row.state for row in rows] == ["done", "done", "failed"] * 2
    assert [row.attempts for row in rows] == [1, 1, 2] * 2


def test_broken_guess_is_made_anew(jobs: Jobs, tmp_path: Path, runs: Callable[[], int]) -> None:
    spec = jobs()[0]
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
        run_serial([spec], ledger)
        whole = guess(spec)
        spec.guess_path(spec.keys[0]).write_bytes(b"cut")
        assert settled(spec) is None
        run_serial([spec], ledger)
    assert runs() == 2
    assert torch.equal(guess(spec), whole)


def test_auxiliary_needs_the_fact(jobs: Jobs, captures: Path) -> None:
    store = CaptureStore(captures)
    for key in store.keys():
        known = store.record(key)
        withheld = known.knowledge.model_copy(update={"auxiliary": False})
        path = store.tensors_path(key).with_suffix(".json")
        write_json(path, known.model_copy(update={"knowledge": withheld}))
    (record,) = run_job(jobs("fake_learner")[0])
    assert record.status == "skipped"
    assert record.reason.startswith("fake_learner: it needs auxiliary rows")


def test_thin() -> None:
    trace = tuple((i, 0.0, 0.0) for i in range(10))
    assert thin(trace, 10) == trace
    assert [step for step, _, _ in thin(trace, 4)] == [0, 3, 6, 9]
