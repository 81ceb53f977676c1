"""What a configuration may say, for people: every key with its default, its kind and its meaning."""

import textwrap
import types
import typing
from collections.abc import Iterator
from datetime import date
from typing import Any, Literal

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkdl.settings.kinds import kinds_in, sections_in

__all__ = ["describe", "describe_key"]

_WORDS = {bool: "true | false", int: "whole number", float: "number", str: "text", date: "date"}
_INDENT = " " * 4


def describe(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """The lines about a section and all sections in it, whose keys begin with ``prefix``.

    ``0`` stands in a list, and ``NAME`` in a mapping of names of the user's own.
    """
    for name, field in section.model_fields.items():
        yield from describe_key(f"{prefix}.{name}", field)


def describe_key(key: str, field: FieldInfo) -> Iterator[str]:
    """The lines about one key and, when it names a section, about that; of several kinds, about each of them.

    ``key`` is its whole name, for example ``train.strategy``.
    """
    default, choices = _default(field), " | ".join(_values(field.annotation))
    if default:
        yield f"{key} {default}" + (f"  [{choices}]" if choices else "")
    yield from _meaning(field.description)
    inner = key + {list: ".0", dict: ".NAME"}.get(typing.get_origin(field.annotation), "")  # type: ignore[arg-type]
    if kinds := kinds_in(field.annotation):
        for kind, section in kinds.items():
            yield f"{inner}.kind = {kind}"
            yield from _meaning(section.__doc__)
            for name, option in section.model_fields.items():
                if name != "kind":
                    yield from describe_key(f"{inner}.{name}", option)
    else:
        for section in sections_in(field.annotation):
            yield from describe(section, inner)


def _default(field: FieldInfo) -> str:
    """The default as a file would say it; that of a section is what its keys say."""
    if field.is_required():
        return "(required)"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return f"= {default.model_dump()['kind']}" if kinds_in(field.annotation) else ""
    text: str = yaml.safe_dump(default, default_flow_style=True, width=1000, sort_keys=False)
    return f"= {text.splitlines()[0]}"


def _meaning(text: str | None) -> Iterator[str]:
    if text:
        yield textwrap.fill(" ".join(text.split()), 116, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _values(annotation: Any) -> list[str]:
    """What a value may be, in words; nothing of what has only keys of its own, or cannot stand in a file."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(kinds_in(annotation))
    if annotation in _WORDS:
        return [_WORDS[annotation]]
    if origin is Literal:
        return [str(choice) for choice in inner]
    if origin is list:
        return [f"list of {' or '.join(kinds)}"] if (kinds := _values(inner[0])) else []
    if origin is dict:
        return ["mapping"]
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return list(dict.fromkeys(kind for part in inner for kind in _values(part)))
    return []
