"""What is wrong with a configuration, for people: which key, and what would be right."""

import difflib
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sparkdl.errors import ConfigError
from sparkdl.masking import masked
from sparkdl.settings.kinds import kinds_in, sections_in

__all__ = ["Key", "explained", "find_field", "find_key", "nearest", "unknown"]

_ALTERNATIVE = re.compile(r"str|int|float|bool|callable|constrained-\w+|(dict|list|literal|function-\w+)\[.*")
"""What Pydantic calls one of several kinds of value that may stand under a key, behind the key."""
_HARMLESS = re.compile(r"[\w.+-]*")
"""What of a refused value may be shown: one plain word or number, in which no secret hides behind another name."""


class Key(NamedTuple):
    """A key and what it leads to."""

    parts: tuple[str, ...]
    """As a file has them."""
    section: type[BaseModel] | None
    """The section that it names; None for a value."""
    kinds: Mapping[str, type[BaseModel]]
    """When it names a section that is one of several kinds: all of them."""
    of_names: bool = False
    """Whether a name of the user's own stands between it and the section's keys."""

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The keys that may stand there."""
        sections = self.kinds.values() or filter(None, [self.section])
        return {name: field for section in sections for name, field in section.model_fields.items()}


@contextmanager
def explained(section: type[BaseModel], *, place: str = "") -> Iterator[None]:
    """Turn what Pydantic says of values for a section into a :class:`ConfigError` of one line.

    ``place`` is where they are from, with which the line begins: by default the section's own name.
    """
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(_explain(problem, section) for problem in _of_the_kind_that_was_meant(error.errors()))
        raise ConfigError(f"{place or section.__name__}: {problems}") from None


def _of_the_kind_that_was_meant(problems: Iterable[Any]) -> list[Any]:
    """Of a key under which values of several kinds may stand, what is wrong with the kind that comes nearest.

    Pydantic tells of each of them. Where a value is of none of the kinds, one problem names them all.
    """
    meant: dict[tuple[Any, ...], Any] = {}
    for problem in problems:
        key = tuple(part for part in problem["loc"] if not _ALTERNATIVE.fullmatch(str(part)))
        before = meant.get(key)
        if before and _of_no_kind(before) and _of_no_kind(problem):
            kind = problem["msg"].removeprefix("Input should be ")
            meant[key] = before | {"msg": f"{before['msg']} or {kind}"}
        elif not before or _of_no_kind(before):
            meant[key] = problem | {"loc": key}
    above = {key[:depth] for key in meant for depth in range(len(key))}
    return [problem for key, problem in meant.items() if not (_of_no_kind(problem) and key in above)]


def _of_no_kind(problem: Any) -> bool:
    no_word = problem["type"] == "literal_error" and not isinstance(problem["input"], str)
    return no_word or str(problem["type"]).endswith("_type")


def _explain(problem: Any, section: type[BaseModel]) -> str:
    """One of Pydantic's validation problems as a sentence with the key, the value and what would be right."""
    location = list(map(str, problem["loc"]))
    found = find_key(location, section)
    key = ".".join(found.parts)
    if problem["type"] == "extra_forbidden":
        return unknown(key, find_key(location[:-1], section))
    if problem["type"] == "missing":
        return f"the key {key!r} is missing"
    if problem["type"] == "frozen_instance":
        return f"settings do not change once they are made; make others: settings.model_copy(update={{{key!r}: ...}})"
    if problem["type"] == "union_tag_not_found":
        return f"the key '{key}.kind' is missing; known here: {', '.join(found.kinds)}"
    if problem["type"] == "union_tag_invalid":
        kind = str(problem["ctx"]["tag"])
        shown = f" {kind!r}" if _HARMLESS.fullmatch(kind) else ""
        return f"{key}: unknown kind{shown}; {nearest(kind, found.kinds)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        message = "this must be a mapping of keys to values"
    given = masked(problem["input"], name=key)
    shown = f" (got {given!r})" if _HARMLESS.fullmatch(str(given)) else ""
    if problem["type"] == "literal_error":
        near = _near(str(given), re.findall("'(.*?)'", problem["ctx"]["expected"]))
        shown += f"; did you mean {near!r}?" if near else ""
    return (f"{key}: " if key else "") + f"{message[0].lower()}{message[1:]}{shown}"


def find_field(key: str, section: type[BaseModel]) -> FieldInfo:
    """The key of this whole name below a section. Raises :class:`ConfigError`, which names the nearest one."""
    parts = [part for part in key.split(".") if not part.isdigit()] or [key]  # without places in lists
    for depth, part in enumerate(parts):
        found = find_key(parts[:depth], section)
        if found.of_names:
            continue
        if part not in found.fields:
            raise ConfigError(unknown(".".join(parts[: depth + 1]), found))
    return found.fields[parts[-1]]


def find_key(location: Sequence[str], section: type[BaseModel]) -> Key:
    """Where a location below a section leads; between a key and those of its kind may stand the kind's name."""
    found = Key((), section, {})
    for part in location:
        if part in found.kinds:
            found = Key(found.parts, found.kinds[part], {})
        elif part.isdigit() or found.of_names:  # a place in a list, or in a mapping
            found = found._replace(parts=(*found.parts, part), of_names=False)
        else:
            annotation = found.fields[part].annotation if part in found.fields else None
            inner = next(iter(sections_in(annotation)), None)
            of_names = inner is not None and typing.get_origin(annotation) is dict
            found = Key((*found.parts, part), inner, kinds_in(annotation), of_names)
    return found


def unknown(key: str, parent: Key) -> str:
    """What is said of a key that is not there, with the one that was meant."""
    *_, name = key.split(".")
    return f"unknown key {key!r}; {nearest(name, parent.fields, below='.'.join([*parent.parts, '']))}"


def nearest(name: str, known: Iterable[str], *, below: str = "") -> str:
    """The known name that was meant, or all that there are."""
    names = list(known)
    near = _near(name, names)
    return f"did you mean {below + near!r}?" if near else f"known here: {', '.join(names)}"


def _near(name: str, names: Sequence[str]) -> str | None:
    """The one that was meant, in whatever case it is written."""
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None
