"""What papers claim of their defenses, beside what stands in the result files.

A claim is a defense's own, see ``Defense.claim``. ``claims.toml`` says where values stand that are
not of the experiments below, and holds the claims of what is no defense here. In its cells
``{FILE: VALUE / VALUE: MEASURE}`` is the one value of a result file with these settings, and
``{~FILE: ...}`` the same without its interval.
"""

import re

from docs.equalised import CHEAPER, DEARER
from docs.measured import DASH, RESULTS, number, read
from fedsim.config.toml_source import read_toml
from fedsim.defenses import DEFENSES

CLAIMS = "claims"
HEADER = [
    "Defense",
    "its paper claims",
    "an attack not told of it",
    "told of it, an attack",
    "verdict",
    "at 2 % of the accuracy, dB above cheaper, dearer noise",
]
PUBLISHED = ("published-defenses", "published-defenses-2")
EQUAL = ("equal-utility-images", "equal-utility-images-2")
_VALUE = re.compile(r"\{(~?)([^:{}]+): ([^:{}]+): ([^{}]+)\}")
_CITED = re.compile(r"\(([^(\"]*?\d{4})\b")


def rows() -> list[list[str]]:
    """A line for each defense with a claim, and for each other that ``claims.toml`` names."""
    cells: dict[str, dict[str, str]] = read_toml(RESULTS / f"{CLAIMS}.toml")
    claimed = [name for name, cls in DEFENSES.items() if cls.claim]
    return [_line(name, cells.get(name, {})) for name in dict.fromkeys([*claimed, *cells])]


def _line(name: str, stated: dict[str, str]) -> list[str]:
    cls = DEFENSES.get(name)
    title = stated.get("title") or (cls and cls.title) or name.replace("_", " ")
    cited = stated.get("cited") or (_CITED.findall(_opening(cls)) if cls else [""])[0].rstrip(", ")
    claim = stated.get("claim") or (cls.claim if cls else "")
    known = _measured(title) | stated
    values = (_filled(known.get(key, "")) for key in ("oblivious", "adaptive", "verdict"))
    return [
        f"{title} ({cited})",
        claim or DASH,
        *(value or DASH for value in values),
        _equal(title),
    ]


def _opening(cls: type) -> str:
    return (cls.__doc__ or "").splitlines()[0]


def _measured(title: str) -> dict[str, str]:
    """Cells of the defense in the experiments on published ones; empty if it is in none."""
    for name in PUBLISHED:
        if any(row.setting == {"defense": title} for row in read(name).rows):
            whole = f"{{~{name}: none: oblivious, dB}} dB"
            return {
                "oblivious": f"{{{name}: {title}: oblivious, dB}} of {whole}",
                "adaptive": f"{{{name}: {title}: adaptive, dB}} of {whole}",
                "verdict": f"{{{name}: {title}: verdict}}",
            }
    return {}


def _filled(text: str) -> str:
    """With the values in their places."""
    return _VALUE.sub(lambda match: _looked_up(*match.groups()), text)


def _looked_up(bare: str, name: str, place: str, measure: str) -> str:
    result, wanted = read(name), place.split(" / ")
    (row,) = (
        row
        for row in result.rows
        if row.measure == measure and wanted == [*row.setting.values()][: len(wanted)]
    )
    digits = result.columns.digits.get(measure, 2)
    if bare:
        assert row.mean is not None, f"{name}: {place} has no {measure}"
        return number(row.mean, digits)
    return row.text(digits)


def _equal(title: str) -> str:
    """Beside noise of equal cost, or what the weakest strength costs."""
    said = {
        row.measure: row
        for name in EQUAL
        for row in read(name).rows
        if row.setting["defense"].partition(" (")[0] == title
    }
    if (beside := said.get("beside noise")) is not None:
        sides = (said.get(f"PSNR less that of {side} noise") for side in (CHEAPER, DEARER))
        return f"{beside.outcome}: {', '.join(row.text(1) if row else DASH for row in sides)}"
    if (lost := said.get("share of accuracy lost")) is not None and lost.mean is not None:
        return f"cannot be had: loses {lost.mean:.0%}".replace("%", " %")
    return DASH
