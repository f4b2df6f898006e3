import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from matplotlib.figure import Figure
from websockets.sync.client import connect

from attacks.scheduling.jobs import JobSpec, Progress
from attacks.scheduling.ledger import Ledger, lock_run
from attacks.scheduling.prepared import Sketch
from experiments.analysis.keys import DefenseInSetting
from experiments.commands.run import _watched
from experiments.extras.watch.server import SCRIPT, Feed, Server, _draw, page, serve
from experiments.extras.watch.state import CurveKey, Glimpse, State, Watcher
from experiments.stages.attack import Live
from fedsim.api import Run
from fedsim.api.ledger import FILE, locked, read_ledger, read_live
from fedsim.errors import StoreError
from fedsim.records import TRAINING, ScoreRow
from fedsim.store.capture import CaptureKey
from fedsim.store.files import write_json
from fedsim.store.rows import read_rows
from tests.apps.cases import files_of

PATIENCE = 120.0
"""Seconds for an answer, on a machine that may have other work."""
HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
EMPTY = State(working=True)


def glimpse(text: str, guess: str | None = None) -> Glimpse:
    key = CaptureKey(round=1, client=0)
    original, guessed = text.encode(), None if guess is None else guess.encode()
    return Glimpse("cell", "span", key, "rougeL", 1.0, "text", original, guessed)


@contextmanager
def served(watcher: Watcher) -> Iterator[Server]:
    feed = Feed(watcher)
    server = Server(feed)
    threads = [
        threading.Thread(target=target, daemon=True)
        for target in (server.serve_forever, feed.follow)
    ]
    for thread in threads:
        thread.start()
    yield server
    feed.close()
    server.shutdown()
    server.server_close()


def ask(server: Server, path: str = "", method: str = "GET", host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.request(method, path or f"/{server.secret}/", headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_state_of_a_finished_run_is_what_was_scored(copied: Path) -> None:
    state = Watcher(Run.open(copied)).state()
    rows = read_ledger(copied / "jobs.sqlite")
    assert sum(cell.planned or 0 for cell in state.cells) == len(rows)
    assert sum(cell.jobs["done"] for cell in state.cells) == sum(r.state == "done" for r in rows)
    assert [cell.training for cell in state.cells] == ["1 of 1 rounds"]
    assert not state.working
    assert not state.running
    assert not state.reasons
    wanted: dict[str, list[float]] = {}
    for row in read_rows(copied / "scores.parquet", ScoreRow):
        if (row.metric, row.control) == ("rougeL", "none") and row.value is not None:
            wanted.setdefault(row.attack, []).append(row.value)
    found = {
        line.attack: sorted(v for values in by_round.values() for v in values)
        for line, by_round in state.leakage.items()
    }
    assert sorted(found.values()) == sorted(sorted(values) for values in wanted.values())
    assert {one.attack for one in state.latest} == {"embedding rows"}
    ((line, points),) = state.utility.items()
    assert line.metric in {"accuracy", "mcc"}
    assert [number for number, _ in points] == [0, 1]


def test_a_run_that_works_is_read_without_a_write(copied: Path) -> None:
    watcher = Watcher(Run.open(copied))
    assert watcher.ended()
    before = files_of(copied)
    with Ledger(copied / "jobs.sqlite"):
        assert watcher.state().working
        assert not watcher.ended()
    watcher.state()
    after = files_of(copied)
    assert {name for name in after if not name.startswith("jobs.")} == {
        name for name in before if not name.startswith("jobs.")
    }
    assert all(after[name] == before[name] for name in before if not name.startswith("jobs."))


def test_a_training_tells_how_far_it_is(copied: Path) -> None:
    (cell,) = Run.open(copied).cells
    point = {"round": 0, "metric": "accuracy", "value": 0.25, "seconds": 1.0}
    shutil.move(cell.folder / "simulation.json", copied / "away.json")
    write_json(cell.folder / TRAINING, {"utility": [point]})
    state = Watcher(Run.open(copied)).state()
    assert (state.cells[0].training, state.cells[0].planned) == ("0 of 1 rounds", None)
    assert [*state.utility.values()] == [[(0, 0.25)]]


def test_what_cannot_be_read_yet_is_said(copied: Path) -> None:
    guess = next(copied.glob("*/guesses/embedding_rows/*.safetensors"))
    guess.write_bytes(guess.read_bytes()[:-1])
    state = Watcher(Run.open(copied)).state()
    assert any("cut or altered" in reason for reason in state.reasons)
    assert state.cells[0].jobs["done"]


@pytest.mark.parametrize("metric", ["mcc", "ssim", "psnr", "accuracy"])
def test_what_is_below_zero_is_on_the_page(metric: str) -> None:
    """MCC and SSIM are from -1 to 1: MCC is below 0 at first where a model predicts one class."""
    axes = Figure().add_subplot()
    line = CurveKey(metric, "", DefenseInSetting("", "none", "[]"))
    _draw([(line, [(1, -0.3), (2, 0.4)])], axes)
    low, high = axes.get_ylim()
    assert low <= -0.3
    assert metric == "psnr" or high > 1


def test_texts_of_strangers_are_escaped_and_the_policy_names_the_script(copied: Path) -> None:
    state = replace(
        Watcher(Run.open(copied)).state(),
        latest=(glimpse(HOSTILE, HOSTILE), glimpse(HOSTILE)),
        reasons=(HOSTILE, "\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}"),
    )
    body = page(HOSTILE, state)
    assert re.findall(r"<script>(.*?)</script>", body, re.DOTALL) == [SCRIPT]
    assert "<img" not in body
    assert "\x1b" not in body
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in body
    assert body.count("&lt;img") >= 6


def test_only_the_address_with_its_secret_is_answered(copied: Path) -> None:
    with Ledger(copied / "jobs.sqlite"), served(Watcher(Run.open(copied))) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
        connection.request("GET", f"/{server.secret}/")
        answer = connection.getresponse()
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200
        body = answer.read().decode()
        assert "Cells" in body
        assert "default-src 'none'" in body
        assert "frame-ancestors 'none'" in policy
        assert b64encode(sha256(SCRIPT.encode()).digest()).decode() in body
        assert answer.headers["Cache-Control"] == "no-store"
        port = server.server_port
        assert ask(server, host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.:{port}"):
            assert ask(server, host=host)[0] == 421
        for path in ("/", "/events", f"/{server.secret}", "//etc/passwd", f"/{server.secret}/../"):
            assert ask(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0] == 501
        assert server.server_address[0] == "127.0.0.1"


def test_changes_come_as_events_and_the_end_as_the_report(copied: Path) -> None:
    ledger = Ledger(copied / "jobs.sqlite")
    with served(Watcher(Run.open(copied))) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
        connection.request("GET", f"/{server.secret}/events")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.readline().startswith(b'data: "<!doctype html>')
        ledger.close()
        rest = answer.read()
        assert rest.endswith(b"event: end\ndata:\n\n")
        assert ask(server)[1] == (copied / "report" / "index.html").read_bytes()


def test_a_run_that_had_ended_goes_on(copied: Path) -> None:
    with served(Watcher(Run.open(copied))) as server:
        assert b"what the updates leaked</title>" in ask(server)[1]
        with Ledger(copied / "jobs.sqlite"):
            assert b"while it runs</title>" in ask(server)[1]
            assert not server.feed.ended


def test_a_glance_at_the_lock_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    assert not locked(path)
    with lock_run(path):
        assert locked(path)
        with pytest.raises(StoreError, match="another process"):
            lock_run(path)
    assert not locked(path)
    stop = threading.Event()

    def glance() -> None:
        while not stop.wait(0.001):
            locked(path)

    thread = threading.Thread(target=glance)
    thread.start()
    try:
        for _ in range(50):
            lock_run(path).close()
    finally:
        stop.set()
        thread.join()


def spec(number: int = 0) -> JobSpec:
    keys = (CaptureKey(round=1, client=number),)
    return JobSpec(Path("captures"), Path("cell/guesses"), "dlg", {"name": "dlg"}, keys, 0)


def test_a_guess_that_forms_is_written_for_its_owner_and_goes_with_its_job(tmp_path: Path) -> None:
    live = Live(tmp_path)
    image = torch.full((1, 2, 2), 255, dtype=torch.uint8)
    live.note(spec(), Progress("reconstruct", 7, 0.5, "", image))
    live.note(spec(1), Progress("reconstruct", 8))  # within a second, so that nothing is written
    (found,) = read_live(tmp_path).items()
    assert found[0] == spec().name
    assert found[1].step == 7
    assert found[1].objective == 0.5
    assert found[1].picture.startswith(b"\x89PNG")
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    live.drop(spec())
    live.close()
    assert read_live(tmp_path) == {}
    assert not [*tmp_path.iterdir()]
    live = Live(tmp_path / "no" / "folder" / "file")
    (tmp_path / "no").write_text("a file, so that nothing can be written below it")
    live.note(spec(), Progress("load"))  # a run does not fail for it


def test_pictures_of_a_guess_are_drawn_from_time_to_time() -> None:
    reports: list[Progress] = []
    sketch = Sketch(reports.append)
    images = torch.tensor([[[[-1.0, 0.5], [float("nan"), 2.0]]]])
    sketch(1, 0.1, images)
    sketch(2, 0.1, images)
    sketch(3, 0.1, "a text")
    assert reports[0].image is not None
    assert reports[0].image.tolist() == [[[0, 128], [0, 255]]]
    assert reports[1].image is None
    assert reports[2].text == "a text"
    for odd in (torch.zeros(2, 5), torch.zeros(2, 4, 8, 8), torch.zeros(1, 3, 4)):
        Sketch(reports.append)(4, 0.1, odd)
        assert reports[-1].image is None


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium is installed here")
def test_a_browser_shows_it_and_runs_nothing_of_strangers(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page is empty, an event brings hostile texts; then the report takes its place."""
    later = replace(EMPTY, latest=(glimpse(HOSTILE, HOSTILE),), reasons=(HOSTILE,))
    states = iter([EMPTY, later])
    monkeypatch.setattr(Watcher, "state", lambda self: next(states, later))
    ledger = Ledger(copied / "jobs.sqlite")
    with (
        served(Watcher(Run.open(copied))) as server,
        browser(server.url, tmp_path / "profile") as evaluate,
    ):
        wait(
            "a reason",
            lambda: "pwned" in evaluate("document.getElementById('reasons')?.textContent"),
        )
        assert evaluate("document.title") == "copied: while it runs"
        assert evaluate("document.querySelectorAll('main img, main script').length") == "0"
        assert evaluate("document.querySelector('#latest .guess').textContent") == HOSTILE
        ledger.close()
        wait("the report", lambda: "what the updates leaked" in evaluate("document.title"))


@contextmanager
def browser(url: str, profile: Path) -> Iterator[Callable[[str], str]]:
    """A headless Chromium at ``url``; evaluates an expression of its page."""
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "about:blank"]
    options = [f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            ready = profile / "DevToolsActivePort"
            wait("the browser's port", lambda: ready.exists() and bool(ready.read_text()))
            port = int(ready.read_text().split()[0])
            with urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
                (target,) = [one for one in json.load(answer) if one["type"] == "page"]
            with connect(target["webSocketDebuggerUrl"]) as socket:

                def call(method: str, **params: str) -> dict[str, Any]:
                    socket.send(json.dumps({"id": 1, "method": method, "params": params}))
                    while "id" not in (message := json.loads(socket.recv(timeout=PATIENCE))):
                        pass
                    return dict(message["result"])

                call("Page.navigate", url=url)
                yield lambda text: str(
                    call("Runtime.evaluate", expression=text)["result"].get("value")
                )
        finally:
            process.terminate()


def wait(what: str, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s"
        time.sleep(0.1)


@pytest.mark.slow
def test_beside_a_run_the_page_ends_with_it(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as beside:
        page = threading.Thread(target=serve, args=(Run.open(copied), 0, beside))
        page.start()
        heard: list[str] = []

        def is_said() -> bool:
            heard.append(capsys.readouterr().err)
            return heard[-1].endswith("until the run ends\n") or not page.is_alive()

        wait("the address", is_said)
        address = "".join(heard).split()[0]
        with urlopen(address) as answer:
            assert answer.status == 200
        os.close(writing)
        page.join(PATIENCE)
    assert not page.is_alive()
    with pytest.raises(OSError, match="refused"):
        urlopen(address)


@pytest.mark.slow
def test_a_page_is_served_by_a_process_that_ends_with_the_block(
    copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ""
    with _watched(copied):
        while "\n" not in said:
            time.sleep(0.1)
            said += capfd.readouterr().err
        with urlopen(said.split()[0]) as answer:
            assert answer.status == 200
    with pytest.raises(OSError, match="refused"):
        urlopen(said.split()[0])
