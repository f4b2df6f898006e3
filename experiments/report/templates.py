"""The templates of all pages: text is escaped, made visible, and not broken inside a number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from experiments.report.tables import Number
from fedsim.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment


EXPLAINED = {
    "PSNR": "peak signal-to-noise ratio of an image, in decibels: higher is closer to the truth",
    "ROUGE-L": "words recovered in their order, from 0 to 1: higher is closer to the truth",
    "FedSGD": "each client sends the gradient of one batch",
    "FedAvg": "each client sends its weights after one or more steps of its own",
    "SPEAR": "solves for the rows of a batch exactly, from the sparsity of ReLU gradients",
    "perplexity": "exp of the loss of a held-out token: lower is a better model",
    "L1": "the setting easiest for the attacker, of four: see Realism under Definitions",
}
"""Terms, and what a reader has to know of them where they first occur."""
_TOGETHER = re.compile(
    r"\[[^\[\] ]+, [^\[\] ]+\](?: dB)?"  # [-0.3, 0.4] dB
    r"|[\d.,]*\d (?:%|dB|points)"
    r"|\b(?=[\w-]*[A-Z\d])[^\W_]+(?:-[^\W_]+)+\b"  # ROUGE-L, tiny-gpt2
    r"|\b\w{1,16}=[^\s,;()]{1,16}(?![^\s,;()])"  # std=1e-4
    r"|\b(?:PSNR|FedSGD|FedAvg|SPEAR|perplexity|L1)\b"
)


def render(package: str, template: str, **values: object) -> str:
    """The page that a package's template makes of values; the report's style lies beside it."""
    pages = environment({template: package, "report.css": "experiments.report"})
    pages.tests["number"] = lambda value: isinstance(value, int | Number)
    return pages.get_template(template).render(**values)


def environment(packages: Mapping[str, str]) -> Environment:
    """Templates by name, each from the package that holds it."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    sources = {
        name: files(package).joinpath(name).read_text("utf-8") for name, package in packages.items()
    }
    # Reconstructed text is hostile input: whatever is not marked safe here gets escaped.
    return Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> object:
    """What an expression gives, made visible unless it is HTML of ours."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Binder:
    """Marks up the sentences of one page; each term is explained where it first occurs."""

    def __init__(self) -> None:
        self._left = dict(EXPLAINED)

    def __call__(self, text: str) -> Markup:
        """The text as HTML: escaped, with what belongs together in elements that do not break."""
        parts, end, text = [], 0, visible(text)
        for phrase in _TOGETHER.finditer(text):
            parts += [escape(text[end : phrase.start()]), self._bound(phrase.group())]
            end = phrase.end()
        return Markup("").join([*parts, escape(text[end:])])

    def _bound(self, text: str) -> Markup:
        meaning = self._left.pop(text, None)
        if meaning is not None:
            mark = Markup('<abbr class="span" title="{}">{}</abbr>')
            return mark.format(meaning, text)
        return Markup('<span class="span">{}</span>').format(text)
