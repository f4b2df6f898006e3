"""One sealed track of texts and one of images, which tests leave as they are."""

from collections.abc import Callable

import pytest

from experiments.extras.arena.sealing import SealedTrack
from tests.experiments.extras.arena.cases import IMAGES, MEMBERS, TEXTS, sealed_track


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> SealedTrack:
    """Six clients of a small GPT-2, a text each."""
    return sealed_track(TEXTS, tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> SealedTrack:
    """Six clients of an MLP, an image each."""
    return sealed_track(IMAGES, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def members(tmp_path_factory: pytest.TempPathFactory) -> SealedTrack:
    """Six clients of an MLP, two images each, half of which are among the candidates."""
    return sealed_track(MEMBERS, tmp_path_factory.mktemp("members"))


@pytest.fixture
def refused(said: Callable[..., tuple[object, str, str]]) -> Callable[..., str]:
    """The one line of a command that ends with exit code 2."""

    def run(*arguments: object) -> str:
        code, out, error = said(*arguments)
        assert (code, out) == (2, ""), (code, out, error)
        assert error.count("\n") == 1
        return error

    return run
