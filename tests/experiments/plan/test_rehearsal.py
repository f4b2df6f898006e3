"""``[capture]`` keeps some tensors of a reply: for the store, attacks, doctor and show."""

from typing import Any

import pytest
import torch

from attacks.base import Job
from attacks.span.span import Span
from experiments.checks.capture_check import examine
from experiments.plan.rehearsal import rehearse
from experiments.preview.show import describe
from experiments.wording.threat import threat_model
from fedsim.config.cell import CaptureConfig
from fedsim.errors import ConfigError
from fedsim.tasks import load_task
from tests.apps.cases import TEXT, Make, merge, simulate

BLOCK = "transformer.h.0"
GPT2 = merge(TEXT, {"name": "small-gpt2", "task": {"model": "tiny-gpt2"}})


def test_a_part_of_a_name_is_whole_between_dots() -> None:
    policy = CaptureConfig(tensors=("h.1", "wte"))
    names = (
        "h.1.attn.weight",
        "a.h.1",
        "h.10.attn.weight",
        "transformer.wte.weight",
        "wtes.weight",
    )
    assert [policy.keeps_tensor(name) for name in names] == [True, True, False, True, False]
    assert CaptureConfig().keeps_tensor("anything")


def test_what_is_kept_is_attacked_and_replayed(make_run: Make) -> None:
    capture = {"tensors": [BLOCK, "transformer.h.1.attn"]}
    run = make_run(GPT2, capture=capture, federation={"rounds": 1, "clients": 1})
    simulate(run)
    (cell,) = run.cells
    key = cell.captures.keys()[0]
    seen, whole = cell.captures.load(key), cell.truth.load(key)
    assert len(seen.received) == 16
    assert all(".h.0." in name or ".h.1.attn." in name for name in seen.received)
    assert {value.dtype for value in seen.received.values()} == {torch.float32}
    assert examine(run).faults == 0
    kept = rehearse([cell])[cell.name].reply_bytes
    assert kept == sum(value.nbytes for value in seen.received.values())
    assert kept == cell.captures.record(key).bytes
    card = dict(threat_model([cell.config]).protocol)["kept of a reply"]
    assert card == f"the tensors of {BLOCK}, transformer.h.1.attn"
    task = load_task(cell.captures.root)
    rng = torch.Generator().manual_seed(0)
    (recovered,) = Span().reconstruct([seen], task, [rng], Job())
    (guess,), (truth,) = task.examples(recovered.guess).tokens, task.examples(whole).tokens
    assert set(guess) & set(truth)


def test_a_fault_is_found_in_what_is_kept(make_run: Make) -> None:
    run = make_run(GPT2, capture={"tensors": [BLOCK]}, federation={"rounds": 1})
    simulate(run)
    (cell,) = run.cells
    changed = cell.config.capture.model_copy(update={"tensors": ("transformer.wpe",)})
    object.__setattr__(cell.config, "capture", changed)
    assert examine(run).faults == len(cell.captures.keys())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensors": ["h.7"]}, r"capture.tensors\[0\]: the clients send no tensor of 'h.7'. They"),
        ({"tensors": [BLOCK, BLOCK]}, "'transformer.h.0' occurs twice; remove one"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, Any], said: str, make_run: Make) -> None:
    def rehearsed() -> None:
        rehearse(make_run(GPT2, capture=changes, federation={"protocol": "fedavg"}).cells)

    with pytest.raises(ConfigError, match=said):
        rehearsed()


def test_show_says_the_bytes(make_run: Make) -> None:
    disk: list[int] = []
    for capture in ({}, {"tensors": [BLOCK]}):
        run = make_run(GPT2, folder=f"show-{len(disk)}", capture=capture)
        disk.append(describe(run.plan).parts[0].cost.disk)
    full, block = disk
    assert full > block
