"""Code that a user names as ``module:name`` or ``file.py:name``, and that no file may name alone.

What an experiment file or an option names is allowed in this process and in those that it starts.
What a run folder or captures name is not: they may be anybody's.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsim.errors import ConfigError, StoreError

ALLOWED = "FEDSIM_NAMED_CODE"
"""Environment variable: JSON, each allowed name with the folder that its modules are looked for in.

Workers inherit it.
"""


def is_named(name: str) -> bool:
    """Whether this has the form of ``module:name`` or ``file.py:name``."""
    module, _, function = name.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return function.isidentifier() and (dotted or module.endswith(".py"))


def allow(name: str) -> None:
    """Let a name be imported, as its user wrote it in an experiment file or an option."""
    if is_named(name):
        os.environ[ALLOWED] = json.dumps({**_allowed(), name: os.getcwd()})


def is_allowed(name: str) -> bool:
    """Whether a user named it."""
    return name in _allowed()


def environment() -> dict[str, str]:
    """What a worker that does not inherit this process's environment needs of it."""
    return {ALLOWED: os.environ[ALLOWED]} if ALLOWED in os.environ else {}


def _allowed() -> dict[str, str]:
    return dict(json.loads(os.environ.get(ALLOWED, "{}")))


def check_allowed(name: str, where: str) -> None:
    """Raise ``ConfigError`` unless a user named it; ``where`` is the file that does."""
    if not is_allowed(name):
        raise ConfigError(
            f"{where}: {name!r} makes the model, and no code that a run folder names is run. "
            "Name the experiment file that the run was made from, with --out for its folder."
        )


def options_of_code(factory: str, loss: str) -> str:
    """The options by which a user names the network and the loss that captures are of."""
    is_users = not factory.startswith("torch.")  # such as Sequential, empty if there is none
    model = factory.replace("__main__:", "FILE.py:") if is_users else "MODULE:FUNCTION"
    return f"--model {model} --loss {loss.replace('__main__:', 'FILE.py:') or 'MODULE:FUNCTION'}"


def check_code(factory: str, loss: str, where: Path) -> None:
    """Raise ``StoreError`` unless a user named what makes the network of captures, and the loss."""
    if not is_allowed(factory) or (loss and not is_allowed(loss)):
        raise StoreError(
            f"{where}: its model is a {factory}, and no code that a file names is run. Name it "
            f"yourself: {options_of_code(factory, loss)}."
        )


def named_function(name: str, what: str) -> Callable[..., Any]:
    """The function or class of an allowed name.

    Raises:
        ConfigError: no user named it, or it cannot be imported.
    """
    check_allowed(name, what)
    return function_of(name, what, _allowed()[name])


def function_of(given: object, what: str, folder: str | None = None) -> Callable[..., Any]:
    """A function, or the one with the name ``module:name`` or ``file.py:name``.

    Args:
        given: as the user hands it over.
        what: names it in errors.
        folder: where modules and files are, behind all others; the working directory if None.

    Raises:
        ConfigError: there is none.
    """
    if callable(given):
        return given
    module, colon, name = str(given).partition(":")
    if not colon:
        raise ConfigError(f"{what}: {given!r} is no function. Write module:function.")
    try:
        function = getattr(_module(module, folder or os.getcwd()), name)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ConfigError(
            f"{what}: {given!r} cannot be imported ({error}). Run the command in the folder of "
            "your application, or install it."
        ) from None
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise ConfigError(f"{what}: {given!r} is no function. Write module:function.")


def _module(name: str, folder: str) -> ModuleType:
    if not name.endswith(".py"):
        if folder not in sys.path:
            sys.path.append(folder)
        return importlib.import_module(name)
    path = Path(folder, name).resolve()
    known = f"_fedsim_named_{path.stem}_{abs(hash(str(path)))}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None
        assert spec.loader is not None  # of a name that ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[known] = module  # dataclasses look themselves up there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[known]
            raise
    return sys.modules[known]


def classifier(name: str, what: str) -> Callable[..., Any]:
    """What makes a network of a number of classes, ``make(num_classes=...)``.

    A class or function that takes no ``num_classes`` makes the same network for any.
    """
    factory = named_function(name, what)
    parameters = inspect.signature(factory).parameters.values()
    if any(p.name == "num_classes" or p.kind is p.VAR_KEYWORD for p in parameters):
        return factory
    return lambda num_classes: factory()
