"""Texts packed into blocks, as fine-tuning recipes do to waste no padding."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.errors import ConfigError
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.types import Rows


def packed(task: LanguageModelling, rows: Rows) -> Rows:
    """Neighbouring texts joined by the end token, as many as a block has room for.

    A block is one example: its texts see one another in the attention, as where documents are not
    masked. No text is split; one that is longer than a block is cut. A block has the number of its
    first text.

    Args:
        task: defines the tokens and the room.
        rows: texts.

    Raises:
        ConfigError: the tokenizer has no end token.
    """
    between = task.tokenizer.eos_token
    if between is None:
        raise ConfigError(
            f"task.packed: the tokenizer of {task.spec.model!r} has no end token to set between "
            "texts. Leave it out."
        )
    assert isinstance(rows.inputs, tuple)
    texts = rows.inputs
    blocks = _blocks([len(line) for line in task.pieces(texts)], task.room)
    joined = tuple(str(between).join(texts[i] for i in block) for block in blocks)
    return Rows(
        joined,
        rows.labels[[block[0] for block in blocks]],
        tuple(rows.numbers[block[0]] for block in blocks),
        rows.class_names,
    )


def _blocks(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Positions of neighbours that fit together, with one token between two."""
    blocks: list[list[int]] = []
    free = -1
    for position, length in enumerate(lengths):
        if length + 1 <= free:
            blocks[-1].append(position)
            free -= length + 1
        else:
            blocks.append([position])
            free = room - length
    return blocks
