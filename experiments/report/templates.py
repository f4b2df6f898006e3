"""The templates of all pages: what an expression gives is escaped and made visible."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.tables import Number
from fedsim.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment


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
