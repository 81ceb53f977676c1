"""Whole keys, such as ``train.strategy.period``: which there may be, and how a tree of plain values gets one."""

import typing
from typing import Any

from pydantic import BaseModel

from sparkdl.errors import ConfigError
from sparkdl.settings.explain import find_key, unknown

__all__ = ["check_key", "given_values", "set_key"]


def check_key(key: str, section: type[BaseModel]) -> None:
    """Raise :class:`ConfigError`, which names the nearest key, unless a file may have this whole key.

    Below a mapping of the user's own, such as ``train.model_options``, there may be any.
    """
    parts, annotation = key.split("."), None
    for depth, part in enumerate(parts):
        above = find_key(parts[:depth], section)
        if above.of_names or part.isdigit():
            continue
        if depth and not above.fields:
            if not _is_mapping(annotation):
                raise ConfigError(f"{'.'.join(parts[:depth])!r} is a value, below which there is no key {part!r}")
            return
        if part not in above.fields:
            raise ConfigError(unknown(".".join(parts[: depth + 1]), above))
        annotation = above.fields[part].annotation


def set_key(tree: dict[str, Any], key: str, value: Any, *, section: type[BaseModel], what: str) -> None:
    """Put a value under a whole key of a section's tree; lists are addressed by position (``stages.0.kind``).

    Raises :class:`ConfigError`, which says that ``what`` cannot be applied, where the tree has no place for it.
    """
    before, options, name = key.partition(".options.")  # the name of an option may have points of its own
    *parents, last = [*before.split("."), "options", name] if options else key.split(".")
    node: Any = tree
    try:
        for depth, parent in enumerate(parents, 1):
            inner = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
            if isinstance(inner, str) and find_key(parents[:depth], section).kinds:
                inner = {"kind": inner}
            elif inner is None:
                inner = {}
            node[int(parent) if isinstance(node, list) else parent] = inner
            node = inner
        if isinstance(node, list):
            node[int(last)] = value
        elif isinstance(node, dict):
            node[last] = value
    except (IndexError, ValueError):
        raise ConfigError(f"cannot apply {what}: the list has no such position") from None
    except (AttributeError, TypeError):
        raise ConfigError(f"cannot apply {what}: it reaches into a value, not a section") from None
    if not isinstance(node, dict | list):
        raise ConfigError(f"cannot apply {what}: {'.'.join(parents)!r} is not a section")


def given_values(value: Any) -> Any:
    """What a section, and those in it, were made of: the tree that a file would have for the same."""
    if isinstance(value, BaseModel):
        names = value.model_fields_set | ({"kind"} & type(value).model_fields.keys())
        return {name: given_values(getattr(value, name)) for name in type(value).model_fields if name in names}
    if isinstance(value, dict):
        return {name: given_values(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [given_values(part) for part in value]
    return value


def _is_mapping(annotation: Any) -> bool:
    return typing.get_origin(annotation) is dict or any(map(_is_mapping, typing.get_args(annotation)))
