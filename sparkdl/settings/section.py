"""What the sections of a configuration share."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sparkdl.masking import masked

__all__ = ["Folder", "Fraction", "Positive", "Section", "Seed", "Storage"]


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


class Section(BaseModel):
    """What all sections share: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What is shown of a section: no secrets."""
        for name, value in super().__repr_args__():
            yield name, value if isinstance(value, Section) else masked(value, name=name or "")
