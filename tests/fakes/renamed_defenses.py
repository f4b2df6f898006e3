"""Every built-in defense as another package would have it: a class of its own behind the hooks."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast, get_type_hints

from pydantic.dataclasses import dataclass

from fedsim.defenses.base import Defense

PREFIX = "other_"


def renamed(builtin: type[Defense]) -> type[Defense]:
    """A defense with the options and the behaviour of ``builtin``, and none of its classes.

    It passes on what ``Defense`` defines and nothing else, so that whoever treats it differently
    has looked at more than that.
    """
    fields = dataclasses.fields(builtin)
    names = [field.name for field in fields]

    def inner(self: Defense) -> Defense:
        options = {name: getattr(self, name) for name in names}
        return builtin(**options)

    members: dict[str, Any] = {"__doc__": f"As {builtin.__name__} (2026)."}
    hints = get_type_hints(builtin, include_extras=True)
    members["__annotations__"] = {name: hints[name] for name in names}
    for field in fields:
        if field.default is not dataclasses.MISSING:
            members[field.name] = field.default
    for name, hook in vars(Defense).items():
        if name.startswith("_") or name in {"title", *names}:
            continue
        if isinstance(hook, property):
            members[name] = property(_value(name, inner))
        elif callable(hook):
            members[name] = _call(name, inner)
    members["fit"] = _fit(inner, names)
    cls: Any = type(f"Other{builtin.__name__}", (Defense,), members)
    return cast(type[Defense], dataclass(frozen=True, kw_only=True)(cls))


def _value(name: str, inner: Callable[[Defense], Defense]) -> Callable[[Defense], object]:
    return lambda self: getattr(inner(self), name)


def _call(name: str, inner: Callable[[Defense], Defense]) -> Callable[..., object]:
    def call(self: Defense, *args: object) -> object:
        return getattr(inner(self), name)(*args)

    return call


def _fit(inner: Callable[[Defense], Defense], names: list[str]) -> Callable[..., Defense]:
    def fit(self: Any, schedule: object) -> Defense:
        fitted: Any = getattr(inner(self), "fit")(schedule)  # noqa: B009
        options = {name: getattr(fitted, name) for name in names}
        return cast(Defense, type(self)(**options))

    return fit
