"""The README's pictures are made of a run: its victims, its defenses, its rounds."""

import re
from xml.etree import ElementTree

import pytest

from docs.pictures import THEMES, chosen, images, panels, rounds, sentences
from experiments.pipeline import execute
from experiments.plan.folder import STAGES, Run
from experiments.stages.gallery import read_gallery
from tests.apps.cases import IMAGES, TEXT, Make

NOISE = [{"name": "none"}, {"name": "gaussian_noise", "std": 0.5}]


def finished(make_run: Make, base: dict[str, object]) -> Run:
    run = make_run(base, defenses=NOISE)
    assert not execute(run, STAGES[:3], quiet=True).failed
    return run


@pytest.mark.slow
def test_pictures_of_images(make_run: Make) -> None:
    run = finished(make_run, IMAGES)
    examples = read_gallery(run.root)
    shown = panels(run, examples, "image")
    assert [panel.defense for panel in shown] == ["none", "Gaussian noise (std=0.5)"]
    keys = chosen(shown, 4)
    assert len(set(keys)) == 4
    psnr = [shown[0].examples[key].value or 0 for key in keys]
    assert psnr == sorted(psnr, reverse=True)  # from the most to the least leaked

    drawn = {name: images(run, examples, colours) for name, colours in THEMES.items()}
    root = ElementTree.fromstring(drawn["light"])
    assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) == 3 * len(chosen(shown, 7))
    assert "no defense" in drawn["light"]
    assert drawn["light"] != drawn["dark"] == images(run, examples, THEMES["dark"])

    by_round = rounds(run, THEMES["light"])
    assert ElementTree.fromstring(by_round).tag.endswith("svg")
    for colour in THEMES["light"].lines[:2]:
        assert colour in by_round
    assert THEMES["light"].lines[2] not in by_round


@pytest.mark.slow
def test_the_picture_of_sentences_marks_what_came_back(make_run: Make) -> None:
    run = finished(make_run, TEXT)
    drawn = sentences(run, read_gallery(run.root), THEMES["light"])
    words = re.findall(r'monospace">([^<]+)<', drawn)
    exact = [e for e in read_gallery(run.root) if e.value == 1 and "none" in e.cell]
    assert exact
    originals = [e.original.decode().split() for e in exact]
    assert any(original == words[: len(original)] for original in originals)
    assert drawn.count(f'fill="{THEMES["light"].run}"') > len(words) // 4


@pytest.mark.parametrize("theme", THEMES)
def test_colours_are_told_apart(theme: str) -> None:
    colours = THEMES[theme]
    assert len({colours.run, colours.word, colours.ink, colours.missed, *colours.lines}) == 7
