"""Text of the page whose numbers, intervals and names are not broken over two lines."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from fedsim.visible import visible

EXPLAINED = {
    "PSNR": "peak signal-to-noise ratio of an image, in decibels: higher is closer to the truth",
    "ROUGE-L": "words recovered in their order, from 0 to 1: higher is closer to the truth",
}
"""Measures, and what a reader has to know of them where they first occur."""

_TOGETHER = re.compile(
    r"\[[^\[\] ]+, [^\[\] ]+\](?: dB)?"  # [-0.3, 0.4] dB
    r"|[\d.,]*\d (?:%|dB|points)"
    r"|\b(?=[\w-]*[A-Z\d])[^\W_]+(?:-[^\W_]+)+\b"  # ROUGE-L, tiny-gpt2
    r"|\b\w{1,16}=[^\s,;()]{1,16}(?![^\s,;()])"  # std=1e-4
    r"|\bPSNR\b"
)


class Binder:
    """Marks up the sentences of one page; each measure is explained where it first occurs."""

    def __init__(self) -> None:
        self._left = dict(EXPLAINED)

    def __call__(self, text: str) -> Markup:
        """The text as HTML: escaped, with what belongs together in elements that do not break."""
        parts, end, text = [], 0, visible(text)
        for found in _TOGETHER.finditer(text):
            parts += [escape(text[end : found.start()]), self._bound(found.group())]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])

    def _bound(self, text: str) -> Markup:
        meaning = self._left.pop(text, None)
        if meaning is not None:
            mark = Markup('<abbr class="span" title="{}">{}</abbr>')
            return mark.format(meaning, text)
        return Markup('<span class="span">{}</span>').format(text)
