"""The templates of all pages: text is escaped, made visible, and not broken inside a number."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from experiments.analysis.summary import metric_classes
from experiments.report.figures import INK, Figure
from experiments.report.gallery import data_uri, mark, words
from experiments.report.statements import shade
from experiments.report.tables import text_of
from experiments.wording.catalogue import Said, sentence, short_terms
from experiments.wording.names import duration, show, title
from fedsim.records import shown
from fedsim.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

SHARED = ("layout.html.j2", "macros.html.j2", "report.css")
SCRIPT = files("experiments.report").joinpath("report.js").read_text("utf-8")
"""Of the pages of results: it opens and compares."""
_TOGETHER = re.compile(
    r"\[[^\[\] ]+, [^\[\] ]+\](?: dB)?"  # [-0.3, 0.4] dB
    r"|[\d.,]*\d (?:%|dB|points)"
    r"|\b(?=[\w-]*[A-Z\d])[^\W_]+(?:-[^\W_]+)+\b"  # ROUGE-L, tiny-gpt2
    r"|\b\w{1,16}=[^\s,;()]{1,16}(?![^\s,;()])"  # std=1e-4
    r"|\b(?:PSNR|FedSGD|FedAvg|SPEAR|perplexity|L1)\b"
)


def render(
    package: str, template: str, *, script: str = "", connect: str = "'none'", **values: object
) -> str:
    """The page that a package's template makes of values, in the layout that all pages share.

    Args:
        package: holds the template.
        template: its name.
        script: the one that the page's security policy lets run, by its hash.
        connect: what the script may connect to.
        values: what the template takes.
    """
    return laid_out(environment(package, template), template, script, connect, **values)


def laid_out(
    pages: Environment, template: str, script: str, connect: str = "'none'", **values: object
) -> str:
    """The page that one of some templates makes of values, see ``render``."""
    return pages.get_template(template).render(
        policy=Markup(policy(script, connect)),  # ours, as the script is
        script=Markup(script),
        **values,
    )


def policy(script: str, connect: str = "'none'") -> str:
    """The content security policy of a page: no address but data, no script but this one."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    scripts = f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; connect-src {connect}; "
        f"script-src {scripts}"
    )


def inline(figure: Figure) -> Markup:
    """The figure as a part of a page, in the ink of its text."""
    return Markup(figure.svg.replace(INK, "currentColor"))


def environment(package: str, *templates: str) -> Environment:
    """Templates of a package beside those that all pages share."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    places = dict.fromkeys(SHARED, "experiments.report") | dict.fromkeys(templates, package)
    sources = {
        name: files(place).joinpath(name).read_text("utf-8") for name, place in places.items()
    }
    # Reconstructed text is hostile input: whatever is not marked safe here gets escaped.
    pages = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["bound"] = Binder()
    pages.globals |= {
        "inline": inline,
        "is_text": lambda value: isinstance(value, str),
        "metric_class": metric_classes().get,
    } | {
        each.__name__: each
        for each in (data_uri, duration, mark, sentence, shade, show, shown, text_of, title, words)
    }
    return pages


def _shown(value: object) -> object:
    """What an expression gives, made visible unless it is HTML of ours."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Binder:
    """Marks up the sentences of one page; each term is explained where it first occurs."""

    def __init__(self) -> None:
        self._left = short_terms()

    def __call__(self, said: str | Said) -> Markup:
        """The text as HTML: escaped, with what belongs together in elements that do not break."""
        parts, end, text = [], 0, visible(str(said))
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
