"""The section ``score``: a registered model over a table."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sparkdl.settings.compress import FormChoice
from sparkdl.settings.section import Positive, Section, Storage, absolute
from sparkdl.settings.source import TABLE_FORMATS, FormatName, Source

__all__ = ["BATCH_SIZE", "TOP_K", "Score"]

BATCH_SIZE = 256
"""Rows per forward pass: a batch that fits into a core's cache is faster than a larger one (measured on ``cnn``: 142 µs
a row, and 252 with 1,024)."""
TOP_K = 5


class Score(Section):
    """How a registered model becomes a column."""

    model: str | None = None
    """A model URI; by default the one that ``tracking`` registers."""
    source: Source | None = None
    """The raw rows; by default ``prepare.source``."""
    split: str | None = None
    """Score only the rows that ``prepare`` puts into this split, with the settings of the model's dataset."""
    where: str | None = None
    """A SQL condition that selects the rows to score, for example ``split = 'test'``: operators and plain functions."""
    output: str | None = None
    """Where predictions are written: a folder or a URI; with ``format: table`` or ``iceberg``, a table's name in the
    catalog."""
    format: FormatName = "parquet"
    """The format of the predictions: any file format that Spark writes, ``table`` or ``iceberg``. ``delta`` and others
    need their package in the Spark session. A configuration file may name only known formats."""
    mode: Literal["error", "append", "merge"] = "error"
    """What happens if ``output`` exists: ``error`` refuses the job, ``append`` adds rows to the table, and ``merge``
    replaces rows with the same ``key`` and adds all others. The last two need a format with atomic commits, such as
    Delta or Iceberg."""
    stream: bool = False
    """Score only new rows: each row that has arrived since the job last ran is scored and added to ``output`` once, by
    Spark's Structured Streaming. With ``mode: error``, the first job creates the output, and later ones add to it."""
    checkpoint: Storage | None = None
    """The folder in which a stream records which rows it has scored. It belongs to one source and one output."""
    interval: Annotated[float, Field(gt=0)] | None = None
    """Seconds between two looks for new rows; the stream then runs until Ctrl-C or SIGTERM ends it. By default it
    scores the rows that are there, and ends."""
    top_k: Positive = TOP_K
    """How many classes are listed in the column ``top_k``."""
    batch_size: Positive = BATCH_SIZE
    """Rows per forward pass. Its activations should fit into a core's cache: more rows are often slower. On a GPU, set
    thousands."""
    on_error: Annotated[Literal["fail", "null"], BeforeValidator(lambda value: value or "null")] = "fail"
    """What happens if a row cannot be scored (an image that cannot be decoded, a vector of another width, NaN):
    ``fail`` ends the job with an error that names the row. With ``null`` the row has no prediction, the column
    ``error`` says why, and all other rows are scored."""
    key: str | None = None
    """The column that identifies rows: in errors, and for ``mode: merge``."""
    predict: str | None = None
    """One of the outputs in ``train.outputs``: it is then the only column that is added, under its name. By default the
    predictions are added, and after them all of these outputs."""
    form: FormChoice = "auto"
    """Which form of the network predicts (``compress.forms``); ``original`` is the network itself. With ``auto``, a
    task tries the original and, if the model has it, ``onnx`` for a second, and takes the faster one."""
    trusted_stages: list[str] = []
    """Classes of your own (``package.module.Class``) that a model's preprocessing may contain, besides those of Spark
    and sparkdl: loading a stage runs the code of its class."""
    trusted_modules: list[str] = []
    """Modules or packages of your own whose code may build the network of a model that could not be exported: scoring
    imports these and no others."""

    @model_validator(mode="after")
    def _output_is_the_drivers(self) -> Self:
        """A relative path made absolute: an executor's working directory is not the driver's."""
        if self.output and self.format not in TABLE_FORMATS:
            object.__setattr__(self, "output", absolute(self.output))
        return self

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        if self.mode != "error" and self.format not in {"delta", *TABLE_FORMATS}:
            raise ValueError(
                f"`mode: {self.mode}` needs a table with atomic commits: `format: delta`, or `table` with the table's"
                f" name; a failure would leave incomplete files of {self.format}"
            )
        if self.mode == "merge" and self.key is None:
            raise ValueError("`mode: merge` needs `key`, the column that identifies rows")
        return self

    @model_validator(mode="after")
    def _can_be_streamed(self) -> Self:
        if not self.stream:
            if self.checkpoint is not None or self.interval is not None:
                raise ValueError("`checkpoint` and `interval` are for `stream: true`, which scores only new rows")
            return self
        if self.checkpoint is None:
            raise ValueError(
                "`stream: true` needs `checkpoint`, the folder in which it records the rows that it has scored"
            )
        if self.checkpoint == self.output:
            raise ValueError("`checkpoint` and `output` are the same folder; choose one for each")
        if self.split is not None:
            raise ValueError(
                "`split` selects rows of a table that was prepared, but a stream has new rows; leave it out"
            )
        return self
