"""What mkdocs calls while it builds: generated pages and their place in the navigation."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from docs.reference import Page, pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_MADE: dict[str, Page] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the section "Reference"."""
    _MADE.clear()
    _MADE.update({page.path: page for page in pages()})
    sections: dict[str, list[Any]] = {}
    for page in _MADE.values():
        folder = posixpath.basename(posixpath.dirname(page.path))
        sections.setdefault(folder, []).append({page.title: page.path})
    single = sections.pop("reference")
    folders = [{name.capitalize(): entries} for name, entries in sections.items()]
    for section in config.nav or []:
        if "Reference" in section:
            section["Reference"] += [*single, *folders]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for page in _MADE.values():
        files.append(File.generated(config, page.path, content=page.text))
    return files
