"""Jobs on Ray: deaths, hangs, resume, shares of a GPU."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.scheduling.cluster import start_ray
from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, Event, JobSpec, Progress, give_up
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.pool import RayPool
from attacks.scheduling.worker import run_job
from fedsim.api.ledger import read_ledger
from fedsim.errors import ConfigError
from fedsim.records import JobRecord

pytestmark = pytest.mark.ray
Jobs = Callable[..., list[JobSpec]]
Run = Callable[..., list[JobRecord]]


@pytest.fixture
def run(ray_cluster: None, tmp_path: Path) -> Run:
    """Submit the jobs to a new pool with a ledger that stays, and drain it."""

    def drain(
        specs: list[JobSpec],
        workers: int = 2,
        listen: Callable[[Event], None] = lambda event: None,
        retry_failed: bool = False,
    ) -> list[JobRecord]:
        with (
            Ledger(tmp_path / "run" / "jobs.sqlite") as ledger,
            RayPool(
                ledger, max_running=workers, on_event=listen, retry_failed=retry_failed
            ) as pool,
        ):
            pool.submit(specs)
            records = pool.drain()
            keys = {(spec.cell, spec.label, key) for spec in specs for key in spec.keys}
            final = {"done", "skipped", "failed", "timeout", "queued"}
            assert len(records) == len(keys)
            rows = [row for row in ledger.rows() if row.cell == specs[0].cell]
            assert {row.state for row in rows if row.label == specs[0].label} <= final
        return records

    return drain


def test_same_guesses_on_any_engine(run: Run, jobs: Jobs, tmp_path: Path) -> None:
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
        serial = run_serial(jobs("fake_learner", cell="serial"), ledger)
    ray = run(jobs("fake_learner", cell="ray"), workers=2)
    assert [r.status for r in serial] == ["done"] * 6
    by_ray, expected = (
        [(r.key, r.sha256, r.objective, r.confidence) for r in records] for records in (ray, serial)
    )
    assert by_ray == expected


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("raise", "failed", r"RuntimeError: singular matrix \(fake_attacks\.py:\d+\)"),
        ("nan", "failed", "non-finite guess"),
        ("expire", "timeout", "unfinished: the clock ended it"),
    ],
)
def test_what_an_attack_does_is_not_retried(
    run: Run, jobs: Jobs, runs: Callable[[], int], act: str, status: str, reason: str
) -> None:
    specs = jobs("fake_weights", round=1, act=act, demand=Demand(budget=0.2))
    records = run(specs)
    assert {r.status for r in records} == {status}
    assert all(re.fullmatch(reason, r.reason) for r in records)
    assert runs() == 1


def test_one_that_cannot_be_attacked_does_not_keep_its_group_from_it(
    run: Run, jobs: Jobs, runs: Callable[[], int]
) -> None:
    records = run(jobs("fake_weights", round=1, act="cannot", since=2))
    assert [record.status for record in records] == ["done", "done", "skipped"]
    assert records[2].reason == "fake_weights: the embedding is frozen. Train it."
    assert runs() == 4


@pytest.mark.slow
def test_an_attack_that_always_dies(run: Run, jobs: Jobs, runs: Callable[[], int]) -> None:
    records = run(jobs(act="exit", since=2, round=1))
    assert [r.status for r in records] == ["done", "done", "failed"]
    assert records[2].reason == "the attack ended its process (exit code 3), start 3"
    assert records[2].attempts == 3
    assert runs() == 5
    assert run(jobs(act="exit", since=2, round=1)) == records
    assert runs() == 5


@pytest.mark.slow
def test_killed_worker_gives_the_same_rows(run: Run, jobs: Jobs, tmp_path: Path) -> None:
    ledger = tmp_path / "run" / "jobs.sqlite"

    def kill(event: Event) -> None:
        if event.progress is not None and event.progress.text == "held":
            pids = [r.worker.split("@")[0] for r in read_ledger(ledger) if r.state == "running"]
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)

    disturbed = run(jobs(act="hold", since=2, round=1), workers=1, listen=kill)
    quiet = run(jobs(act="hold", since=9, round=1, cell="quiet"))
    assert [(r.status, r.attempts) for r in disturbed] == [("done", 1), ("done", 1), ("done", 2)]
    assert [r.sha256 for r in disturbed] == [r.sha256 for r in quiet]


def test_hang_is_killed(run: Run, jobs: Jobs, runs: Callable[[], int]) -> None:
    demand = Demand(budget=4.0, grace=0.5)
    records = run(jobs("fake", act="hang", since=1, round=1, demand=demand)[:2])
    assert [r.status for r in records] == ["done", "timeout"]
    assert (
        records[1].reason
        == "unfinished: the clock ended it, which killed it after 4 s budget and 0.5 s grace"
    )
    assert records[1].sha256 is None
    assert 4 < records[1].seconds < 60  # for which it would have slept
    assert runs() == 2


def works(pid: int | str) -> bool:
    """Whether a process has neither ended nor waits to be buried."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def fork_and_die(spec: JobSpec) -> Iterator[str | Progress]:
    """A task whose child holds the worker's connection to Ray when the worker dies."""
    yield f"{os.getpid()}@here"
    yield Progress("reconstruct")
    while not (Path(str(spec.table["folder"])) / "heard").exists():
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    (Path(str(spec.table["folder"])) / "child").write_text(str(child))
    os._exit(4)


@pytest.mark.slow
def test_a_killed_worker_that_never_answers(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is settled without it, and the next one has its CPU."""
    demand = Demand(budget=4.0, grace=0.5, cpus=2)
    with monkeypatch.context() as patch:
        patch.setattr("attacks.scheduling.pool._SILENCE", 0.5)
        patch.setattr("attacks.scheduling.pool.stream_job", fork_and_die)
        heard = tmp_path / "heard"
        (record,) = run(
            jobs(round=1, demand=demand)[:1],
            listen=lambda event: None if event.progress is None else heard.touch(),
        )
    child = (tmp_path / "child").read_text()
    assert works(child)  # and holds the connection
    os.kill(int(child), signal.SIGKILL)
    assert (record.status, record.reason) == ("timeout", demand.killed)
    (after,) = run(jobs(round=1, demand=Demand(cpus=2), cell="after")[:1])
    assert after.status == "done"


@pytest.mark.slow
def test_a_stopped_worker_is_killed(run: Run, jobs: Jobs, tmp_path: Path) -> None:
    stopped: list[int] = []

    def stop(event: Event) -> None:
        if event.progress is not None and event.progress.text == "held" and not stopped:
            rows = read_ledger(tmp_path / "run" / "jobs.sqlite")
            stopped.extend(int(r.worker.split("@")[0]) for r in rows if r.state == "running")
            os.kill(stopped[0], signal.SIGSTOP)

    demand = Demand(budget=1.0, grace=0.5, cpus=2)
    records = run(jobs(act="hold", since=1, round=1, demand=demand)[:2], workers=1, listen=stop)
    assert [r.status for r in records] == ["done", "timeout"]
    deadline = time.monotonic() + 120
    while works(stopped[0]):
        assert time.monotonic() < deadline, "the stopped worker was not killed within 120 s"
        time.sleep(0.1)


@pytest.mark.slow
def test_resume(run: Run, jobs: Jobs, runs: Callable[[], int]) -> None:
    first = run(jobs(act="raise", since=2, round=1))
    events: list[Event] = []
    assert run(jobs(act="raise", since=2, round=1), listen=events.append) == first
    assert runs() == 3
    assert [(e.state, e.resumed) for e in events] == [("settled", True)] * 3
    run(jobs(act="raise", since=2, round=1), retry_failed=True)
    assert runs() == 4


@pytest.mark.slow
def test_submitted_twice_runs_once(
    ray_cluster: None, jobs: Jobs, tmp_path: Path, runs: Callable[[], int]
) -> None:
    """From two threads and round by round, while the first jobs run."""
    with (
        Ledger(tmp_path / "run" / "jobs.sqlite") as ledger,
        RayPool(ledger, max_running=2) as pool,
    ):
        threads = [
            threading.Thread(target=pool.submit, args=(jobs(round=number)[:2],))
            for number in (1, 2, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pool.submit([*jobs(round=1)[:2], *jobs(round=2)[:2]])
        records = pool.drain()
        assert runs() == len(records) == len(ledger.rows()) == 4


def test_written_but_not_reported(run: Run, jobs: Jobs, runs: Callable[[], int]) -> None:
    specs = jobs(round=1)
    run_job(specs[0])
    give_up(specs[1], "timeout", "killed", 1.0)
    records = run(specs)
    assert [r.status for r in records] == ["done", "timeout", "done"]
    assert runs() == 2


@pytest.mark.slow
def test_half_a_gpu_each(run: Run, jobs: Jobs, tmp_path: Path) -> None:
    run(jobs(round=1, pause=8.0, demand=Demand(cpus=0.5, gpus=0.5))[:2])
    words = (tmp_path / "spans").read_text().split()
    spans = sorted((float(a), float(b)) for a, b in zip(words[::4], words[1::4], strict=True))
    assert spans[1][0] < spans[0][1]
    assert set(words[2::4]) <= {"0", "1"}  # the GPU that Ray assigned, not both
    assert set(words[3::4]) == {"cpu"}


def test_progress(run: Run, jobs: Jobs) -> None:
    events: list[Event] = []
    run(jobs(round=1)[:1], listen=events.append)
    phases = [e.progress.phase for e in events if e.progress is not None]
    assert phases == ["load", "reconstruct"]
    assert (events[0].state, events[-1].state) == ("queued", "settled")
    assert events[-1].records[0].status == "done"


def test_closing_kills_and_requeues(ray_cluster: None, jobs: Jobs, tmp_path: Path) -> None:
    started = threading.Event()
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
        with RayPool(ledger, max_running=1, on_event=lambda e: started.set()) as pool:
            pool.submit(jobs(act="hang", round=1))
            assert started.wait(10)
        assert [row.state for row in ledger.rows()] == ["queued"] * 3


@pytest.mark.slow
def test_a_failing_listener_ends_the_drain(run: Run, jobs: Jobs) -> None:
    def listen(event: Event) -> None:
        if event.state == "running":
            raise KeyError("bar")

    with pytest.raises(KeyError, match="bar"):
        run(jobs(round=1), listen=listen)


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (
            Demand(cpus=64, gpus=0.5),
            "attacks.fake: a job asks for 64 CPUs and 0.5 GPUs, and a machine of the Ray cluster "
            "has 2 CPUs and 2 GPUs. Lower cpus or gpus.",
        ),
        (
            Demand(gpus=3),
            "attacks.fake: a job asks for 1 CPUs and 3 GPUs, and a machine of the Ray cluster "
            "has 2 CPUs and 2 GPUs. Lower cpus or gpus.",
        ),
        (
            Demand(gpus=1.5),
            "attacks.fake.gpus: 1.5 is more than 1 and not whole. "
            "Ask for a share of one GPU, or for whole ones.",
        ),
    ],
)
def test_impossible_demand(
    ray_cluster: None, jobs: Jobs, tmp_path: Path, demand: Demand, message: str
) -> None:
    with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger, RayPool(ledger) as pool:
        with pytest.raises(ConfigError, match=re.escape(message)):
            pool.submit(jobs(demand=demand))
        assert pool.drain() == []
        assert ledger.rows() == []


def test_running_ray_is_used_and_left(ray_cluster: None) -> None:
    import ray

    start_ray("10.0.0.1:1")()
    assert ray.is_initialized()


def test_ray_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**_: object) -> None:
        raise ConnectionError("no\nroute.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    message = 'ray: could not start (no route). Use engine = "in-process", or pass an address.'
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        start_ray()


@pytest.mark.slow
def test_a_worker_that_does_not_see_the_run_folder(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is below the working directory of the process, which a worker does not share."""
    folder = tmp_path / "run" / "cell"
    monkeypatch.chdir(tmp_path / "run")
    here = Path("/proc/self/cwd/cell")
    (spec, *_) = jobs()
    assert spec.captures.is_relative_to(folder)
    (lost,) = run([replace(spec, captures=here / "captures", guesses=here / "guesses")])
    assert lost.status == "interrupted"
    assert re.search(r"the machine \w{6} does not see it\. Put the run into a folder", lost.reason)


@pytest.mark.slow
def test_a_lost_gpu_is_recorded_and_its_process_left(
    run: Run, jobs: Jobs, runs: Callable[[], int]
) -> None:
    specs = jobs(act="assert", since=2, round=1)[1:]
    records = run(specs, workers=1)
    assert [r.status for r in records] == ["done", "failed"]
    assert records[1].reason.startswith("AcceleratorError: CUDA error: device-side assert")
    assert runs() == 2
    assert run(specs) == records
