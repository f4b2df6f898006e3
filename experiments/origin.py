"""A check that all five packages come from one checkout; other projects use these names too."""

from importlib.util import find_spec
from pathlib import Path

from fedsim.errors import ConfigError

PACKAGES = ("fedsim", "clients", "server", "attacks", "experiments")


def check_origin() -> None:
    """Raise ``ConfigError`` if one of the packages would be imported from another project.

    In a wheel they all lie below ``fedsim``, where no other project is in the way.
    """
    if __package__ != "experiments":
        return
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find_spec(name)
        folder = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if folder != home:
            raise ConfigError(
                f"the package {name!r} was found in {folder}, not next to experiments in {home}. "
                "Install fedsim into a virtual environment of its own, with pip install -e ."
            )
