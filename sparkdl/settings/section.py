"""What the sections of a configuration share."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sparkdl.masking import masked

__all__ = [
    "Folder",
    "Fraction",
    "OneKind",
    "Positive",
    "Section",
    "Seed",
    "Storage",
    "TaskName",
    "kinds_in",
    "sections_in",
]


def _absolute(path: str) -> str:
    """A plain path made absolute: an executor's working directory is not the driver's. URIs stay as they are."""
    is_uri = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path)
    return path if is_uri else str(Path(path).expanduser().absolute())


def _local(path: str) -> str:
    if "://" in path:
        raise ValueError("this must be a folder that can be appended to, not a URI")
    return str(Path(path).expanduser().absolute())


Storage = Annotated[str, AfterValidator(_absolute)]
Folder = Annotated[str, AfterValidator(_local)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TaskName = Literal["classification", "multi_label", "regression", "ranking"]
"""What there is to learn from labels: one class a row, several, a number, or the order of the rows of a group."""


class Section(BaseModel):
    """What all sections share: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What is shown of a section: no secrets."""
        for name, value in super().__repr_args__():
            yield name, value if isinstance(value, Section) else masked(value, name=name or "")


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


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections that a value with this annotation may be or hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in typing.get_args(annotation) for section in sections_in(inner)]


def kinds_in(annotation: Any) -> dict[str, type[Section]]:
    """Those of them that are told apart by their kind."""
    fields = {section: section.model_fields.get("kind") for section in sections_in(annotation)}
    return {field.default: section for section, field in fields.items() if field and not field.is_required()}


def _named(value: Any) -> Any:
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict | Section):
        return value
    raise ValueError("this must be the name of a kind, or a mapping with the key `kind`")
