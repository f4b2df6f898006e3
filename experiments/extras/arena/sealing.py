"""``fedsim seal``: a simulated cell becomes a public bundle, and a truth that opens it.

The bundle holds what the server saw and nothing that the rows follow from. The seed of the run is
such a thing: who has it and the data set draws the victims again, and who can guess it checks the
guess on the first broadcast, whose weights are drawn by the same seed. Hence a seed that cannot be
searched is asked for.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.extras.arena.records import BUNDLE, MINUTES, SECRET, Bundle, Rules, Secret
from fedsim import __version__
from fedsim.api import Run, StoredCell
from fedsim.api.calls import attack_captures, check_run, without_null
from fedsim.data.rows import Split
from fedsim.errors import ConfigError, StoreError
from fedsim.records import MAIN, PRIOR_ONLY
from fedsim.seeds import SECRET_BITS
from fedsim.store.capture import CaptureStore, batch_tensors
from fedsim.store.files import (
    copy_files,
    digest,
    hashes,
    read_bytes,
    read_record,
    write_bytes,
    write_json,
)
from fedsim.store.plain_files import check_folder, digest_plain, make_private
from fedsim.store.truth import TruthRecord, TruthStore
from fedsim.tasks import load_task
from fedsim.types import Batch

_PART = ".sealing"
"""Where both folders are written; what a stopped command left there is made again."""
_PUBLIC = ("task.json", "auxiliary.safetensors", "candidates.safetensors")


@dataclass(frozen=True)
class SealedTrack:
    """What ``seal`` wrote.

    Attributes:
        bundle: the folder to publish.
        truth: the folder to keep.
        rows: number of commitments.
        sha256: of the bundle's manifest.
    """

    bundle: Path
    truth: Path
    rows: int
    sha256: str


def seal(run: Run, out: Path, minutes: float = MINUTES) -> SealedTrack:
    """Write ``out/bundle`` and ``out/truth``.

    Args:
        run: of one cell, simulated.
        out: a new folder.
        minutes: CPU minutes that a submission may use.

    Raises:
        ConfigError: the run would give its rows away, or a grade of it would have no null.
        StoreError: a file of the run was altered.
    """
    bundle, truth, part = out / "bundle", out / "truth", out / _PART
    if (truth / SECRET).is_file() and (part / "bundle").is_dir() and not bundle.exists():
        return _put_in_place(out)  # an earlier command was stopped between the two
    cell = _only_cell(run)
    if bundle.exists() or truth.exists():
        raise ConfigError(f"{out}: something was sealed there already. Name another folder.")
    check_folder(run.root)
    _check(run, cell)
    check_run(run.root)
    shutil.rmtree(part, ignore_errors=True)
    _write(run, cell, part, minutes)
    return _put_in_place(out)


def _write(run: Run, cell: StoredCell, out: Path, minutes: float) -> None:
    bundle, truth = out / "bundle", out / "truth"
    sealed = _copy_truth(run, cell, truth)
    _run_prior(sealed)
    _publish(sealed.captures, bundle / "captures")
    salts = new_salts(sealed.truth)
    rows = commitments(sealed.truth, salts)
    manifest = Bundle(
        fedsim=__version__,
        rules=_rules(run, sealed, minutes),
        files=hashes(bundle / "captures"),
        commitments=rows,
    )
    write_json(bundle / BUNDLE, manifest)
    for path in bundle.rglob("*"):
        os.utime(path, (0, 0))  # when a client's file was written is nobody's business
    sha256 = digest_plain(bundle / BUNDLE)
    write_json(truth / SECRET, Secret(bundle=sha256, salts=salts, files=hashes(truth)))


def _put_in_place(out: Path) -> SealedTrack:
    """Give both folders their names, the bundle last: where it is, all is sealed."""
    bundle, truth, part = out / "bundle", out / "truth", out / _PART
    if not truth.exists():
        (part / "truth").rename(truth)
    (part / "bundle").rename(bundle)
    part.rmdir()
    rows = len(read_record(bundle / BUNDLE, Bundle).commitments)
    return SealedTrack(bundle, truth, rows, digest_plain(bundle / BUNDLE))


def _only_cell(run: Run) -> StoredCell:
    if len(run.cells) != 1:
        raise ConfigError(
            f"{run.root}: has {len(run.cells)} cells, and a track is one. Keep one seed, one "
            "defense and no sweep."
        )
    (cell,) = run.cells
    if not cell.simulated:
        raise ConfigError(f"{run.root}: not simulated. Run fedsim simulate {run.root} first.")
    return cell


def _check(run: Run, cell: StoredCell) -> None:
    """Refuse what would give rows away, or leave a grade without its null."""
    config = cell.config
    if config.seed.bit_length() < SECRET_BITS:
        raise ConfigError(
            f"seeds: {config.seed} can be guessed, and with it the victims drawn again. Let fedsim "
            "seal draw it, by naming the experiment in place of the run, or simulate with a secret "
            f"--seed of {SECRET_BITS} bits or more."
        )
    key = Split.parse(config.task.split, config.task.dataset).key
    if key is not None and key.bit_length() < SECRET_BITS:
        raise ConfigError(
            f"task.split: {config.task.split} has a key that can be guessed. Let fedsim seal draw "
            f"it, or write one of {SECRET_BITS} bits or more."
        )
    if config.probes.count:
        raise ConfigError("probes: a track has clients alone. Leave the probes out.")
    if not config.server_knows.num_examples:
        raise ConfigError(
            "server_knows.num_examples: a track fixes how many guesses a client gets. Grant it."
        )
    if lonely := without_null(run.root):
        raise ConfigError(
            f"{lonely[0]}: no other client has the same granted facts, so that nobody's guess can "
            "be the null. Withhold labels and lengths, or give clients equal numbers of rows."
        )


def _copy_truth(run: Run, cell: StoredCell, truth: Path) -> StoredCell:
    """A run folder of its own, without attacks; its cell."""
    make_private(truth)
    copy_files(run.root / "experiment.toml", truth / "experiment.toml")
    folder = truth / cell.name
    copy_files(cell.folder / "captures", folder / "captures")
    copy_files(cell.folder / "truth", folder / "truth")
    for name in ("cell.json", "simulation.json"):
        copy_files(cell.folder / name, folder / name)
    return Run.open(truth).cells[0]


def _run_prior(cell: StoredCell) -> None:
    """The guesses of the baseline that sees no update, for every grade to be compared with."""
    captures, guesses = cell.captures.root, cell.folder / "guesses"
    attack_captures(captures, guesses, PRIOR_ONLY, {"name": PRIOR_ONLY}, cell.config.seed)


def _publish(captures: CaptureStore, folder: Path) -> None:
    """Copy what attacks may see, file by file: nothing is published that is not named here."""
    names = [name for name in _PUBLIC if (captures.root / name).exists()]
    tokenizer = captures.root / "tokenizer"
    names += [str(path.relative_to(captures.root)) for path in tokenizer.glob("*")]
    for key in captures.keys():
        captures.load(key)  # checks the tensors against their hashes
        path, record = captures.tensors_path(key), captures.record(key)
        sent = captures.sent_path(record.sent_sha256)
        names += [str(file.relative_to(captures.root)) for file in (path, sent)]
        names.append(str(path.with_suffix(".json").relative_to(captures.root)))
    for name in dict.fromkeys(names):
        write_bytes(folder / name, read_bytes(captures.root / name))


def _rules(run: Run, cell: StoredCell, minutes: float) -> Rules:
    candidates, store = cell.captures.candidates(), cell.captures
    task = load_task(store.root, network=False)
    examples = {str(key): store.record(key).knowledge.num_examples or 0 for key in store.keys()}
    answers = examples if candidates is None else dict.fromkeys(examples, len(candidates))
    config = cell.config.task
    return Rules(
        track=str(run.experiment["experiments"][0]["name"]),
        asked="rows" if candidates is None else "membership",
        metric=MAIN[task.modality] if candidates is None else "membership_auc",
        model=config.model,
        dataset=config.dataset,
        drawn=Split.parse(config.split, config.dataset).key is not None,
        cpu_minutes=minutes,
        answers=answers,
    )


SALT_BYTES = 32


def new_salts(truth: TruthStore) -> dict[str, tuple[str, ...]]:
    """A salt for each private row, by client and round."""
    return {
        str(record.key): tuple(secrets.token_hex(SALT_BYTES) for _ in record.rows)
        for record in truth.clients()
    }


def commitments(truth: TruthStore, salts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The commitments to all rows of a truth folder, sorted.

        commitment = SHA-256(salt | name of the capture | place in the batch | tensors of the row)

    With 32 random bytes of salt a commitment says nothing about its row, however few rows a data
    set has, and no other row can be found that opens it.

    Raises:
        StoreError: the salts are not those of these rows.
    """
    return tuple(sorted(_commit(truth, salts)))


def _commit(truth: TruthStore, salts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for record in truth.clients():
        of_rows = salts.get(str(record.key), ())
        if len(of_rows) != len(record.rows):
            raise StoreError(
                f"{truth.root}: {record.key} has {len(record.rows)} rows and {len(of_rows)} salts. "
                "Restore the truth that fedsim seal wrote."
            )
        batch = truth.batch(record)
        for place, salt in enumerate(of_rows):
            yield digest(bytes.fromhex(salt), *_parts(record, place, batch))


def _parts(record: TruthRecord, place: int, batch: Batch) -> Iterator[bytes]:
    yield f"{record.key} {place}".encode()
    for name, tensor in sorted(batch_tensors(batch).items()):
        row = tensor[place].contiguous()
        yield f" {name} {row.dtype} {tuple(row.shape)} ".encode()
        yield row.numpy().tobytes()
