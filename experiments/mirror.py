"""Run folders in an object store: worked on in a folder here, and copied both ways.

A file that changed on one side since both were last equal is copied to the other. At the start of
a command the store's version counts where both changed; later, a version that somebody else wrote
ends the command. Objects appear whole, as files do here, and those that declare others finished
(records, then ``simulation.json``) come last: what a killed command left can be gone on with, here
or on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import time_ns
from typing import Any, TypeAlias

from experiments.plan.folder import RunStage
from fedsim.errors import ConfigError, StoreError
from fedsim.files import read_json, write_json

Version: TypeAlias = tuple[int, int]
"""Nanoseconds of the last change, and bytes."""
PERIOD = 20.0
"""Seconds between two copies to the store while a command works."""
_LEDGER = "jobs.sqlite"
_LOCAL = (".lock", ".unfinished", "-wal", "-shm")
"""Ends of the names of files that mean something to this machine alone."""
_AT_ONCE = 16


@contextmanager
def working_folder(
    target: str, out: str | None, stages: Sequence[RunStage]
) -> Iterator[tuple[str, Path | None]]:
    """The two arguments of a command with folders of this machine in place of URLs.

    What the store holds is there at once; what is made is copied to the store until the end.
    Attacks alone never need the private rows, so that these are not brought.

    Args:
        target: run or experiment.
        out: folder of the run, if given.
        stages: of the command.

    Raises:
        ConfigError: the URL cannot be opened, or holds no run.
        StoreError: the store cannot be read or written, or another command writes there.
    """
    url = next((given for given in (target, out) if given is not None and is_url(given)), None)
    if url is None:
        yield target, None if out is None else Path(out)
        return
    folder, alone = local_folder(url), tuple(stages) == ("attack",)
    with mirrored(url, folder, {"truth"} if alone else ()):
        if url == target and not (folder / "experiment.toml").exists():
            raise ConfigError(f"{url.partition('?')[0]}: no run is there. Correct the URL.")
        yield (str(folder), None) if url == target else (target, folder)


def is_url(target: str) -> bool:
    """Whether this names something that is on no disk of this machine."""
    return "://" in target


def local_folder(url: str) -> Path:
    """Where the run at ``url`` is worked on; a URL with keys in it is refused."""
    scheme, _, path = url.partition("://")
    parts = [part for part in path.partition("?")[0].split("/") if part]
    if not parts or ".." in parts or "@" in path:
        raise ConfigError(
            f"{scheme}://...: no folder of a store. Write s3://bucket/run, and put keys into the "
            "environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)."
        )
    return Path("runs", scheme, *parts)


@contextmanager
def mirrored(url: str, folder: Path, omit: Collection[str] = ()) -> Iterator[None]:
    """Bring ``folder`` up to date, and copy what is made in it to ``url`` until the end."""
    from attacks.scheduling.run_lock import lock_run  # with torch, which other commands spare

    mirror, stop = Mirror(url, folder, omit), Event()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_run(mirror.state):
        mirror.pull()
        thread = Thread(target=_repeat, args=(mirror, stop), daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            with suppress(StoreError):  # the first error is the one to tell
                _end(mirror, stop, thread)
            raise
        _end(mirror, stop, thread)


def _end(mirror: Mirror, stop: Event, thread: Thread) -> None:
    stop.set()
    thread.join()
    mirror.push()


def _repeat(mirror: Mirror, stop: Event) -> None:
    while not stop.wait(PERIOD):
        with suppress(StoreError):  # the store may answer again, and the last copy does complain
            mirror.push(working=True)


class Mirror:
    """The files of a run on both sides, and what they were when they were last equal.

    Args:
        url: of the run; whatever ``pyarrow.fs`` opens and is no disk.
        folder: of the run on this machine.
        omit: names of folders that stay where they are, on both sides.

    Attributes:
        state: file beside the folder that says what both sides were.
    """

    def __init__(self, url: str, folder: Path, omit: Collection[str] = ()) -> None:
        from pyarrow.fs import FileSystem

        # In messages without the query, which may hold keys.
        self._url, self._folder, self._omit = url.partition("?")[0], folder, set(omit)
        try:
            self._store, root = FileSystem.from_uri(url)
        except (OSError, ValueError) as error:
            fault = str(error).replace(url, self._url)
            raise ConfigError(f"{self._url}: cannot be opened ({fault}). Correct it.") from None
        if self._store.type_name == "local":  # where files do not appear whole
            raise ConfigError(f"{self._url}: a folder of this machine. Write its path instead.")
        self._root = root.rstrip("/") + "/"
        self._sent: set[str] = set()  # and not yet seen there
        self._equal: dict[str, tuple[Version, Version]] = {}
        self.state = folder.with_name(f".{folder.name}.store.json")
        if self.state.exists():
            known = read_json(self.state)
            self._equal = {n: (tuple(here), tuple(there)) for n, (here, there) in known.items()}

    def pull(self) -> None:
        """Copy to this machine what the store has and this machine has not."""
        from pyarrow.fs import FileType

        bucket = self._root.partition("/")[0]  # a store makes folders by itself, but no bucket
        if (
            bucket
            and self._asked(lambda: self._store.get_file_info(bucket)).type is FileType.NotFound
        ):
            raise ConfigError(f"{self._url}: there is no bucket {bucket!r}. Make it first.")
        here, there = self._here(), self._there()
        news = [name for name in there if name not in here or self._side(name, 1) != there[name]]
        self._in_waves(news, self._download)
        now = self._here()
        known = {n: pair for n, pair in self._equal.items() if n in there or not self._mirrored(n)}
        self._equal = known | {name: (now[name], there[name]) for name in news}
        self._note()

    def push(self, *, working: bool = False) -> None:
        """Copy to the store what this machine changed; ``working``: while it goes on changing."""
        begun = time_ns()
        here, there = self._here(), self._there()
        mine = [name for name, version in here.items() if self._side(name, 0) != version]
        if working:  # a file and its record are copied together
            mine = [n for n in mine if n != _LEDGER and here[n][0] <= begun]
        gone = [name for name in self._equal if name not in here and self._mirrored(name)]
        for name in (*mine, *gone):
            if name not in self._sent and there.get(name) not in (None, self._side(name, 1)):
                raise StoreError(
                    f"{self._url}: another command wrote {name} meanwhile. What this one made lies "
                    f"in {self._folder}; run it again when the other has ended."
                )
        for name in sorted(gone, key=_wave, reverse=True):
            self._asked(partial(self._store.delete_file, self._root + name))
            del self._equal[name]
        self._in_waves(mine, self._upload)
        there = self._there() if mine else there
        self._equal |= {name: (here[name], there[name]) for name in mine}
        self._sent.clear()
        self._note()

    def _side(self, name: str, side: int) -> Version | None:
        return self._equal[name][side] if name in self._equal else None

    def _mirrored(self, name: str) -> bool:
        parts = Path(name).parts
        hidden = any(part.startswith(".") or part in self._omit for part in parts)
        return not hidden and not name.endswith(_LOCAL)

    def _here(self) -> dict[str, Version]:
        versions = {}
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):  # of a command at work
                    status = path.stat()
                    name = path.relative_to(self._folder).as_posix()
                    versions[name] = (status.st_mtime_ns, status.st_size)
        return {name: version for name, version in versions.items() if self._mirrored(name)}

    def _there(self) -> dict[str, Version]:
        from pyarrow.fs import FileSelector

        chosen = FileSelector(self._root, allow_not_found=True, recursive=True)
        infos = self._asked(lambda: self._store.get_file_info(chosen))
        files = [info for info in infos if info.is_file]
        versions = {
            info.path.removeprefix(self._root): (info.mtime_ns, info.size) for info in files
        }
        if wrong := [name for name in versions if {"", ".", ".."} & set(name.split("/"))]:
            raise StoreError(
                f"{self._url}: holds {wrong[0]!r}, which names no file of a run. Delete it there."
            )
        return {name: version for name, version in versions.items() if self._mirrored(name)}

    def _in_waves(self, names: Collection[str], copy: Callable[[str], None]) -> None:
        """Copy so many at once, each in a thread of its own.

        Arrow's few threads write what a copy hands them: copies that take them all wait for ever.
        """
        for wave in range(3):
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(copy, [name for name in names if _wave(name) == wave]))

    def _download(self, name: str) -> None:
        from pyarrow.fs import LocalFileSystem, copy_files

        path = self._folder / name
        for folder in (parent for parent in path.parents if parent.name == "truth"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, ours = path.with_name(f".{path.name}.tmp"), LocalFileSystem()
        self._asked(
            lambda: copy_files(
                self._root + name, str(temporary), self._store, ours, use_threads=False
            )
        )
        os.replace(temporary, path)

    def _upload(self, name: str) -> None:
        from pyarrow.fs import LocalFileSystem, copy_files

        source, target, ours = str(self._folder / name), self._root + name, LocalFileSystem()
        self._asked(lambda: copy_files(source, target, ours, self._store, use_threads=False))
        self._sent.add(name)

    def _asked(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401
        from pyarrow import ArrowException

        try:
            return ask()
        except (OSError, ArrowException) as error:
            raise StoreError(
                f"{self._url}: the store failed ({error}). What was finished lies in "
                f"{self._folder}; run the same command again."
            ) from None

    def _note(self) -> None:
        write_json(self.state, self._equal)


def _wave(name: str) -> int:
    """Tensors and tables, then records, then what declares a simulation finished."""
    return (name.endswith(".json") or name == _LEDGER) + name.endswith("simulation.json")
