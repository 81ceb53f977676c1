"""What a configuration may say, for people: every key with its default, its kind and its meaning."""

import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import yaml
from pydantic.fields import FieldInfo

from sparkdl.settings.section import Section

__all__ = ["describe"]

_WORDS = {bool: "true | false", int: "whole number", float: "number", str: "text"}
_INDENT = " " * 4


def describe(section: type[Section], prefix: str) -> Iterator[str]:
    """The lines about a section and all sections in it, whose keys begin with ``prefix``; ``0`` stands in a list."""
    for name, field in section.model_fields.items():
        key, default, kinds = f"{prefix}.{name}", _default(field), " | ".join(_kinds(field.annotation))
        if default:
            yield f"{key} {default}" + (f"  [{kinds}]" if kinds else "")
        if field.description:
            meaning = " ".join(field.description.split())
            yield textwrap.fill(meaning, 116, initial_indent=_INDENT, subsequent_indent=_INDENT)
        for part, place in _sections(field.annotation):
            yield from describe(part, f"{key}{place}")


def _default(field: FieldInfo) -> str:
    """The default as a file would say it; that of a section is what its keys say."""
    if field.is_required():
        return "(required)"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, Section):
        return ""
    text: str = yaml.safe_dump(default, default_flow_style=True, width=1000, sort_keys=False)
    return f"= {text.splitlines()[0]}"


def _sections(annotation: Any) -> list[tuple[type[Section], str]]:
    """The sections that a value may be or hold, and what stands between its key and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [(annotation, "")]
    place = ".0" if typing.get_origin(annotation) is list else ""
    return [(part, place + rest) for inner in typing.get_args(annotation) for part, rest in _sections(inner)]


def _kinds(annotation: Any) -> list[str]:
    """What a value may be, in words; nothing of what has keys of its own, or cannot stand in a file."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _WORDS:
        return [_WORDS[annotation]]
    if origin is Literal:
        return [str(choice) for choice in inner]
    if origin is list:
        return [f"list of {' or '.join(kinds)}"] if (kinds := _kinds(inner[0])) else []
    if origin is dict:
        return ["mapping"]
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return list(dict.fromkeys(kind for part in inner for kind in _kinds(part)))
    return []
