"""The page of ``fedsim --help``: commands by what they are for, whole sentences at any width."""

from __future__ import annotations

from collections.abc import Mapping

import click
import typer.core

CHAPTERS: Mapping[str, tuple[str, ...]] = {
    "Simulate": ("run", "watch", "show", "simulate", "prepare", "prior", "init"),
    "Attack": ("attack", "score", "report", "open", "play"),
    "Judge": ("calibrate", "check", "diff", "doctor", "limits", "audit", "evidence"),
    "Compete": ("seal", "submit", "grade", "lab"),
    "Manage": ("ls", "rm", "export"),
    "Look up": ("list", "describe", "schema"),
    "Extend": ("new",),
}


class Chapters(typer.core.TyperGroup):
    """A group of commands that lists them under the headings of ``CHAPTERS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of their chapters."""
        del ctx
        return [name for names in CHAPTERS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list a chapter; click alone would cut sentences at the terminal's width."""
        width = max(map(len, self.commands))
        for chapter, names in CHAPTERS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(f"{name:<{width}}", one.help or "") for name, one in commands if one]
            with formatter.section(chapter):
                formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in rows])
