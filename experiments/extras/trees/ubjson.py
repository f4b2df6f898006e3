"""Universal Binary JSON (draft 12), as XGBoost writes it."""

from typing import Any

import numpy as np

_NUMBERS = {
    "i": ">i1",
    "U": ">u1",
    "I": ">i2",
    "l": ">i4",
    "L": ">i8",
    "d": ">f4",
    "D": ">f8",
}
_WORDS = {"Z": None, "T": True, "F": False}
_DEEPEST = 32
"""A model nests 7 deep. Half and double of it read the same models."""


def loads(data: bytes) -> Any:  # noqa: ANN401
    """The value that the bytes hold; typed lists of numbers become arrays.

    Raises:
        ValueError: they are no UBJSON, end early, or nest too deep.
    """
    reader = _Reader(data)
    value = reader.value(reader.mark())
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow its end")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth = data, 0, 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError(f"ends early, at byte {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def mark(self) -> str:
        return self.take(1).decode("latin-1")

    def value(self, mark: str) -> Any:  # noqa: ANN401
        if mark in _NUMBERS:
            kind = np.dtype(_NUMBERS[mark])
            return np.frombuffer(self.take(kind.itemsize), kind)[0].item()
        if mark in _WORDS:
            return _WORDS[mark]
        readers = {"S": self.text, "[": self.list, "{": self.table}
        if mark not in readers:
            raise ValueError(f"has the mark {mark!r} at byte {self.at - 1}")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError(f"nests deeper than {_DEEPEST}")
        value = readers[mark]()
        self.depth -= 1
        return value

    def text(self) -> str:
        return self.take(self.length()).decode()

    def length(self) -> int:
        mark = self.mark()
        if mark not in "iUIlL":
            raise ValueError(f"has a length of the type {mark!r} at byte {self.at - 1}")
        return int(self.value(mark))

    def follows(self, mark: str) -> bool:
        """Whether the next byte is this one, which is then passed."""
        matches = self.data[self.at : self.at + 1] == mark.encode()
        self.at += matches
        return matches

    def bounds(self) -> tuple[str, int | None]:
        """Type and length of a container, where they are said."""
        kind = self.mark() if self.follows("$") else ""
        count = self.length() if self.follows("#") else None
        if kind and count is None:
            raise ValueError(f"has a typed container without a length at byte {self.at}")
        if count is not None and not 0 <= count <= len(self.data):
            raise ValueError(f"has a container of {count} entries")
        return kind, count

    def list(self) -> Any:  # noqa: ANN401
        kind, count = self.bounds()
        if kind in _NUMBERS and count is not None:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype)
        entries: list[Any] = []
        while len(entries) < count if count is not None else not self.follows("]"):
            entries.append(self.value(kind or self.mark()))
        return entries

    def table(self) -> dict[str, Any]:
        kind, count = self.bounds()
        entries: dict[str, Any] = {}
        while len(entries) < count if count is not None else not self.follows("}"):
            name = self.text()
            entries[name] = self.value(kind or self.mark())
        return entries
