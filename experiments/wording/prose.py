"""Small parts of English sentences."""

from collections.abc import Sequence


def counted(count: float, noun: str) -> str:
    """``1 client``, ``2,000 clients``."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
