"""What the attacker owns is no private text, also once both are cut."""

from __future__ import annotations

import pytest

from fedsim.config.cell import AuxiliaryConfig, CaptureConfig, CellConfig, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.server_knows import ServerKnows
from fedsim.config.setting import Setting, _apart, load_setting
from fedsim.errors import ConfigError
from fedsim.tasks.text import TextTask, texts_of
from fedsim.types import Rows


def loaded(max_length: int) -> Setting:
    task = TaskConfig(
        model="tiny-gpt2", dataset="sentences", heldout_split="test", max_length=max_length
    )
    return load_setting(
        CellConfig(
            seed=0,
            task=task,
            auxiliary=AuxiliaryConfig(split="public"),
            federation=FederationConfig(clients=2),
            capture=CaptureConfig(),
            server_knows=ServerKnows(),
            defense=(),
        )
    )


def test_no_auxiliary_text_is_private_after_the_cut() -> None:
    setting = loaded(6)
    task, auxiliary = setting.task, setting.holdings.auxiliary
    assert isinstance(task, TextTask)
    assert auxiliary is not None

    def lines(rows: Rows) -> set[tuple[int, ...]]:
        return set(map(tuple, task.tokens(texts_of(rows, "tiny-gpt2"))))

    assert lines(auxiliary).isdisjoint(lines(setting.holdings.private))
    assert 900 < len(auxiliary) < 1000  # some of a thousand begin like private ones


def test_a_cut_that_leaves_nothing_is_one_line() -> None:
    setting = loaded(6)
    private = setting.holdings.private
    assert isinstance(setting.task, TextTask)
    with pytest.raises(ConfigError, match=r"^auxiliary: of 6 tokens every text is a private one"):
        _apart(setting.task, private, private)
