"""Lighter forms of a network: files beside it in the model's folder, and ``forms.json``, which describes them.

:mod:`sparkdl.forms` makes them. Runs anywhere.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkdl.errors import ConfigError, ModelError
from sparkdl.models.network_file import NETWORK_FILE
from sparkdl.settings.compress import FormChoice, FormName
from sparkdl.storage import hash_file

__all__ = ["FORMS_FILE", "FORM_FILES", "Form", "checked_form", "files_to_leave", "read_forms", "write_forms"]

FORMS_FILE = "forms.json"
"""The file that describes the forms in a model's folder."""
FORM_FILES: Mapping[FormName, str] = {
    "int8": "int8.onnx",
    "int8_weights": "int8_weights.safetensors",
    "float16": "float16.safetensors",
    "onnx": "network.onnx",
}
"""The file of each form of a network."""


class Form(BaseModel):
    """One lighter form, with its figure and that of the original."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Annotated[str | None, Field(pattern=r"^[a-z0-9_]+\.[a-z]+$")] = None
    """The file's name in the folder; by default the one in :data:`FORM_FILES`."""
    replaces: tuple[str, ...] = (NETWORK_FILE,)
    """The original's files, which are not needed to open the form."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(gt=0)]
    original_bytes: Annotated[int, Field(gt=0)]
    """The bytes of the files that it replaces."""
    made: str
    """How it was made, in words."""
    rows_at_a_time: Annotated[int | None, Field(gt=0)] = None
    """For ONNX Runtime: the number of rows per call that is fastest; None: whole batches."""
    metric: str
    """The split and the figure of the task that was measured on it: ``validation_accuracy``."""
    figure: float
    original_figure: float
    """The figure of the original on the same rows."""
    rows: Annotated[int, Field(gt=0)]
    """The number of these rows."""


class FormsFile(BaseModel):
    """The content of ``forms.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    forms: dict[FormName, Form]


def read_forms(folder: Path) -> dict[FormName, Form]:
    """The forms in a model's folder, by name; empty if there is no ``forms.json``.

    Raises :class:`ModelError` if that file is damaged.
    """
    path = folder / FORMS_FILE
    try:
        return FormsFile.model_validate_json(path.read_bytes()).forms
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "the file as a whole"
        raise ModelError(f"{path} is not a valid description of forms: {place}: {problem['msg']}") from None


def write_forms(folder: Path, forms: Mapping[FormName, Form]) -> None:
    """Write the description of the forms in a model's folder."""
    (folder / FORMS_FILE).write_text(FormsFile(forms=dict(forms)).model_dump_json(indent=1))


def checked_form(folder: Path, name: FormName) -> Path:
    """The file of a form, whose digest is checked.

    Raises :class:`ConfigError` for a form that the model does not have, and :class:`ModelError` for a file that is
    missing or was altered.
    """
    forms = read_forms(folder)
    if name not in forms:
        raise ConfigError(
            f"the model has no form {name!r}; it has {', '.join(forms) or 'none'}. `sparkdl compress` makes a version"
            f" that has it (compress.forms: [{name}])"
        )
    path = folder / _file_of(name, forms[name])
    try:
        found = hash_file(str(path))
    except FileNotFoundError:
        raise ModelError(f"the model's form {name!r} is missing: there is no {path}") from None
    if found != forms[name].sha256:
        raise ModelError(
            f"the model's form {name!r} is damaged: the SHA-256 of {path} is not the one in {FORMS_FILE}; fetch the"
            " model again, or make the form again (`sparkdl compress`)"
        )
    return path


def files_to_leave(folder: Path, form: FormChoice) -> set[str]:
    """The files of a model's folder that are not needed to open this form; ``auto`` may open the original or ``onnx``.

    Runs anywhere. The model must have the form.
    """
    forms = read_forms(folder)
    files = {name: _file_of(name, each) for name, each in forms.items()}
    match form:
        case "original":
            return {FORMS_FILE, *files.values()}
        case "auto":
            return {*files.values()} - {files.get("onnx")}
        case name:
            return {*forms[name].replaces, *files.values()} - {files[name]}


def _file_of(name: FormName, form: Form) -> str:
    return form.file or FORM_FILES[name]
