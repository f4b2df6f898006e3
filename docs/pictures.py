"""The README's pictures, made from finished runs: ``python -m docs.pictures RUN``.

A run of the quickstart gives three, a calibration the one of its search. Each is written for light
and for dark pages, to ``docs/assets/NAME-{light,dark}.svg``.
"""

import argparse
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.frames import with_prior
from experiments.decision.answer import Answer
from experiments.decision.page import picture
from experiments.decision.question import FOLDER
from experiments.plan.folder import Run
from experiments.report.figures import INK
from experiments.report.gallery import data_uri, mark, words
from experiments.stages.gallery import Shown, ranks, read_gallery
from experiments.wording.names import defense_name, spoken, title
from fedsim.records import MAIN, PRIOR_ONLY, Modality
from fedsim.store.files import read_record


@dataclass(frozen=True)
class Panel:
    """The examples of one defense by the attack that leaked most.

    Attributes:
        defense: its printed name.
        attack: the attack's printed name.
        examples: by round, client and position.
    """

    defense: str
    attack: str
    examples: dict[tuple[int, int, int], Shown]


def rows_of(run: Run, modality: Modality) -> pd.DataFrame:
    """The scores of the victims themselves by the main metric; under FedSGD if it was run."""
    rows = pd.read_parquet(run.root / "scores.parquet")
    rows = rows[(rows.metric == MAIN[modality]) & (rows.control == "none") & (rows.probe == "none")]
    protocol = "fedsgd" if (rows.protocol == "fedsgd").any() else rows.protocol.iloc[0]
    return rows[rows.protocol == protocol]


def panels(run: Run, examples: Sequence[Shown], modality: Modality) -> list[Panel]:
    """One panel for each defense, by the strongest attack that guessed every victim.

    The undefended one comes first. A defense that refuses every attack has none.
    """
    rows = rows_of(run, modality)
    rows = rows[rows.attack != PRIOR_ONLY]
    groups = rows.groupby(["cell", "defense", "defense_options", "attack"], sort=False).value
    means = groups.mean()[groups.count() == groups.size()]
    best: dict[tuple[str, str], tuple[float, str, str]] = {}
    for (cell, defense, options, attack), value in means.items():
        key = (str(defense), str(options))
        best[key] = max(best.get(key, (-math.inf, "", "")), (value, str(cell), str(attack)))
    drawn = []
    for (defense, options), (_, cell, attack) in best.items():
        victims = {
            (e.round, e.client, e.example): e
            for e in examples
            if (e.cell, e.attack) == (cell, attack) and e.guess is not None
        }
        drawn.append(Panel(defense_name(defense, options), title(attack), victims))
    return sorted(drawn, key=lambda panel: panel.defense != defense_name("none", "[]"))


def chosen(shown: Sequence[Panel], count: int) -> list[tuple[int, int, int]]:
    """Victims that every panel has, evenly spaced from the most to the least leaked undefended."""
    common = set.intersection(*(set(panel.examples) for panel in shown))
    ranked = sorted(common, key=lambda key: shown[0].examples[key].rank)
    return [ranked[rank - 1] for rank in ranks(len(ranked), count)]


ASSETS = Path(__file__).resolve().parent / "assets"
WIDTH = 860
FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'


@dataclass(frozen=True)
class Colours:
    """What a picture is drawn with.

    Attributes:
        run: words recovered in a row.
        word: single words recovered.
        lines: one for each defense, told apart by colour-blind readers, too.
    """

    ink: str
    faint: str
    run: str
    word: str
    missed: str
    lines: tuple[str, ...]


THEMES = {
    "light": Colours(
        "#1f2328", "#59636e", "#9be9a8", "#dafbe1", "#8c959f", ("#0969da", "#bc4c00", "#8250df")
    ),
    "dark": Colours(
        "#e6edf3", "#9198a1", "#196c2e", "#12351f", "#7d8590", ("#58a6ff", "#f0883e", "#bc8cff")
    ),
}


def images(run: Run, examples: Sequence[Shown], colours: Colours) -> str:
    """Private images above what the best attack made of them, undefended and defended."""
    shown = panels(run, examples, "image")[:3]
    keys = chosen(shown, 7)
    side, margin, gap = 84, 210, 12
    lines = [("private images", "", [_uri(shown[0].examples[key].original) for key in keys])]
    for panel in shown:
        about = f"{panel.attack};\n{spoken(panel.defense)}"
        lines.append(("recovered", about, [_uri(panel.examples[key].guess) for key in keys]))
    body = []
    for number, (what, about, uris) in enumerate(lines):
        y = gap + number * (side + gap)
        body.append(_text(0, y + 38, what, colours.ink, 17))
        parts = [part for line in about.splitlines() for part in textwrap.wrap(line, 30)]
        for offset, part in enumerate(parts):
            body.append(_text(0, y + 58 + 16 * offset, part, colours.faint, 13))
        for column, uri in enumerate(uris):
            x = margin + column * (side + gap)
            body.append(
                f'<image x="{x}" y="{y}" width="{side}" height="{side}" href="{uri}" '
                'style="image-rendering: pixelated"/>'
            )
    return _svg(body, gap + len(lines) * (side + gap), "Private images and reconstructions")


def _uri(image: bytes | None) -> str:
    assert image is not None
    return data_uri(image)


def sentences(run: Run, examples: Sequence[Shown], colours: Colours) -> str:
    """Private sentences with the recovered words marked, undefended and defended."""
    shown = panels(run, examples, "text")[:2]
    keys = chosen(shown, 2)
    body: list[str] = []
    y = 24
    for panel in shown:
        body.append(_text(0, y, f"{panel.attack}; {spoken(panel.defense)}", colours.ink, 17))
        y += 30
        for key in keys:
            example = panel.examples[key]
            assert example.guess is not None
            pieces = mark(words(example.original), words(example.guess))
            marked, y = _marked(pieces, y, colours)
            body += marked
            guess = example.guess.decode() or "(nothing)"
            for part in textwrap.wrap(f"guess: {guess}", 110):
                body.append(_text(0, y, part, colours.faint, 14))
                y += 20
            y += 14
        y += 8
    body.append(f'<rect x="0" y="{y - 13}" width="16" height="16" rx="3" fill="{colours.run}"/>')
    body.append(_text(24, y, "recovered in the right order", colours.faint, 13))
    body.append(f'<rect x="230" y="{y - 13}" width="16" height="16" rx="3" fill="{colours.word}"/>')
    body.append(_text(254, y, "recovered, out of order", colours.faint, 13))
    body.append(_text(430, y, "unmarked: not recovered", colours.faint, 13))
    return _svg(body, y + 14, "Private sentences and the words recovered")


def _marked(pieces: list[tuple[Any, str]], y: int, colours: Colours) -> tuple[list[str], int]:
    """The words of a sentence in boxes, and where the next line begins."""
    fills = {"run": colours.run, "word": colours.word, "missed": "none"}
    body, x, letter = [], 0.0, 8.9
    for kind, text in pieces:
        for word in text.split():
            width = letter * len(word) + 8
            if x + width > WIDTH:
                x, y = 0.0, y + 28
            ink = colours.missed if kind == "missed" else colours.ink
            body.append(
                f'<rect x="{x:.1f}" y="{y - 17}" width="{width:.1f}" height="23" rx="4" '
                f'fill="{fills[kind]}"/>'
            )
            body.append(
                f'<text x="{x + 4:.1f}" y="{y}" font-size="15" fill="{ink}" '
                f'textLength="{width - 8:.1f}" font-family="ui-monospace, Menlo, monospace">'
                f"{escape(word)}</text>"
            )
            x += width + 3
    return body, y + 28


def rounds(run: Run, colours: Colours) -> str:
    """Leakage by round above utility by round, a line for each defense."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    known = rows_of(run, "image")
    rows = with_prior(known.assign(setting=known.cell, has_value=known.value.notna()))
    utility = pd.read_parquet(run.root / "utility.parquet")
    utility = utility[(utility.metric == "accuracy") & utility.cell.isin(rows.cell.unique())]
    names = {
        (cell, defense_name(defense, options))
        for cell, defense, options in zip(
            rows.cell, rows.defense, rows.defense_options, strict=True
        )
    }
    ordered = sorted(names, key=lambda name: (name[1] != defense_name("none", "[]"), name))
    style: Any = {
        "svg.hashsalt": "fedsim",
        "text.color": colours.ink,
        "axes.edgecolor": colours.faint,
        "axes.labelcolor": colours.ink,
        "xtick.color": colours.faint,
        "ytick.color": colours.faint,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(8.6, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        markers = "os^D"
        for number, (cell, name) in enumerate(ordered[: len(colours.lines)]):
            look: dict[str, Any] = {
                "color": colours.lines[number],
                "marker": markers[number],
                "label": spoken(name),
            }
            attacked = rows[(rows.cell == cell) & (rows.attack != PRIOR_ONLY)]
            by_round = attacked.groupby(["attack", "round"]).value.mean().groupby("round").max()
            left.plot(by_round.index, by_round.to_numpy(), **look)
            learned = utility[utility.cell == cell].sort_values("round")
            few = len(learned) <= 20  # markers of many rounds would hide the line
            right.plot(learned["round"], learned.value, **look | ({} if few else {"marker": ""}))
        blind = rows[rows.attack == PRIOR_ONLY].groupby("round").value.mean()
        left.plot(
            blind.index,
            blind.to_numpy(),
            color=colours.faint,
            linestyle="--",
            label="no update seen",
        )
        left.set(xlabel="round", ylabel="PSNR of the best attack, dB", title="Leakage")
        right.set(xlabel="round", ylabel="accuracy", title="Utility", ylim=(0, None))
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
        left.legend(frameon=False, loc="best")
        data = io.StringIO()
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    return data.getvalue()


def _text(x: float, y: float, text: str, ink: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" fill="{ink}" font-size="{size}" {FONT}>{escape(text)}</text>'


def _svg(body: Sequence[str], height: int, said: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img"><title>{escape(said)}</title>'
    )
    return "\n".join([head, *body, "</svg>"]) + "\n"


def write(run: Run, folder: Path = ASSETS) -> list[Path]:
    """Write the three pictures in both themes; return their paths."""
    examples = read_gallery(run.root)
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for theme, colours in THEMES.items():
        drawn = {
            "images": images(run, examples, colours),
            "sentences": sentences(run, examples, colours),
            "rounds": rounds(run, colours),
        }
        for name, text in drawn.items():
            path = folder / f"{name}-{theme}.svg"
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def write_search(root: Path, folder: Path = ASSETS) -> list[Path]:
    """Write the picture of a calibration in both themes; return the paths."""
    drawn = picture(read_record(root / FOLDER / "answer.json", Answer)).svg
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for theme, colours in THEMES.items():
        path = folder / f"calibration-{theme}.svg"
        path.write_text(drawn.replace(INK, colours.ink), encoding="utf-8")
        written.append(path)
    return written


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a scored run of quickstart, or a calibration")
    root = parser.parse_args().run
    searched = (root / FOLDER / "answer.json").exists()
    for path in write_search(root) if searched else write(Run.open(root)):
        print(path)


if __name__ == "__main__":
    main()
