"""Whatever is asked of another application's captures wrongly is answered by one line."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments import cli
from fedsim.store.capture import CaptureStore
from fedsim.store.files import load_tensors, save_tensors, write_json
from fedsim.tasks import save_task
from fedsim.tasks.given import task_of
from tests.experiments.captures.cases import by_name, federate, numbered
from tests.experiments.captures.conftest import Held, Net, loss

GPT2 = "--model tiny-gpt2"
PLACE = "tests.experiments.captures.conftest"
NET = f"--model {PLACE}:Net --image-shape 1,8,8"
CODE = f"--model {PLACE}:Net --loss {PLACE}:loss"

# Command -> what is wrong, and the fix; NAMED, BARE, ... are folders of captures.
CASES: list[tuple[str, str, str]] = [
    ("attack BARE", "which model it is about", "MODULE:FUNCTION --image-shape 3,32,32"),
    ("attack BARE --model nowhere:Net", "'nowhere:Net' cannot be imported", "in the folder of"),
    ("attack BARE --model json:nothing", "'json:nothing' cannot be", "in the folder of"),
    ("attack BARE --model no/such", "'no/such' is neither", "Correct the name"),
    ("attack BARE --model torch.nn:Linear", "Linear() fails (TypeError", "without arguments"),
    ("attack BARE --model lenet", "a network of images", "module:function"),
    ("attack BARE --model tiny-bert", "tensor 0 has the shape", "Pass the model"),
    (f"attack BARE {GPT2} --tokenizer no/such", "'no/such'", "Correct the name"),
    (f"attack BARE {GPT2} --task classification", "as the vocabulary has", "Leave task out"),
    (
        f"attack BARE {GPT2} --knows eight",
        "--knows 'eight': expected key=value",
        "e.g. num_examples=1",
    ),
    (f"attack BARE {GPT2} --base lenet", "no pretrained weights", "Name a folder"),
    (f"attack BARE {NET} --input-shape 6x128", "--input-shape 6x128", "write numbers"),
    ("attack SAME", "equals what was sent", "Attack another capture"),
    ("attack CUT", "cut or altered", "."),
    (
        "attack .",
        "no run folder (experiment.toml is missing), no captures",
        "Correct the path",
    ),
    ("watch gone", "gone: there is no such folder", "Correct the path"),
    ("attack EMPTY", "no client's reply could be kept", "log says whether clients replied"),
    ("attack CODE", "no code that a file names is run", f"Name it yourself: {CODE}"),
    (f"attack CODE {NET}", "loss: that of Net is not known", f"Name both: {CODE}"),
    ("attack captured", "Nor is there a folder of this name", "fedsim list experiments"),
    ("run BARE", "holds captures of another application", "fedsim attack"),
    ("attack quickstart --model tiny-gpt2", "--model: is for the captures", "Leave it out"),
    ("score NAMED", "no score is possible", "--truth FOLDER"),
    ("score NAMED --truth .", "no examples of these captures", "in the same run"),
    ("score NAMED --truth TRUTH", "not attacked", "Run fedsim attack"),
    ("report NAMED", "not attacked", "Run fedsim attack"),
    ("doctor NAMED", "holds captures", "score"),
]


@pytest.fixture(scope="module")
def folders(held: Held, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of captures, most of them spoilt, and of models."""
    root = tmp_path_factory.mktemp("foreign")
    federate(held, held.model, by_name, root / "n", model=held.model, tokenizer=held.tokenizer)
    federate(held, held.model, numbered, root / "b")
    found = {"TRUTH": root / "n" / "private", "NAMED": root / "n" / "captures"}
    found["BARE"] = root / "b" / "captures"

    def copy(name: str, of: str, spoil: Callable[[dict[str, torch.Tensor]], object]) -> None:
        found[name] = root / name
        shutil.copytree(found[of], found[name])
        store = CaptureStore(found[name])
        for key in store.keys():
            record = store.record(key)
            tensors = load_tensors(store.tensors_path(key))
            ordered = {name: tensors[name] for name in record.order}
            spoil(ordered)
            sha256 = save_tensors(store.tensors_path(key), ordered)
            record = record.model_copy(update={"sha256": sha256, "order": tuple(ordered)})
            write_json(store.tensors_path(key).with_suffix(".json"), record)

    def same(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: held.before[name].clone() for name in tensors})

    copy("SAME", "NAMED", same)
    copy("CUT", "NAMED", lambda t: None)
    next(found["CUT"].glob("round-*/*.safetensors")).write_bytes(b"x")
    copy("CODE", "BARE", lambda t: None)
    save_task(task_of(Net, loss=loss, image_shape=(1, 8, 8)), found["CODE"])
    found["EMPTY"] = root / "EMPTY"
    write_json(found["EMPTY"] / "run.json", {"process": 1})
    return {name: str(path) for name, path in found.items()}


@pytest.mark.some(2)
@pytest.mark.parametrize(("command", "wrong", "fix"), CASES, ids=[case[0] for case in CASES])
def test_a_mistake_is_answered_in_one_line(
    command: str,
    wrong: str,
    fix: str,
    folders: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [folders.get(word, word) for word in command.split()]
    monkeypatch.setattr(sys, "argv", ["fedsim", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert wrong in said
    assert fix in said
    assert said.count("\n") == 1
