"""Probes are captured and scored as clients are, and change nothing else."""

import json
from typing import Any

import pytest

from experiments.analysis.summary import summarise
from experiments.checks.capture_check import examine
from experiments.pipeline import execute
from experiments.plan.cells import Cell
from experiments.report.curves import curves
from experiments.stages.utility import spent
from fedsim.errors import SimulationError
from fedsim.records import (
    OTHER_CLIENT,
    OTHER_CLIENTS,
    PRIOR_ONLY,
    SECOND_CLIENT,
    ScoreRow,
    SimulationRecord,
    UtilityRow,
)
from fedsim.store.files import read_record
from fedsim.store.rows import read_rows
from fedsim.store.truth import TruthRecord
from tests.apps.cases import IMAGES, TEXT, Make, files_of, simulate
from tests.experiments.stages.cases import STAGES, scores

PROBES = {"member": 4, "fresh": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (TEXT, {"federation": {"train_mode": True}}),
    "fedavg": (TEXT, {"federation": {"protocol": "fedavg", "participation": 0.7}}),
    "images": (IMAGES, {"defenses": [{"name": "gaussian_noise", "std": 0.1}]}),
}


def truths(cell: Cell) -> dict[str, TruthRecord]:
    """By capture, what the evaluator knows of probes and clients."""
    return {str(key): cell.truth.record(key) for key in cell.captures.keys()}


@pytest.mark.some(3)
@pytest.mark.parametrize("case", CASES)
def test_the_training_is_bit_for_bit_what_it_is_without_probes(case: str, make_run: Make) -> None:
    base, changes = CASES[case]
    without, with_ = make_run(base, "without", **changes), make_run(base, probes=PROBES, **changes)
    simulate(without)
    simulate(with_)
    for part in ("captures", "truth"):
        theirs = files_of(without.cells[0].folder / part)
        ours = files_of(with_.cells[0].folder / part)
        assert {name: ours[name] for name in theirs} == theirs
        added = [name for name in ours if name not in theirs]
        assert len(added) == 2 * 2 * 6  # two rounds of six probes, a tensor file and a record each
    records = [
        read_record(run.cells[0].folder / "simulation.json", SimulationRecord)
        for run in (without, with_)
    ]
    values = [[(p.round, p.metric, p.value) for p in record.utility] for record in records]
    assert values[0] == values[1]
    assert records[0].bytes_up == records[1].bytes_up


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_a_probe_has_the_same_rows_in_every_captured_round(protocol: str, make_run: Make) -> None:
    capture = {"rounds": [1, 3], "clients": [2]}
    federation = {"protocol": protocol, "rounds": 3, "local_steps": 3, "batch_size": 2}
    run = make_run(TEXT, federation=federation, capture=capture, probes=PROBES)
    simulate(run)
    (cell,) = run.cells
    found = truths(cell)
    assert {(r.key.round, r.key.client) for r in found.values()} == {
        (round_, client) for round_ in (1, 3) for client in range(2, 9)
    }
    for client in range(3, 9):
        first, last = (found[f"round-{n:04d}-client-{client:04d}"] for n in (1, 3))
        assert (first.rows, first.steps, first.sha256) == (last.rows, last.steps, last.sha256)
        kind = "member" if client < 7 else "fresh"
        assert (first.probe, first.host) == (kind, (client - 3) % 4 % 3)
        early, late = (cell.captures.load(record.key) for record in (first, last))
        assert early.knowledge == late.knowledge
        assert any(not early.received[name].equal(late.received[name]) for name in early.received)
    assert found["round-0001-client-0002"].probe == "none"


@pytest.mark.slow
def test_captures_do_not_tell_a_probe_from_a_client(make_run: Make) -> None:
    run = make_run(TEXT, probes=PROBES)
    simulate(run)
    (cell,) = run.cells
    sidecars = [json.loads(p.read_text()) for p in cell.captures.root.glob("round-*/*.json")]
    assert len(sidecars) == 2 * 9
    shapes = {tuple(sorted(s)) + tuple(sorted(s["knowledge"])) for s in sidecars}
    assert len(shapes) == 1
    assert not any(word in str(sidecars) for word in ("probe", "member", "fresh", "host"))


@pytest.mark.slow
def test_captures_of_probes_replay_with_the_noise_of_their_host(make_run: Make) -> None:
    defense = {"name": "dp_sgd", "clip": 1.0, "epsilon": 5.0}
    federation = {
        "clients": 4,
        "partition": "dirichlet",
        "alpha": 0.4,
        "batch_size": 2,
        "rounds": 1,
    }
    changes = {"federation": federation, "defenses": [defense]}
    run = make_run(TEXT, probes=PROBES, **changes)
    simulate(run)
    checkup = examine(run)
    assert checkup.faults == 0
    assert len(checkup.findings) == 4 + 6
    without = make_run(TEXT, "without", **changes)
    simulate(without)
    assert spent(run.cells[0]) == spent(without.cells[0])


@pytest.mark.slow
def test_a_simulation_that_was_cut_off_ends_with_all_probes(make_run: Make) -> None:
    run = make_run(IMAGES, probes=PROBES)
    simulate(run)
    (cell,) = run.cells
    whole = files_of(cell.folder / "captures")
    (cell.folder / "simulation.json").unlink()
    cell.captures.tensors_path(cell.captures.keys()[-1]).unlink()
    execute(run, ("simulate",), quiet=True)
    assert files_of(cell.folder / "captures") == whole


@pytest.mark.slow
@pytest.mark.ray
def test_probes_on_ray_have_the_bits_of_in_process(make_run: Make, ray_cluster: None) -> None:
    runs = [
        make_run(TEXT, engine, probes=PROBES, federation={"engine": engine})
        for engine in ("in-process", "ray")
    ]
    for run in runs:
        simulate(run)
    for part in ("captures", "truth"):
        ours, theirs = (files_of(run.cells[0].folder / part) for run in runs)
        assert ours == theirs


def test_a_probe_that_fails_ends_the_run(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such row: 17")

    monkeypatch.setattr("clients.probes.Probe.run", fail)
    run = make_run(IMAGES, probes=PROBES)
    with pytest.raises(SimulationError, match=r"round 1, client 3: ValueError: no such row: 17\."):
        simulate(run)


@pytest.mark.slow
def test_rows_and_report_tell_clients_members_and_fresh_rows_apart(make_run: Make) -> None:
    without = make_run(TEXT, "without")
    execute(without, STAGES, quiet=True)
    run = make_run(TEXT, probes={"member": 2, "fresh": 2}, attack_stage={"when": "round"})
    execute(run, (*STAGES, "report"), quiet=True)
    rows = read_rows(run.root / "scores.parquet", ScoreRow)
    kinds = {(row.client, row.probe) for row in rows}
    assert kinds == {
        *((client, "none") for client in range(3)),
        *((3, "member"), (4, "member"), (5, "fresh"), (6, "fresh")),
    }
    ours = [row for row in scores(run.root) if row["probe"] == "none"]
    for row in (*ours, *(theirs := scores(without.root))):
        row["cell"] = ""
    assert ours == theirs

    assert_controls_are_of_the_same_kind(run.cells[0], rows)
    utility = read_rows(run.root / "utility.parquet", UtilityRow)
    (section,) = summarise(rows, utility, {run.cells[0].name: run.cells[0].config}).sections
    assert section.victims == 2 * 3
    found = [(r.attack, r.control, r.probe, r.n) for r in section.results]
    assert found == [
        *(
            ("embedding_rows", control, probe, n)
            for probe, n in (("none", 6), ("member", 4), ("fresh", 4))
            for control in ("none", OTHER_CLIENT)
        ),
        *(
            (PRIOR_ONLY, "none", probe, n)
            for probe, n in (("none", 6), ("member", 4), ("fresh", 4))
        ),
    ]
    fresh = section.results[4]
    assert section.null(fresh, PRIOR_ONLY) == section.results[8]
    assert section.null(fresh, OTHER_CLIENT) == section.results[5]
    (figure,) = curves(section, "f")
    assert figure.name == "f-1"
    assert "none, member rows" in figure.svg
    assert "none, fresh rows" in figure.svg
    assert "blind guess: prior only, fresh rows" in figure.svg
    page = (run.root / "report" / "index.html").read_text("utf-8")
    assert "embedding rows, member probes" in page
    assert "2 member and 2 fresh ones in each captured round" in page


def assert_controls_are_of_the_same_kind(cell: Cell, rows: list[ScoreRow]) -> None:
    """The control of a probe is the job of the other probe of its kind and round, to the second."""
    own = {
        (row.round, row.client): row.seconds
        for row in rows
        if (row.attack, row.control) == ("embedding_rows", "none")
    }
    assert len(set(own.values())) == len(own)
    assert {record.probe for record in truths(cell).values()} == {"none", "member", "fresh"}
    others = {3: 4, 4: 3, 5: 6, 6: 5}
    for row in rows:
        if row.control == OTHER_CLIENT and row.client in others:
            assert row.seconds == own[row.round, others[row.client]]


@pytest.mark.slow
def test_a_lone_probe_has_no_control(make_run: Make) -> None:
    """Its own rows of another round would be none."""
    run = make_run(TEXT, probes={"member": 1})
    execute(run, STAGES, quiet=True)
    rows = read_rows(run.root / "scores.parquet", ScoreRow)
    assert {row.control for row in rows if row.probe == "member"} == {"none"}
    controls = {row.control for row in rows if row.probe == "none"}
    assert controls == {"none", OTHER_CLIENT, SECOND_CLIENT, OTHER_CLIENTS}
