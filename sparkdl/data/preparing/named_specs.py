"""What inputs that have names are: what is known before rows are written, and what their files say."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl.data.preparing.features import InputPlan, NamedPart
from sparkdl.data.preparing.named_plan import width_field
from sparkdl.data.preparing.token_blocks import end_of_texts
from sparkdl.data.preparing.written import Written
from sparkdl.data.sql import identifier
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing import FittedPipeline
from sparkdl.preprocessing.assembling import Assemble
from sparkdl.preprocessing.categories import HashCategories, Index
from sparkdl.preprocessing.tokens import Tokenise, padding_of, size_of
from sparkdl.preprocessing.word_hashes import HashWords
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["find_specs", "with_written"]

_LOOKED_AT = 100
"""Rows that tell how long the rows of a sequence are."""


def find_specs(
    inputs: InputPlan, rows: "DataFrame", fitted: FittedPipeline | None, settings: Prepare
) -> dict[str, InputSpec]:
    """The form of each input; widths, and lengths for now, are those of the first rows. Runs on the driver."""
    from pyspark.sql import functions as sf

    structs = sf.col(identifier(inputs.column))
    sizes = []
    for name, part in inputs.parts.items():
        size = sf.octet_length(structs[name]) / part.form.numbers.itemsize
        sizes.append((structs[width_field(name)] if part.form.kind == "sparse" else size).cast("int").alias(name))
    found = rows.select(*sizes).limit(_LOOKED_AT).collect()
    stages = fitted.stages if fitted else ()
    specs = {name: _spec(part, max(row[name] for row in found), stages) for name, part in inputs.parts.items()}
    if settings.task != "language_modelling":
        return specs
    assert fitted is not None
    return {
        name: spec.model_copy(update={"end_of_text": end_of_texts(fitted, settings.inputs[name].end_of_text)})
        for name, spec in specs.items()
    }


def with_written(specs: Mapping[str, InputSpec], written: Written) -> dict[str, InputSpec]:
    """The same with what is known of all rows: the scale of images, the largest id, the longest row."""
    made, channel = {}, 0
    for number, (name, spec) in enumerate(specs.items()):
        largest, longest = written.largest[2 * number : 2 * number + 2]
        known: dict[str, Any] = {}
        if spec.kind == "image" and written.mean and written.std:
            end = channel + spec.shape[-1]
            known |= {"mean": written.mean[channel:end], "std": written.std[channel:end]}
            channel = end
        if spec.is_ragged:
            known["shape"] = (longest,)
        if spec.dtype == "int32" and spec.vocabulary is None:
            known["vocabulary"] = largest + 1
        made[name] = spec.model_copy(update=known)
    return made


def _spec(part: NamedPart, longest: int, stages: tuple[Any, ...]) -> InputSpec:
    form = part.form
    known: dict[str, Any] = {
        "column": part.made_in,
        "kind": form.kind,
        "dtype": form.dtype,
        "shape": (max(longest, 1),),
    }
    if part.plan.shape:
        known["shape"] = part.plan.shape
    known["vocabulary"] = form.vocabulary or _vocabulary(part.made_in, stages)
    for stage in stages:
        if isinstance(stage, Tokenise) and stage.output == part.made_in:
            known |= {"vocabulary": size_of(stage.tokeniser), "padding": padding_of(stage.tokeniser)}
    known["max_length"] = form.max_length
    return InputSpec(**known)


def _vocabulary(made_in: str, stages: tuple[Any, ...]) -> int | None:
    """The numbers that stages may make of rows, those that no row has had yet, too; None: any may come."""
    parts = next((stage.inputs for stage in stages if isinstance(stage, Assemble) and stage.output == made_in), ())
    sizes: dict[str, int] = {}
    for stage in stages:
        if isinstance(stage, Index):
            sizes |= {out: len(names) + 1 for out, names in zip(stage.outputs, stage.categories, strict=True)}
        elif isinstance(stage, HashCategories):
            sizes |= dict.fromkeys(stage.outputs, stage.places)
        elif isinstance(stage, HashWords):
            sizes[stage.output] = stage.largest + 1
    return max(sizes[part] for part in parts) if parts and all(part in sizes for part in parts) else None
