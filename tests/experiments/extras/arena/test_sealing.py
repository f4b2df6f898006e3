"""Nothing in a bundle is a private row, or gives one away to who owns the public data set."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.extras.arena.records import SECRET, Secret
from experiments.extras.arena.sealing import SealedTrack
from fedsim.api import Run
from fedsim.records import SimulationRecord
from fedsim.seeds import derive
from fedsim.store.capture import CaptureStore
from fedsim.store.files import digest, read_record
from fedsim.tasks import load_task
from fedsim.types import Batch

ALLOWED = {
    *("bundle.json", "captures/task.json", "captures/auxiliary.safetensors"),
    *(f"captures/tokenizer/{name}.json" for name in ("tokenizer", "tokenizer_config")),
    "captures/tokenizer/special_tokens_map.json",  # of transformers 4
}


def files(sealed: SealedTrack) -> dict[str, bytes]:
    """Everything that is published: contents by name."""
    paths = [path for path in sealed.bundle.rglob("*") if path.is_file()]
    return {path.relative_to(sealed.bundle).as_posix(): path.read_bytes() for path in paths}


def rows(sealed: SealedTrack) -> Iterator[Batch]:
    """The private rows, one by one."""
    (cell,) = Run.open(sealed.truth).cells
    for record in cell.truth.clients():
        batch = cell.truth.batch(record)
        yield from (batch[i] for i in range(len(batch)))


def traces(row: Batch, sealed: SealedTrack) -> Iterator[bytes]:
    """The forms in which a row could lie somewhere: its numbers in any type, text, and hashes."""
    values = row.inputs[0] if row.mask is None else row.inputs[0][row.mask[0] == 1]
    plain = values.numpy()
    if row.mask is None:
        pixels = np.round(plain * 255).astype(np.uint8)
        forms = [plain, plain.astype(np.float16), pixels, pixels.transpose(1, 2, 0)]
        yield torch.tensor(plain).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
        numbers = [float(value) for value in plain.ravel()]
    else:
        forms = [plain.astype(kind) for kind in ("<i8", "<i4", "<i2", "<f4", "<f8", ">i4")]
        task = load_task(sealed.bundle / "captures", network=False)
        yield from (text.encode() for text in task.examples(row).words)
        numbers = plain.tolist()
    for form in forms:
        yield np.ascontiguousarray(form).tobytes()
        sha256 = hashlib.sha256(np.ascontiguousarray(form).tobytes())
        yield from (sha256.digest(), sha256.hexdigest().encode())
    yield from (
        json.dumps(numbers, separators=s)[1:-1].encode() for s in ((", ", ": "), (",", ":"))
    )


def found(row: Batch, sealed: SealedTrack, published: dict[str, bytes]) -> set[str]:
    """Names of the published files that hold a row."""
    forms = list(traces(row, sealed))
    assert min(map(len, forms)) > 8  # so that none is there by chance
    return {name for name, content in published.items() if any(form in content for form in forms)}


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["texts", "images"])
def test_no_bundle_holds_a_row_in_any_form(kind: str, request: pytest.FixtureRequest) -> None:
    sealed: SealedTrack = request.getfixturevalue(kind)
    published = files(sealed)
    for row in rows(sealed):
        assert not found(row, sealed, published)


@pytest.mark.parametrize("kind", ["texts", "images"])
def test_the_search_finds_what_is_there(kind: str, request: pytest.FixtureRequest) -> None:
    """The files of the truth, published by mistake, hold every row; so do its unsalted hashes."""
    sealed: SealedTrack = request.getfixturevalue(kind)
    (cell,) = Run.open(sealed.truth).cells
    leaked = {path.name: path.read_bytes() for path in cell.truth.root.glob("*.safetensors")}
    hashed = [hashlib.sha256(row.inputs.numpy().tobytes()).hexdigest() for row in rows(sealed)]
    for row in rows(sealed):
        assert found(row, sealed, leaked)
        if row.mask is None:
            assert found(row, sealed, {"hashes": " ".join(hashed).encode()})


@pytest.mark.parametrize("kind", ["texts", "images", "members"])
def test_no_bundle_holds_what_the_rows_follow_from(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sealed: SealedTrack = request.getfixturevalue(kind)
    run = Run.open(sealed.truth)
    (cell,) = run.cells
    secret, seed = read_record(sealed.truth / SECRET, Secret), cell.config.seed
    record = read_record(cell.folder / "simulation.json", SimulationRecord)
    seeds = [seed, *(derive(seed, stage) for stage in ("partition", "weights", "candidates"))]
    hidden = [f"{seed:x}".encode(), cell.name.encode(), str(run.root.parent).encode()]
    hidden += [form for s in seeds for form in (str(s).encode(), s.to_bytes(8, "little"))]
    salts = [salt for value in secret.salts.values() for salt in value]
    hidden += [form for salt in salts for form in (salt.encode(), bytes.fromhex(salt))]
    hidden += [sha256.encode() for sha256 in record.truth.values()]
    hidden += [member.sha256.encode() for member in cell.truth.clients()]
    hidden += [cell.config.task.split.encode(), b"drawn@", b"train["]
    for name, content in files(sealed).items():
        assert not [form for form in hidden if form in content], name


@pytest.mark.parametrize("kind", ["texts", "images"])
def test_names_times_and_headers_say_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    sealed: SealedTrack = request.getfixturevalue(kind)
    store = CaptureStore(sealed.bundle / "captures")
    replies = {store.tensors_path(key) for key in store.keys()}
    expected = {path.with_suffix(end) for path in replies for end in (".json", ".safetensors")}
    names = {path.relative_to(sealed.bundle).as_posix() for path in expected}
    for path in (path for path in sealed.bundle.rglob("*") if path.is_file()):
        name = path.relative_to(sealed.bundle).as_posix()
        if path.parent.name == "models":
            assert path.stem == digest(path.read_bytes())
        else:
            assert name in names | ALLOWED
        assert path.stat().st_mtime == 0
        if path.suffix == ".safetensors":
            assert "__metadata__" not in _header(path)
    sizes = {path.stat().st_size for path in replies}
    assert len(sizes) == 1  # of one length, whatever the row's


def _header(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    table: dict[str, object] = json.loads(content[8 : 8 + length])
    return table


def test_a_commitment_without_its_salt_confirms_no_row(texts: SealedTrack) -> None:
    """Whoever owns every row of the data set can hash them all, and finds none."""
    manifest = files(texts)["bundle.json"]
    for row in rows(texts):
        parts = [t.numpy().tobytes() for t in (row.inputs, row.labels, row.mask) if t is not None]
        for content in (*parts, b"".join(parts)):
            assert hashlib.sha256(content).hexdigest().encode() not in manifest


def test_members_are_among_the_candidates_and_not_marked(members: SealedTrack) -> None:
    """The candidates are published, so that what must not be found is which of them are members."""
    (cell,) = Run.open(members.truth).cells
    candidates = cell.captures.candidates()
    assert candidates is not None
    public = {
        row.inputs.numpy().tobytes() for row in (candidates[i] for i in range(len(candidates)))
    }
    used = [row.inputs.numpy().tobytes() in public for row in rows(members)]
    assert 0 < sum(used) < len(used)  # half of the rows in use
    others = [row for row, known in zip(rows(members), used, strict=True) if not known]
    published = files(members)
    for row in others:
        assert not [
            n for n, content in published.items() if row.inputs.numpy().tobytes() in content
        ]
