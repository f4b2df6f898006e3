"""Texts joined to blocks."""

import pytest

from fedsim.config.cell import CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.setting import Setting, load_setting
from fedsim.errors import ConfigError
from fedsim.tasks.language_modelling import LanguageModelling


def loaded(model: str = "tiny-gpt2", *, packed: bool) -> Setting:
    task = TaskConfig(
        model=model, dataset="sentences", heldout_split="test", max_length=60, packed=packed
    )
    return load_setting(
        CellConfig(
            seed=0,
            task=task,
            auxiliary=None,
            federation=FederationConfig(clients=2),
            capture=CaptureConfig(),
            server_knows=ServerKnows(),
            defense=(),
        )
    )


def test_blocks_hold_whole_neighbouring_texts() -> None:
    alone = loaded(packed=False)
    both = loaded(packed=True)
    task, rows, blocks = alone.task, alone.holdings.private, both.holdings.private
    assert isinstance(task, LanguageModelling)
    assert isinstance(rows.inputs, tuple)
    end = task.tokenizer.eos_token_id
    lines = [line[1:-1] for line in task.tokens(tuple(rows.inputs))]
    seen: list[list[int]] = []
    for block in task.tokens(tuple(blocks.inputs)):
        assert len(block) <= 60
        parts: list[list[int]] = [[]]
        for token in block[1:-1]:
            if token == end:
                parts.append([])
            else:
                parts[-1].append(token)
        # The next text would not have fitted in.
        follower = lines[len(seen) + len(parts) : len(seen) + len(parts) + 1]
        assert not follower or len(block) + 1 + len(follower[0]) > 60
        seen += parts
    assert seen == lines
    assert len(blocks) < len(rows)
    first = [rows.inputs.index(text.split("<", 1)[0]) for text in blocks.inputs[:3]]
    assert blocks.numbers[:3] == tuple(rows.numbers[i] for i in first)
    assert both.holdings.heldout.inputs == alone.holdings.heldout.inputs


def test_other_tasks_are_not_packed() -> None:
    with pytest.raises(ConfigError, match=r"task\.packed: .*'text-classification'\. Leave it out"):
        loaded("tiny-bert", packed=True)
