"""The plan for inputs that have names: each has one of its own, and all of their stages are one pipeline."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdl.data.bad_rows import COUNT, Problem
from sparkdl.data.preparing.features import INPUTS, InputPlan, NamedPart, choose_inputs
from sparkdl.data.raw_columns import require_columns
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError, DataError
from sparkdl.preprocessing import UnfittedPipeline
from sparkdl.preprocessing.input_rows import InputForm
from sparkdl.preprocessing.learner import Learner
from sparkdl.preprocessing.lists import ShortenedLists
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.tokens import LearnTokens, Tokenise, check_tokeniser, end_of_text
from sparkdl.settings import Input, Prepare
from sparkdl.storage import read_file

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame

__all__ = ["WRONG_INPUT", "made_problems", "plan_inputs", "width_field"]

WRONG_INPUT = "_wrong"
"""The field beside those of inputs, whose names begin with a letter: the number of what is wrong with a row, or 0."""

_WHOLE_NUMBERS = {"tinyint", "smallint", "int", "bigint"}
_FLOATS = {"float", "double"}


def plan_inputs(rows: "DataFrame", settings: Prepare, pipeline: "Pipeline | None" = None) -> InputPlan:
    """Decide which columns of the raw rows become the inputs, and how. Runs on the driver; reads some rows at most.

    Raises :class:`DataError` for a column that is missing or of a type that cannot be learned from, and
    :class:`ConfigError` for stages that do not fit it.
    """
    if not settings.inputs:
        return choose_inputs(rows, settings, pipeline)
    if pipeline is not None:
        raise ConfigError("a pipeline of Spark's makes one input that has no name; give either it or `inputs`")
    parts: dict[str, NamedPart] = {}
    stages: list[FittedStage | Learner] = []
    for name, each in settings.inputs.items():
        with _named(name):
            parts[name], added = _part(rows, name, each, settings)
        stages += added
    raw_columns: dict[str, str] = {}
    fields: dict[str, tuple[str, ...]] = {}
    for name, part in parts.items():
        for column, kind in part.plan.raw_columns.items():
            shared = part.plan.shape and column in _columns_of_others(parts, name)
            if raw_columns.setdefault(column, kind) != kind or shared:
                raise DataError(
                    f"inputs.{name}: another input reads column {column!r} in another way; copy the column, and give"
                    " the copy a name of its own"
                )
        fields |= part.plan.fields
    fitted = UnfittedPipeline(tuple(stages), INPUTS)
    return InputPlan("named", INPUTS, raw_columns, stages=fitted, fields=fields, parts=parts)


def made_problems(inputs: InputPlan) -> list[Problem]:
    """What can be wrong with what stages have made, in the order of the numbers in :data:`WRONG_INPUT`, from 1."""
    from pyspark.sql import functions as sf

    number = sf.col(identifier(inputs.column))[WRONG_INPUT]
    return [
        Problem(says, remedy, number == place)
        for place, (says, remedy) in enumerate(
            (_says(name, part, what) for name, part in inputs.parts.items() for what in part.may_be), 1
        )
    ]


def _says(name: str, part: NamedPart, what: str) -> tuple[str, str]:
    columns = f"input {name!r} (column{'s' * (len(part.plan.raw_columns) > 1)} {', '.join(part.plan.raw_columns)})"
    kind, most = part.form.kind, part.form.max_length
    elements = "tokens" if kind == "tokens" else "elements"
    below = f"0 to {part.form.vocabulary - 1:,}" if part.form.vocabulary else "0 to 2^31 - 2"
    return {
        "empty": (f"{columns} has {COUNT} rows without {elements}", "drop them"),
        "long": (
            f"{columns} has {COUNT} rows of more than {most} {elements}",
            "raise `max_length`, set `on_long_rows: cut`, drop them",
        ),
        "id": (
            f"{columns} has {COUNT} rows with ids that are no whole numbers from {below}",
            "raise `vocabulary`, make ids by the stages `index` or `hash`, drop these rows",
        ),
        "number": (
            f"{columns} has {COUNT} rows with values that are NaN or infinite after preprocessing",
            "add the stage `impute`, drop these rows",
        ),
    }[what]


def width_field(name: str) -> str:
    """The field that says how wide the rows of a sparse input are, which they do not show."""
    return f"_width_{name}"


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors name the input that they are about."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"inputs.{name}: {error}") from None


def _columns_of_others(parts: Mapping[str, NamedPart], one: str) -> set[str]:
    return {column for name, part in parts.items() if name != one for column in part.plan.raw_columns}


def _part(
    rows: "DataFrame", name: str, each: Input, settings: Prepare
) -> tuple[NamedPart, list[FittedStage | Learner]]:
    """The plan for one input, and the stages that make it."""
    alone, kind = settings.of_input(name), each.made_as
    if kind == "image":
        plan = replace(choose_inputs(rows, alone), column=name)
        return NamedPart(plan, next(iter(plan.raw_columns)), InputForm("image", "uint8"), ()), []
    output = f"{WORKING}input_{name}"
    length = each.max_length if each.on_long_rows == "cut" else None
    most = None if length else each.max_length
    if kind in ("tokens", "sequence"):
        column = each.raw[0]
        found = require_columns(rows, [column])[column]
        sql_type = found.kind.simpleString()
        fields = {column: found.path} if len(found.path) > 1 else {}
        plan = InputPlan(kind, name, {column: sql_type}, fields=fields)
        stage: FittedStage | Learner
        if kind == "tokens":
            form = InputForm("tokens", "int32", max_length=most)
            if each.block_length:  # texts without a token add none to a block
                tokeniser = _tokeniser(column, output, each, None, sql_type)
                return NamedPart(plan, output, form, ()), [tokeniser]
            stage = _tokeniser(column, output, each, length, sql_type)
        else:
            form = InputForm("sequence", _element(column, sql_type), each.vocabulary, most)
            stage = ShortenedLists(column, output, form.dtype, length)  # type: ignore[arg-type]
        may_be: tuple[str, ...] = ("empty",) if most is None else ("empty", "long")
        if kind == "sequence":
            may_be += ("id",) if form.dtype == "int32" else ("number",)
        return NamedPart(plan, output, form, may_be), [stage]
    plan = choose_inputs(rows, alone, output=output, prefix=f"{WORKING}{name}_stage", exact=kind == "ids")
    assert plan.stages is not None
    form = InputForm(kind, "int32" if kind == "ids" else "float32", each.vocabulary)
    part = NamedPart(replace(plan, column=name), output, form, ("id",) if kind == "ids" else ("number",))
    return part, list(plan.stages.stages)


def _tokeniser(column: str, output: str, each: Input, length: int | None, sql_type: str) -> FittedStage | Learner:
    if sql_type != "string":
        raise DataError(f"column {column!r} is of type {sql_type}, and tokens are made of text")
    if each.tokenizer is None:
        assert each.vocabulary is not None
        return LearnTokens(column, output, each.vocabulary, length, ends_texts=each.block_length is not None)
    try:
        text = read_file(each.tokenizer).decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise ConfigError(f"{each.tokenizer} is no file of a tokeniser: {error}") from None
    check_tokeniser(text, each.tokenizer)
    if each.block_length:
        end_of_text(text, each.end_of_text)
    return Tokenise(column, output, text, length)


def _element(column: str, sql_type: str) -> str:
    """The type of the numbers of a sequence."""
    element = sql_type.removeprefix("array<").removesuffix(">")
    if element in _WHOLE_NUMBERS:
        return "int32"
    if element in _FLOATS:
        return "float32"
    raise DataError(
        f"column {column!r} is of type {sql_type}; a sequence is an array of whole numbers (ids, events) or of"
        " floats (a series). Make ids of texts before, or use `kind: tokens`"
    )
