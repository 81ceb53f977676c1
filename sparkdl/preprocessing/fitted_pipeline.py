"""A fitted pipeline, and the stages that correspond to Spark's classes."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdl.errors import DataError
from sparkdl.preprocessing.assembling import Assemble, ExpectWidth
from sparkdl.preprocessing.calendar_parts import CalendarParts
from sparkdl.preprocessing.categories import Index
from sparkdl.preprocessing.copying import Copy
from sparkdl.preprocessing.numbers import Impute
from sparkdl.preprocessing.saved import check_preprocessing, saved_stages
from sparkdl.preprocessing.scaling import Normalize, Standardise
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.stages_file import STAGES_FILE, as_json, read_stages
from sparkdl.preprocessing.values import Column, find
from sparkdl.preprocessing.word_counts import CountHashes, CountWords, LogarithmOfCounts, WeighWords
from sparkdl.preprocessing.word_hashes import HashWords
from sparkdl.preprocessing.words import CutAtPattern, CutAtSpaces, Neighbours

__all__ = ["FittedPipeline", "read_pipeline"]

SPARK_STAGES: dict[str, type[FittedStage]] = {
    "CountVectorizerModel": CountWords,
    "DateParts": CalendarParts,
    "HashingTF": CountHashes,
    "IDFModel": WeighWords,
    "ImputerModel": Impute,
    "LogCounts": LogarithmOfCounts,
    "NGram": Neighbours,
    "Normalizer": Normalize,
    "RegexTokenizer": CutAtPattern,
    "SQLTransformer": Copy,
    "StandardScalerModel": Standardise,
    "StringIndexerModel": Index,
    "Tokenizer": CutAtSpaces,
    "VectorAssembler": Assemble,
    "VectorSizeHint": ExpectWidth,
    "WordHashes": HashWords,
}
"""Stages by the class names in pipelines that Spark saved, as earlier versions of sparkdl did."""
_KNOWN = re.compile(r"(?:(?:org\.apache\.spark|pyspark)\.ml\.feature|sparkdl\.data\.\w+)\.(\w+)")


@dataclass(frozen=True)
class FittedPipeline:
    """Fitted stages in their order. Small; safe to use from several threads."""

    stages: tuple[FittedStage, ...]

    @property
    def needs(self) -> dict[str, int | None]:
        """Raw columns that must have a value in every row; the width of vectors, and None for other columns."""
        return {name: width for stage in self.stages for name, width in stage.needs.items()}

    def as_json(self) -> bytes:
        """The content of the file :data:`~sparkdl.preprocessing.stages_file.STAGES_FILE`."""
        return as_json(self.stages)

    def made(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The raw columns and all columns that stages add. Runs anywhere; raises the errors of :meth:`transform`."""
        found = dict(columns)
        for stage in self.stages:
            found |= stage.transform(found)
        return found

    def transform(self, columns: Mapping[str, Column], output: str) -> Column:
        """The column ``output``, from raw columns that :func:`as_fitted` has checked. Runs anywhere.

        Raises :class:`~sparkdl.errors.DataError` for rows that a stage rejects, and for a missing column.
        """
        found = self.made(columns)
        if output not in found:
            raise DataError(f"the preprocessing makes no column {output!r}; it makes {', '.join(found)}")
        return find(found, output)


def read_pipeline(folder: Path, *, trusted: Collection[str] = ()) -> FittedPipeline:
    """The fitted stages in a folder, from sparkdl's own file or from a pipeline that Spark saved.

    Runs anywhere, without Spark; nothing in the folder is executed.

    Raises :class:`~sparkdl.errors.ModelError` for damaged files and for stages that could run code, and
    :class:`~sparkdl.errors.OnlySparkError`, which names the stage, if only Spark can apply a stage; stages of the
    classes ``trusted`` are of this kind.
    """
    if (folder / STAGES_FILE).exists():
        return FittedPipeline(tuple(read_stages(folder / STAGES_FILE)))
    check_preprocessing(folder, trusted=trusted)
    stages: list[FittedStage] = []
    renamed: dict[str, str] = {}
    for saved in saved_stages(folder):
        known = _KNOWN.fullmatch(saved.name)
        if not known or known[1] not in SPARK_STAGES:
            raise saved.only_spark()
        stages.append(SPARK_STAGES[known[1]].read(replace(saved, renamed=renamed)))
    if stages and isinstance(stages[-1], Assemble):
        stages[-1] = replace(stages[-1], kind="float32")
    return FittedPipeline(tuple(stages))
