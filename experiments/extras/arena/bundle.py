"""A public bundle: its captures, read only after every hash was checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.extras.arena.records import BUNDLE, Bundle
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureStore
from fedsim.store.files import check_hashes, read_record
from fedsim.store.plain_files import check_folder, digest_plain
from fedsim.tasks import load_task
from fedsim.tasks.base import Task

REMEDY = "Get the bundle again from whoever sealed it."


@dataclass(frozen=True)
class OpenBundle:
    """A bundle whose files are those of its manifest."""

    root: Path
    manifest: Bundle

    @property
    def sha256(self) -> str:
        """Hash of the manifest, by which submissions and the truth name the bundle."""
        return digest_plain(self.root / BUNDLE)

    @property
    def captures(self) -> CaptureStore:
        """What the server saw."""
        return CaptureStore(self.root / "captures")

    @cached_property
    def task(self) -> Task:
        """The task, to encode and check guesses; no network is built."""
        return load_task(self.captures.root, network=False)


def open_bundle(root: Path) -> OpenBundle:
    """Read a bundle.

    Raises:
        ConfigError: the folder is no bundle, or holds a link.
        StoreError: a file was changed, added or lost.
    """
    if not (root / BUNDLE).is_file():
        raise ConfigError(f"{root}: no bundle ({BUNDLE} is missing). Name a folder of fedsim seal.")
    check_folder(root)
    manifest = read_record(root / BUNDLE, Bundle)
    check_hashes(root / "captures", manifest.files, REMEDY)
    bundle = OpenBundle(root, manifest)
    for key in bundle.captures.keys():
        bundle.captures.load(key)  # whose tensors are in no manifest, but in the record of each
    return bundle
