"""A key under which stands one of several sections, told apart by their ``kind``."""

import typing
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

__all__ = ["OneKind", "kinds_in", "sections_in"]


class _ByKind:
    """Validates a section that is one of several by its ``kind``; the kind's bare name stands for its defaults.

    Pydantic's own discriminated unions take no bare name, and need two kinds at least.
    """

    def __get_pydantic_core_schema__(self, annotation: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {kind: handler.generate_schema(section) for kind, section in kinds_in(annotation).items()}
        by_kind = core_schema.tagged_union_schema(choices, discriminator="kind")
        return core_schema.no_info_before_validator_function(_named, by_kind)


AnySection = TypeVar("AnySection")
OneKind = Annotated[AnySection, _ByKind()]
"""``OneKind[Red | Green]`` is a key under which stands one of these sections, each of which has its name as
``kind: Literal["red"] = "red"``: a file says ``{kind: red, ...}``, or ``red``."""


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value with this annotation may be or hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in typing.get_args(annotation) for section in sections_in(inner)]


def kinds_in(annotation: Any) -> dict[str, type[BaseModel]]:
    """Those of them that are told apart by their kind."""
    fields = {section: section.model_fields.get("kind") for section in sections_in(annotation)}
    return {field.default: section for section, field in fields.items() if field and isinstance(field.default, str)}


def _named(value: Any) -> Any:
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict | BaseModel):
        return value
    raise ValueError("this must be the name of a kind, or a mapping with the key `kind`")
