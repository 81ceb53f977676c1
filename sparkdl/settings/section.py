"""What the sections of a configuration share."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import override

from sparkdl.masking import masked
from sparkdl.settings.explain import explained

__all__ = ["Folder", "Fraction", "Positive", "Section", "Seed", "Storage", "TaskName", "absolute"]


def absolute(path: str) -> str:
    """A plain path made absolute: an executor's working directory is not the driver's. URIs stay as they are."""
    is_uri = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path)
    return path if is_uri else str(Path(path).expanduser().absolute())


def _local(path: str) -> str:
    if "://" in path:
        raise ValueError("this must be a folder that can be appended to, not a URI")
    return str(Path(path).expanduser().absolute())


Storage = Annotated[str, AfterValidator(absolute)]
Folder = Annotated[str, AfterValidator(_local)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TaskName = Literal["classification", "multi_label", "regression", "ranking", "language_modelling"]
"""What there is to learn from labels: one class a row, several, a number, or the order of the rows of a group."""


class Section(BaseModel):
    """What all sections share: unknown keys are errors, and nothing changes after validation.

    However a section is made, what cannot be is a :class:`ConfigError` of one line.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    def __init__(self, /, **values: Any) -> None:
        with explained(type(self)):
            super().__init__(**values)

    # What Pydantic asks whether it may make the sections inside of a section without this method: their errors are
    # then told by the outermost one, which knows the whole key.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def checked(cls, values: Any, *, place: str) -> Self:
        """A section of values that a person has written at that place, with which errors begin."""
        with explained(cls, place=place):
            return super().model_validate(values)

    @classmethod
    @override
    def model_validate(cls, obj: Any, **how: Any) -> Self:
        with explained(cls):
            return super().model_validate(obj, **how)

    @classmethod
    @override
    def model_validate_json(cls, json_data: str | bytes | bytearray, **how: Any) -> Self:
        with explained(cls):
            return super().model_validate_json(json_data, **how)

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, in which some keys have other values: these are validated, too."""
        copy = super().model_copy(deep=deep)
        if not update:
            return copy
        return self.model_validate({name: getattr(copy, name) for name in self.model_fields_set} | dict(update))

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        with explained(type(self)):
            super().__setattr__(name, value)

    @override
    def __delattr__(self, name: str) -> None:
        with explained(type(self)):
            super().__delattr__(name)

    @override
    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What is shown of a section: no secrets."""
        for name, value in super().__repr_args__():
            yield name, value if isinstance(value, Section) else masked(value, name=name or "")
