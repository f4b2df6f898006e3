"""State dicts before and after training, in files of any framework, are attacked like captures."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from experiments.captures.pairs import Exchange, _exchanges
from experiments.stages.search_errors import read_searches
from fedsim.errors import ConfigError
from fedsim.store import tensor_files
from fedsim.store.tensor_files import read_state_dict
from tests.experiments.captures.conftest import SENTENCE, Held
from tests.experiments.conftest import Said

MANIFEST = 'model = "tiny-gpt2"\nkind = "weights"\nlearning_rate = 0.1\nnum_examples = 1\n'
Write = Callable[[dict[str, torch.Tensor], Path], object]


def safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({k: v.clone() for k, v in tensors.items()}, path.with_suffix(".safetensors"))


def checkpoint(tensors: dict[str, torch.Tensor], path: Path) -> None:
    torch.save({"epoch": 3, "model": {"state_dict": tensors}}, path.with_suffix(".pt"))


def numpy(tensors: dict[str, torch.Tensor], path: Path) -> None:
    arrays: Any = {name: value.numpy() for name, value in tensors.items()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)


def pairs(held: Held, folder: Path, write: Write = safetensors, manifest: str = MANIFEST) -> Path:
    """Two clients in a round; the second moved its weights half as far."""
    (folder / "round-1").mkdir(parents=True)
    (folder / "updates.toml").write_text(manifest)
    half = {k: (v + held.before[k]) / 2 for k, v in held.after.items()}
    for name, tensors in (("before", held.before), ("site-1", held.after), ("site-2", half)):
        write(tensors, folder / "round-1" / name)
    return folder


@pytest.mark.some(3)
@pytest.mark.parametrize("write", [safetensors, checkpoint, numpy])
def test_pairs_of_any_format_are_attacked(
    write: Write, held: Held, tmp_path: Path, said: Said
) -> None:
    folder = pairs(held, tmp_path / "updates", write)
    code, text, _ = said("attack", folder, "--attacks", "span")
    assert (code, text.count(f"certified           {SENTENCE}")) == (0, 2)
    assert "round-0001-client-0001: span: 1 text, 1 certified" in text
    assert SENTENCE in (folder / "captures" / "run" / "report" / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_pairs_are_scored_by_files_named_as_the_replies(
    held: Held, tmp_path: Path, said: Said
) -> None:
    folder, truth = pairs(held, tmp_path / "updates"), tmp_path / "truth"
    said("attack", folder, "--attacks", "span")
    ids = torch.tensor([[*held.tokenizer(SENTENCE)["input_ids"], held.tokenizer.eos_token_id]])
    tensors = {"inputs": ids, "labels": ids.clone(), "mask": torch.ones_like(ids)}
    (truth / "round-1").mkdir(parents=True)
    save_file(tensors, truth / "round-1" / "site-1.safetensors")
    code, text, _ = said("score", folder, "--truth", truth, "--json")
    assert (code, json.loads(text)[0]["exact_match"], json.loads(text)[0]["examples"]) == (0, 1, 1)
    (searched,) = read_searches(folder / "captures" / "run")
    assert (searched.recovered, searched.missed) == (1, 0)  # of the other the truth is not known
    code, text, _ = said("report", folder, "--json")
    assert (code, json.loads(text)[0]["certified"]) == (0, 2)
    assert said("check", folder / "captures" / "run", "--max-verbatim", 0)[0] == 1
    # What was made stays until every file can be read.
    whole = (folder / "round-1" / "site-2.safetensors").read_bytes()
    (folder / "round-1" / "site-2.safetensors").write_bytes(whole[:100])
    assert said("attack", folder, "--attacks", "span")[0] == 2
    (folder / "round-1" / "site-2.safetensors").write_bytes(whole)
    assert said("report", folder)[0] == 0
    # A file that changes makes other captures, which nobody has attacked.
    safetensors(held.before, folder / "round-1" / "site-2")
    code, _, line = said("report", folder)
    assert (code, "not attacked" in line) == (2, True)


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch PWNED",)


def saved(content: Any, name: str = "site-1.pt") -> Callable[[Path], None]:
    return lambda folder: torch.save(content, folder / name)


def written(content: bytes, name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def cut_short(folder: Path) -> None:
    torch.save({"a": torch.ones(500)}, folder / "site-1.pt")
    (folder / "site-1.pt").write_bytes((folder / "site-1.pt").read_bytes()[:700])


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (written(pickle.dumps({"a": Runs()}), "site-1.pt"), "could run code"),
        (saved({"a": torch.ones(2), "b": Runs()}), "could run code"),
        (
            lambda at: np.savez(at / "site-1.npz", a=np.array([Runs()], dtype=object)),
            "cannot be read (Object arrays cannot be loaded",
        ),
        (written(b"PK\x03\x04 nothing", "site-1.npz"), "cannot be read"),
        (cut_short, "cannot be read"),
        (saved({"a": torch.zeros(1).expand(1 << 40)}), "larger than its data"),
        (saved([torch.ones(2)]), "holds list, and no state dict"),
        (saved({"a": torch.eye(3).to_sparse()}), "is no dense tensor"),
        (
            lambda folder: (folder / "site-1.pt").symlink_to("/etc/passwd"),
            "a link, where fedsim keeps plain files",
        ),
        (
            saved({"a": torch.ones(2)}, "before.pt"),
            "holds before.pt and before.safetensors. Remove one",
        ),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(
    spoil: Callable[[Path], object],
    fault: str,
    held: Held,
    tmp_path: Path,
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pairs(held, tmp_path / "updates")
    (folder / "round-1" / "site-1.safetensors").unlink()
    spoil(folder / "round-1")
    code, _, line = said("attack", folder)
    assert (code, line.count("\n")) == (2, 1)
    assert fault in line
    assert not (tmp_path / "PWNED").exists()
    assert not (folder / "captures" / "run.json").exists()


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "site-1.npz", a=np.zeros(1 << 20))
    assert len(read_state_dict(tmp_path / "site-1.npz")["a"]) == 1 << 20
    monkeypatch.setattr(tensor_files, "memory", lambda: 1 << 22)
    with pytest.raises(ConfigError, match=r"unpacks to .* more than fits"):
        read_state_dict(tmp_path / "site-1.npz")


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ('model = "app.py:Net"\n', "Name it yourself: --model app.py:Net"),
        ('model = "tiny-gpt2"\nloss = "os:system"\n', "Name it yourself: --loss os:system"),
        ('model = "tiny-gpt2"\nlearning_rat = 0.1\n', "Did you mean 'learning_rate'"),
        ('kind = "wieghts"\n', "kind"),
        ('kind = "weights"\n', "which model they are of"),
        ("model = [\n", "updates.toml"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_in_one_line(
    manifest: str, fault: str, held: Held, tmp_path: Path, said: Said
) -> None:
    folder = pairs(held, tmp_path / "updates", manifest=manifest)
    code, _, line = said("attack", folder)
    assert (code, line.count("\n")) == (2, 1)
    assert fault in line


def test_a_folder_without_a_pair_says_how_to_write_one(tmp_path: Path, said: Said) -> None:
    (tmp_path / "updates.toml").write_text(MANIFEST)
    code, _, line = said("attack", tmp_path)
    assert (code, "holds no pair" in line) == (2, True)


@pytest.mark.parametrize(
    "write",
    [safetensors, *(pytest.param(write, marks=pytest.mark.slow) for write in (checkpoint, numpy))],
)
def test_state_dicts_are_attacked_by_the_model_alone(
    write: Write, held: Held, tmp_path: Path, said: Said
) -> None:
    folder = pairs(held, tmp_path / "updates", write)
    (folder / "updates.toml").unlink()
    code, text, error = said("attack", folder, "--attacks", "span")
    assert (code, text) == (2, "")
    assert "Pass --model" in error
    assert "updates.toml" in error
    named = ("--model", "tiny-gpt2", "--kind", "weights")
    facts = ("--knows", "learning_rate=0.1", "--knows", "num_examples=1")
    code, text, _ = said("attack", folder, "--attacks", "span", *named, *facts)
    assert (code, text.count(f"certified           {SENTENCE}")) == (0, 2)
    # What was noted serves the next command.
    assert said("attack", folder, "--attacks", "span", *facts)[0] == 0
    assert said("report", folder)[0] == 0


def exchanged(folder: Path, *names: str) -> list[Exchange]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return list(_exchanges(folder))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("before.pt", "a.pt", "b.pt"), [(1, "before.pt", ["a", "b"], "name")]),
        (("global.npz", "site-2.npz"), [(1, "global.npz", ["site-2"], "name")]),
        (("r1/sent.pt", "r1/x.pt"), [(1, "r1/sent.pt", ["x"], "name")]),
        (("epoch0.pt", "epoch1.pt"), [(1, "epoch0.pt", ["epoch1"], "order")]),
        (
            ("a_before.pt", "a_after.pt", "b_before.pt", "b_after.pt"),
            [(1, "a_before.pt", ["a"], "name"), (1, "b_before.pt", ["b"], "name")],
        ),
        (("pre-training.pt", "post-training.pt"), [(1, "pre-training.pt", ["training"], "name")]),
        (
            ("round-1/server.pt", "round-1/c-1.pt", "round-2/server.pt", "round-2/c-1.pt"),
            [(1, "round-1/server.pt", ["c-1"], "name"), (2, "round-2/server.pt", ["c-1"], "name")],
        ),
        (("before.pt",), []),
    ],
)
def test_before_and_after_are_paired_by_name_or_order(
    names: tuple[str, ...], expected: list[Any], tmp_path: Path
) -> None:
    found = exchanged(tmp_path, *names)
    assert [
        (each.number, str(each.before.relative_to(tmp_path)), list(each.replies), each.by)
        for each in found
    ] == expected


def test_files_of_which_none_is_the_broadcast_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a.pt, b.pt, c.pt .*before.pt"):
        exchanged(tmp_path, "a.pt", "b.pt", "c.pt")


def test_a_model_is_no_folder_of_updates(tmp_path: Path, said: Said) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    code, _, error = said("attack", tmp_path, "--model", "tiny-gpt2")
    assert (code, "captures of another" in error) == (2, True)
