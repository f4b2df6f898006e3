"""Pages of one template, which take the style of the report."""

from __future__ import annotations

from importlib.resources import files

from markupsafe import Markup

from experiments.report.tables import Number
from fedsim.visible import visible


def render(package: str, template: str, **values: object) -> str:
    """The page that a package's template makes of values; the report's style lies beside it."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    sources = {template: files(package), "report.css": files("experiments.report")}
    templates = {name: at.joinpath(name).read_text("utf-8") for name, at in sources.items()}
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["number"] = lambda value: isinstance(value, int | Number)
    return environment.get_template(template).render(**values)


def _shown(value: object) -> object:
    """Names of attacks and defenses may be a stranger's."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
