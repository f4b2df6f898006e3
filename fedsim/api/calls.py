"""What the packages above do for a command beside them, at its first use.

To import this module costs neither torch nor pandas, and of those packages an extra gets these
names and no more.
"""

from __future__ import annotations

from typing import Any


def render(package: str, template: str, **values: Any) -> str:  # noqa: ANN401
    """The page that a package's template makes of values, in the layout that all pages share."""
    from experiments.report import templates

    return templates.render(package, template, **values)
