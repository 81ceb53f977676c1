"""Turns raw columns into a model's input, without Spark. Scoring tasks and servers use the same code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.card import PREPROCESSING
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import DataError
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing import Column, FittedPipeline, as_floats, as_structs, read_pipeline
from sparkdl.preprocessing.assembling import Assemble
from sparkdl.preprocessing.encoded_images import decoded_images
from sparkdl.preprocessing.filling import FillPlaces
from sparkdl.preprocessing.input_rows import InputForm, made_input
from sparkdl.preprocessing.raw_rows import fitted_rows
from sparkdl.preprocessing.raw_vectors import is_list, is_vector, numbers_of_texts, vectors
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import SPARSE, as_java

__all__ = ["Features", "RawInputs", "ReadRows", "reason_of"]


class ReadRows(NamedTuple):
    """The model's input for some rows, and the rows that are refused."""

    column: pa.Array
    """The input. The values of refused rows have no meaning."""
    refused: pa.Array | None
    """The reason for which a row is refused, null for other rows; None if no row is refused."""


@dataclass(frozen=True)
class Features:
    """The columns of an estimator, which are concatenated to the only raw column of its model."""

    kinds: tuple[tuple[str, str], ...]
    """Names and types: ``float`` or ``double`` for numbers, ``vector`` for lists and vectors."""
    stands_for_none: float = float("nan")
    """The number that means a missing value."""
    means: tuple[float, ...] | None = None
    """The replacement of missing values, one per feature; None if missing values are errors."""


@dataclass(frozen=True)
class RawInputs:
    """Turns raw columns into the input of a model. Safe to use from several threads."""

    card: ModelCard
    pipeline: FittedPipeline | None
    """The preprocessing; None for a model that reads its only raw column unchanged."""
    gaps: bool = False
    """Whether vectors may contain nulls."""

    @classmethod
    def open(cls, folder: Path, card: ModelCard) -> Self:
        """The preprocessing of the model in a folder, in which nothing is executed.

        Raises :class:`~sparkdl.errors.OnlySparkError` for a stage that only Spark can apply, and
        :class:`~sparkdl.errors.ModelError` for a damaged one.
        """
        return cls(card, read_pipeline(folder / PREPROCESSING) if card.preprocessing else None)

    def behind(self, features: Features) -> Self:
        """The same preprocessing after the estimator's own columns have been concatenated."""
        (name,), stages = self.card.raw_columns, () if self.pipeline is None else self.pipeline.stages
        kinds = dict(features.kinds)
        first: list[FittedStage] = [Assemble(tuple(kinds), name, "float64" if stages else "float32")]
        if features.means is not None:
            first.append(FillPlaces(name, features.stands_for_none, features.means))
        card = self.card.model_copy(update={"raw_columns": kinds})
        return replace(self, card=card, pipeline=FittedPipeline((*first, *stages)), gaps=features.means is not None)

    def read(self, columns: Mapping[str, pa.Array]) -> ReadRows:
        """The inputs of some rows, from the columns of ``card.raw_columns``, which have the same length. Runs anywhere.

        If preprocessing raises an error, the rows are halved until the rows that cause it are found.
        """
        (rows,) = {len(column) for column in columns.values()}
        if not rows:
            return ReadRows(pa.array([], self._kind), None)
        try:
            return self._read(columns)
        except MemoryError:
            raise
        except Exception as error:
            if rows == 1:
                return ReadRows(pa.nulls(1, self._kind), pa.array([reason_of(error)]))
        half = rows // 2
        parts = [
            self.read({name: column.slice(begin, length) for name, column in columns.items()})
            for begin, length in ((0, half), (half, rows - half))
        ]
        refused = [pa.nulls(len(part.column), pa.string()) if part.refused is None else part.refused for part in parts]
        reasons = pa.concat_arrays(refused)
        inputs = pa.concat_arrays([part.column.cast(self._kind) for part in parts])
        return ReadRows(inputs, reasons if reasons.null_count < rows else None)

    @property
    def _kind(self) -> pa.DataType:
        """The default Arrow type of inputs."""
        kinds = {"image": pa.binary(), "sparse": SPARSE}
        if self.card.inputs:
            return pa.struct([(name, pa.binary()) for name in self.card.inputs])
        return kinds.get(self.card.input.kind, pa.list_(pa.float32()))

    def _read(self, columns: Mapping[str, pa.Array]) -> ReadRows:
        if self.pipeline is None:
            return self._as_it_is(columns[self.card.input_column])
        fitted: dict[str, Column] = {}
        refusals: list[pa.Array] = []
        needs = self.pipeline.needs
        images = {spec.column: name for name, spec in self.card.inputs.items() if spec.kind == "image"}
        for name, sql_type in self.card.raw_columns.items():
            if name in images:
                continue
            column, width = columns[name], needs.get(name)
            fitted[name], refused = fitted_rows(column, name, sql_type, width=width, gaps=self.gaps)
            if sql_type == "vector":
                problem = _no_vector(name, width)
            elif name in needs and isinstance(text := fitted[name], pa.Array) and text.type == pa.string():
                refused, problem = (np.asarray(text.is_null()) if text.null_count else None), f"column {name!r} is null"
                fitted[name] = text.fill_null("")
            else:
                problem = _no_number(column, refused, name, sql_type)
            if refused is not None:
                refusals.append(_reasons(refused, problem))
        if self.card.inputs:
            return self._by_name(columns, self.pipeline.made(fitted), refusals)
        made = self.pipeline.transform(fitted, self.card.input.column)
        if isinstance(made, pa.Array):
            raise DataError(f"the preprocessing turns column {self.card.input.column!r} into {made.type}, not vectors")
        inputs = as_structs(made) if self.card.input.kind == "sparse" else as_floats(made)
        return ReadRows(inputs, pc.coalesce(*refusals) if refusals else None)

    def _by_name(self, raw: Mapping[str, pa.Array], fitted: Mapping[str, Column], refusals: list[pa.Array]) -> ReadRows:
        """Named inputs as a struct of binary values, from the results of the stages and from images."""
        values = []
        for name, spec in self.card.inputs.items():
            if spec.kind == "image":
                pixels, refused = self._image(raw[spec.column], spec, spec.column)
                values.append(pixels)
                missing = np.asarray(pixels.is_null())
                refusals += [each for each in [refused] if each is not None]
                if missing.any():
                    refusals.append(_reasons(missing, f"column {spec.column!r} is not an image of the model's size"))
                continue
            made = made_input(fitted[spec.column], InputForm(spec.kind, spec.dtype, spec.vocabulary, spec.max_length))
            values.append(made.values)
            refusals += [_reasons(rows, _problem(name, spec, what)) for what, rows in made.wrong.items()]
        structs = pa.StructArray.from_arrays(values, list(self.card.inputs))
        return ReadRows(structs, pc.coalesce(*refusals) if refusals else None)

    @staticmethod
    def _image(column: pa.Array, spec: InputSpec, name: str) -> ReadRows:
        """The pixels of images; null for those that are not of the model's size."""
        if pa.types.is_struct(column.type):
            found = ReadRows(_bytes_of_images(column, spec.shape), None)
        elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            found = _pixels(column, spec.shape, name)
        else:
            raise DataError(f"column {name!r} holds {column.type}, but the model was trained on images")
        pixels = found.column.cast(pa.binary())
        fits = pc.equal(pc.binary_length(pixels), spec.row_bytes)
        return ReadRows(pc.if_else(fits, pixels, pa.scalar(None, pa.binary())), found.refused)

    def _as_it_is(self, column: pa.Array) -> ReadRows:
        """The only raw column, in a type that a predictor can read."""
        spec = self.card.input
        if spec.kind == "vector" and is_vector(column.type):
            width = int(np.prod(spec.shape))
            found, refused = vectors(column, spec.column, width=width)
            reasons = None if refused is None else _reasons(refused, _no_vector(self.card.input_column, width))
            return ReadRows(as_floats(found), reasons)
        if is_list(column.type) and pa.types.is_string(column.type.value_type):
            return ReadRows(numbers_of_texts(column), None)
        if spec.kind == "image" and pa.types.is_struct(column.type):
            return ReadRows(_bytes_of_images(column, spec.shape), None)
        if spec.kind == "image" and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            return _pixels(column, spec.shape, self.card.input_column)
        return ReadRows(column, None)


def reason_of(error: Exception) -> str:
    """The message of an error, in one line."""
    text = next(iter(str(error).strip().splitlines()), "")
    return text if isinstance(error, DataError) else f"{type(error).__name__}: {text}"


def _no_vector(name: str, width: int | None) -> str:
    return f"column {name!r} is null or lacks a number" + ("" if width is None else f", or is not {width} wide")


def _problem(name: str, spec: InputSpec, what: str) -> str:
    """What is wrong with a row's named input; see :class:`~sparkdl.preprocessing.input_rows.MadeInput`."""
    elements = "tokens" if spec.kind == "tokens" else "elements"
    return (
        f"input {name!r} "
        + {
            "empty": f"is null or has no {elements}",
            "long": f"has more than {spec.max_length} {elements}, the most in training",
            "id": f"has ids that are not whole numbers from 0 to {(spec.vocabulary or 1) - 1:,}, those of training",
            "number": "has values that are NaN, infinite or beyond float32",
        }[what]
    )


def _no_number(column: pa.Array, refused: NDArray[np.bool_] | None, name: str, sql_type: str) -> pa.Array:
    """For each refused row, what is wrong with its number."""
    values = [] if refused is None else column.filter(pa.array(refused))
    problems = [
        f"column {name!r}: {as_java(value)} is no {sql_type}, which the model was trained on" for value in values
    ]
    return pa.array(problems, pa.string())


def _reasons(refused: NDArray[np.bool_], problem: str | pa.Array) -> pa.Array:
    """The problem for refused rows, null for others. ``problem`` is one text, or one per refused row."""
    if isinstance(problem, str):
        return pc.if_else(pa.array(refused), problem, pa.scalar(None, pa.string()))
    return pc.replace_with_mask(pa.nulls(len(refused), pa.string()), pa.array(refused), problem)


def _pixels(images: pa.Array, shape: tuple[int, ...], name: str) -> ReadRows:
    """The pixels of images, which are either encoded files or pixels already."""
    pixels, refused = decoded_images(images, shape)
    if not refused:
        return ReadRows(pixels, None)
    says = {row: f"column {name!r}: {kind} ({detail})" for row, (kind, detail) in refused.items()}
    return ReadRows(pixels, pa.array([says.get(row) for row in range(len(images))], pa.string()))


def _bytes_of_images(images: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """The bytes of Spark's image structs; empty for an image of another shape, even if it has as many bytes."""
    sizes = zip(("height", "width", "nChannels"), shape, strict=True)
    same = [pc.equal(pc.struct_field(images, name), size) for name, size in sizes]
    fits = pc.and_(pc.and_(same[0], same[1]), same[2])
    found = pc.struct_field(images, "data")
    return found if pc.all(fits, skip_nulls=False).as_py() else pc.if_else(fits, found, pa.scalar(b"", found.type))
