"""Hooks of the mkdocs build: the home page, the reference, and the code behind links."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.manuals import Page, pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page as RenderedPage

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(((?:\.\./)+)((?!\.)[\w./-]+)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}
_PAGES: dict[str, Page] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the section "Reference"."""
    _PAGES.clear()
    _PAGES.update({page.path: page for page in pages()})
    sections: dict[str, list[Any]] = {}
    for page in _PAGES.values():
        folder = posixpath.basename(posixpath.dirname(page.path))
        sections.setdefault(folder, []).append({page.title: page.path})
    single = sections.pop("reference")
    folders = [{name.capitalize(): entries} for name, entries in sections.items()]
    for section in config.nav or []:
        if "Reference" in section:
            section["Reference"] += [*single, *folders]
    _PAGES["index.md"] = Page("index.md", "Home", home())
    for file in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = Page(f"notebooks/{file.stem}.md", file.stem, notebook(file))
        _PAGES[page.path] = page
    for path in linked():
        _PAGES[f"source/{path}.md"] = Page(f"source/{path}.md", path, source(path))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for page in _PAGES.values():
        files.append(File.generated(config, page.path, content=page.text))
    return files


BOOSTS = {"source/": 0.1, "decisions/": 0.5, "how-to/": 3.0, "tutorial/": 2.0}
"""Weight of the pages of a folder in the search: who asks wants to know how, not the code."""


def on_page_markdown(markdown: str, page: RenderedPage, **_: object) -> str:
    """Lead links to notebooks, and to files outside ``docs/``, to their pages; set weights."""
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    folder = posixpath.dirname(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        path = outside(folder, link[1], link[2])
        if path is None:
            return link[0]
        return f"]({posixpath.relpath(f'source/{path}.md', folder or '.')})"

    if folder != "notebooks":  # whose pages link to the notebook itself
        markdown = markdown.replace(".ipynb)", ".md)")
    return LINK.sub(led, markdown)


def outside(folder: str, up: str, path: str) -> str | None:
    """The file of the repository that a link in ``docs/<folder>`` means, if it is one."""
    target = posixpath.normpath(posixpath.join("docs", folder, up, path))
    return None if target.startswith(("docs/", "..")) else target


def linked() -> list[str]:
    """The files outside ``docs/`` that its pages link to."""
    paths = set()
    for page in (ROOT / "docs").rglob("*.md"):
        folder = page.parent.relative_to(ROOT / "docs").as_posix()
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            if path := outside("" if folder == "." else folder, link[1], link[2]):
                paths.add(path)
    return sorted({*paths, *ABOUT})


ABOUT = ("CONTRIBUTING.md", "SECURITY.md", "CITATION.cff")


def home() -> str:
    """The README, its links seen from ``docs/``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = text.replace("](docs/results)", "](results/index.md)").replace("](docs/", "](")
    text = text.replace('"docs/assets/', '"assets/').replace(".ipynb)", ".md)")
    for name in ABOUT:
        text = text.replace(f"]({name})", f"](source/{name}.md)")
    return text


def notebook(path: Path) -> str:
    """A notebook as a page, with a link to itself under the title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    parts = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```" + outputs(cell)
        for cell, text in zip(cells, texts, strict=True)
    ]
    title, _, rest = parts[0].partition("\n")
    link = (
        f"[Open it as a notebook]({path.name}), in VS Code or with `jupyter lab`, which "
        "`pip install -e '.[notebooks]'` brings."
    )
    return "\n\n".join([title, link, rest.strip(), *parts[1:]]) + "\n"


def outputs(cell: dict[str, Any]) -> str:
    """What a cell of a notebook showed, as Markdown: a picture, HTML or text."""
    shown = ""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            picture = "".join(data["image/png"].split())
            shown += f'\n\n<img alt="what this cell draws" src="data:image/png;base64,{picture}">'
        elif "text/html" in data:
            shown += f"\n\n<div>{''.join(data['text/html'])}</div>"
        else:
            text = "".join(output.get("text", data.get("text/plain", "")))
            shown += f"\n\n```text\n{text.rstrip()}\n```"
    return shown


def source(path: str) -> str:
    """A file of the repository as a page."""
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    code = (ROOT / path).read_text(encoding="utf-8")
    return f"# `{path}`\n\n````{language}\n{code}````\n"
