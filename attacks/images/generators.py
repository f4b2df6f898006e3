"""The generators by name."""

from __future__ import annotations

from attacks.images.components import Components
from attacks.images.generator import Generator
from attacks.images.variational import Variational
from fedsim.build import registry, suggest
from fedsim.errors import CannotAttack

GENERATORS: dict[str, type[Generator]] = {"vae": Variational, "components": Components}


def build_generator(name: str, shape: tuple[int, ...], latent: int) -> Generator:
    """The generator of this name, with weights that are still to be set.

    Raises:
        CannotAttack: there is none of this name.
    """
    known = registry(GENERATORS, "fedsim.generators")
    if name not in known:
        raise CannotAttack(f"generator: {name!r} is not known", suggest(name, known))
    return known[name](shape, latent).eval()
