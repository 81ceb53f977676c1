"""What is wrong with a configuration, for people: which key, and what would be right."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from sparkdl.errors import ConfigError
from sparkdl.masking import masked
from sparkdl.settings.section import Section, kinds_in, sections_in

__all__ = ["Key", "explain", "find_field", "find_key", "nearest"]

_ALTERNATIVE = re.compile(r"constrained-int|function-after\[.*")
"""What Pydantic calls the two kinds of value that `cluster.num_ranks` may have, within a key."""
_HARMLESS = re.compile(r"[\w.+-]*")
"""What of a refused value may be shown: one plain word or number, in which no secret hides behind another name."""


class Key(NamedTuple):
    """A key and what it leads to."""

    parts: tuple[str, ...]
    """As a file has them."""
    section: type[Section] | None
    """The section that it names; None for a value."""
    kinds: Mapping[str, type[Section]]
    """When it names a section that is one of several kinds: all of them."""

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The keys that may stand there."""
        sections = self.kinds.values() or filter(None, [self.section])
        return {name: field for section in sections for name, field in section.model_fields.items()}


def explain(problem: Any, section: type[Section], *, whole: str = "the file") -> str:
    """One of Pydantic's validation problems as a sentence with the key, the value and what would be right.

    ``whole`` is what several keys together are called.
    """
    location = [part for part in map(str, problem["loc"]) if not _ALTERNATIVE.fullmatch(part)]
    found = find_key(location, section)
    key = ".".join(found.parts)
    if problem["type"] == "extra_forbidden":
        return _unknown(key, find_key(location[:-1], section))
    if problem["type"] == "missing":
        return f"the key {key!r} is missing"
    if problem["type"] == "union_tag_not_found":
        return f"the key '{key}.kind' is missing; known here: {', '.join(found.kinds)}"
    if problem["type"] == "union_tag_invalid":
        kind = str(problem["ctx"]["tag"])
        shown = f" {kind!r}" if _HARMLESS.fullmatch(kind) else ""
        return f"{key}: unknown kind{shown}; {nearest(kind, found.kinds)}"
    message = problem["msg"].removeprefix("Value error, ")
    given = masked(problem["input"], name=key)
    shown = f" (got {given!r})" if _HARMLESS.fullmatch(str(given)) else ""
    return f"{key or whole}: {message[0].lower()}{message[1:]}{shown}"


def find_field(key: str, section: type[Section]) -> FieldInfo:
    """The key of this whole name below a section. Raises :class:`ConfigError`, which names the nearest one."""
    parts = [part for part in key.split(".") if not part.isdigit()] or [key]  # without places in lists
    for depth, part in enumerate(parts):
        found = find_key(parts[:depth], section)
        if part not in found.fields:
            raise ConfigError(_unknown(".".join(parts[: depth + 1]), found))
    return found.fields[parts[-1]]


def find_key(location: Sequence[str], section: type[Section]) -> Key:
    """Where a location below a section leads; between a key and those of its kind may stand the kind's name."""
    found = Key((), section, {})
    for part in location:
        if part in found.kinds:
            found = Key(found.parts, found.kinds[part], {})
        elif part.isdigit():  # a place in a list
            found = found._replace(parts=(*found.parts, part))
        else:
            annotation = found.fields[part].annotation if part in found.fields else None
            inner = next(iter(sections_in(annotation)), None)
            found = Key((*found.parts, part), inner, kinds_in(annotation))
    return found


def _unknown(key: str, parent: Key) -> str:
    *_, name = key.split(".")
    return f"unknown key {key!r}; {nearest(name, parent.fields, below='.'.join([*parent.parts, '']))}"


def nearest(name: str, known: Iterable[str], *, below: str = "") -> str:
    """The known name that was meant, or all that there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {below + near[0]!r}?" if near else f"known here: {', '.join(names)}"
