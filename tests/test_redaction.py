"""A page that is passed on names no folder and no user of the machine."""

from pathlib import Path

import pytest

from fedsim.visible import redacted


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "fedsim run /home/alice/x.toml --out /data/alice/runs/a",
            "fedsim run .../x.toml --out .../a",
        ),
        ("fedsim run x.toml --out ~/runs/a", "fedsim run x.toml --out .../a"),
        ("--out=~alice/runs", "--out=.../runs"),
        (
            "--set 'task.model=\"/home/alice/my models/bert\"'",
            "--set 'task.model=\".../my models/bert\"'",
        ),
        ('weights = "/home/alice/runs/a@3"', 'weights = ".../a@3"'),
        ("<p>/home/alice/bert</p><br/>", "<p>.../bert</p><br/>"),
        ("&#39;/home/alice/bert&#39;", "&#39;.../bert&#39;"),
        ("s3://bucket/run?secret_key=abc --quiet", "s3://bucket/run?... --quiet"),
        ("/root", ".../root"),
    ],
)
def test_paths_are_cut(text: str, left: str) -> None:
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    [
        *("runs/a", "and/or", "1/2", "3 / 4", "nyu-mll/glue:cola", "train[10:20]", "</p><br />"),
        *("https://www.w3.org/2000/svg", "../shared/x", "-//W3C//DTD SVG 1.1//EN", "s3://a/b"),
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert redacted(text) == text


def test_what_lies_below_is_named_from_here() -> None:
    assert redacted(f"fedsim report {Path.cwd()}/runs/a") == "fedsim report runs/a"
