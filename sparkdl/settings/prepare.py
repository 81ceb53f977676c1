"""The section ``prepare``: where rows come from and how they become a dataset."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from sparkdl.settings.named_inputs import NamedInputs, check_blocks, check_names
from sparkdl.settings.section import Positive, Section, Seed, Storage, TaskName
from sparkdl.settings.source import Source
from sparkdl.settings.split import Split
from sparkdl.settings.stage_options import Stage

__all__ = ["Prepare"]


def _by_text(names: Any) -> Any:
    """Labels as text, as a dataset stores them: in YAML, ``0`` is a number."""
    return {str(label): name for label, name in names.items()} if isinstance(names, dict) else names


class Prepare(Section):
    """How a raw table becomes a dataset."""

    output: Storage
    """The dataset's folder: a path or a URI on storage that driver and executors both reach; by default
    ``train.dataset``, if the same file sets it."""
    source: Source | None = None
    """The raw rows; not needed when a DataFrame is handed in."""
    label: str = "label"
    """The column to predict: whole numbers or strings, where each distinct value is a class; arrays of these, for rows
    with several labels; or any numbers, for regression and (from 0 to 31) ranking."""
    task: TaskName | None = None
    """What the label means. By default, arrays mean ``multi_label``, numbers with fractions ``regression``, and
    everything else ``classification``. With ``sparse`` and without a task, the dataset is for ``train-extreme``.
    ``language_modelling`` has no label: the network predicts each token from those before it, and ``inputs`` has one
    input of kind ``tokens`` with a ``block_length``."""
    qid: str | None = None
    """The column with the group of each row, for ``task: ranking``, as ``qid`` in xgboost. A group is one example of
    the dataset: splits, row groups, batches and weights count groups."""
    weight: str | None = None
    """A column of numbers: how much each row counts relative to the others."""
    class_names: Annotated[dict[str, str], BeforeValidator(_by_text)] = {}
    """Readable names of the classes for pictures, ``{0: T-shirt, 1: trouser}``. Predictions are still values of the
    label column; a label that is not listed is shown as it is."""
    image: str | None = None
    """The column of images: the bytes of files (JPEG, PNG, WebP, GIF, BMP, TIFF), raw bytes of exactly ``image_shape``,
    or Spark's image struct. Kept as uint8; scaling happens inside the network."""
    image_shape: Annotated[list[Positive], Field(min_length=2, max_length=3)] | None = None
    """Height, width and (if more than one) channels; ``idx`` and ``images`` sources know it themselves. Files are
    decoded to 1 channel (grey) or 3 (red, green, blue), and resized bilinearly. Bytes of exactly this size are raw
    pixels, unless they begin like an image file."""
    features: list[str] | None = None
    """The columns to learn from, if there is no ``image``. By default all columns except label, weight, qid and those
    that ``split`` names: a customer's number or a date that ``split`` names is learned from only if it is listed here.
    ``address.lat`` is the field ``lat`` of a struct, or the value for the key ``lat`` of a map, unless a column has
    that name. Arrays and vectors of one width become parts of the input vector."""
    stages: list[Stage] = []
    """Preprocessing, in order; the results are assembled into one vector of float32."""
    inputs: Annotated[NamedInputs, Field(exclude_if=lambda inputs: not inputs)] = {}
    """Instead of ``image``, ``features`` and ``stages``: the inputs of a network's ``forward``, by the names of its
    arguments, such as ``{photo: {column: image, image_shape: [32, 32, 3]}, numbers: {columns: [age, price]}}``."""
    sparse: bool = False
    """Whether rows keep only values that are not zero: for long vectors, very many classes, or several labels per row.
    Labels that are missing in the split ``train`` are then kept as unseen instead of refused."""
    unit_norm: bool | None = None
    """Whether each row is divided by its Euclidean norm; by default only if ``sparse``."""
    on_bad_rows: Literal["error", "skip"] = "error"
    """What happens if rows cannot be used: a missing label or number, values that are NaN, infinite or beyond float32,
    an image that cannot be decoded, a label that the training split does not have. Either way, these rows are counted,
    and the first ones are named: by file and line if the source has them, else by the values of their first columns."""
    split: Split = Split()
    """How rows are split. By default the source's own splits, if it has any: a path for each, or a ``dictionary``."""
    seed: Seed = 0
    """Decides splits and the order of rows."""
    in_place: Annotated[bool, Field(exclude_if=lambda in_place: not in_place)] = False
    """Whether rows stay where they are instead of being copied: ``output`` then holds only the card and the fitted
    stages. The source has to be Parquet files (a folder of them, or a Delta table) that do not change during training.
    Ranks decode them in every epoch, and a row's split follows from its place in these files. The ``features`` must
    make a dense vector."""
    num_ranks: Positive = 2
    """The number of row groups in each split is a multiple of this."""
    rows_per_group: Positive = 8192
    """About how many rows a row group holds; fewer if their inputs would take more than 256 MiB."""

    @property
    def keys(self) -> list[str]:
        """The columns of the rows that are not inputs: label, split, weight, groups and time."""
        time = self.split.time.column if self.split.time else None
        label = None if self.task == "language_modelling" else self.label
        named = label, self.split.column, self.weight, self.qid, *self.split.group, time
        return list(dict.fromkeys(key for key in named if key))

    def of_input(self, name: str) -> Self:
        """The settings for one of the ``inputs`` alone, as if it were the only input and had no name."""
        each = self.inputs[name]
        own: dict[str, Any] = {"inputs": {}, "task": None, "stages": each.stages, "sparse": each.made_as == "sparse"}
        own["unit_norm"] = False
        image = each.column if each.made_as == "image" else None
        own |= {"image": image, "image_shape": each.image_shape, "features": None if image else each.raw}
        return self.model_copy(update=own)

    @field_validator("split", mode="before")
    @classmethod
    def _as_the_source_says(cls, split: Any, info: ValidationInfo) -> Any:
        source = info.data.get("source")
        given = split.model_dump(exclude_unset=True) if isinstance(split, Split) else split
        return {"column": "split"} | given if source and source.brings_splits and isinstance(given, dict) else split

    @model_validator(mode="after")
    def _inputs_or_one(self) -> Self:
        beside = "image", "image_shape", "features", "stages", "sparse", "unit_norm", "qid", "in_place"
        if self.inputs and (named := [f"`{key}`" for key in beside if getattr(self, key)]):
            raise ValueError(f"`inputs` have their own settings, and cannot be combined with {', '.join(named)}")
        check_names(self.inputs)
        check_blocks(self.inputs, of_language=self.task == "language_modelling")
        for name, each in self.inputs.items():
            for key in {*self.keys} & {self.label, self.weight} & set(each.raw):
                raise ValueError(f"`inputs.{name}` names {key!r}, which is the label or the weight")
        return self

    @model_validator(mode="after")
    def _has_a_label(self) -> Self:
        if self.task != "language_modelling":
            return self
        beside = {
            "label": "label" in self.model_fields_set,
            "weight": self.weight,
            "class_names": self.class_names,
            "split.stratify": self.split.stratify,
        }
        if named := [f"`{key}`" for key, is_set in beside.items() if is_set]:
            raise ValueError(
                f"`task: language_modelling` learns only from the texts, in which all tokens count alike; leave out"
                f" {' and '.join(named)}"
            )
        return self

    @model_validator(mode="after")
    def _image_or_features(self) -> Self:
        if self.image and self.features:
            raise ValueError("give either `image` or `features`, not both")
        if self.image and self.stages:
            raise ValueError("`stages` apply to `features`; an `image` is scaled inside the network")
        if self.image and (self.sparse or self.unit_norm):
            raise ValueError("`sparse` and `unit_norm` are for `features`, not for an `image`")
        if (self.sparse or self.unit_norm) and any(stage.kind == "hash_words" for stage in self.stages):
            raise ValueError(
                "`hash_words` makes ids of words, which are not quantities: leave out `sparse` and `unit_norm`"
            )
        if any(stage.beyond_float32 for stage in self.stages):
            raise ValueError(
                "`hash` makes numbers beyond 2^24, which float32 does not keep exactly; use `inputs` of `kind: ids`,"
                " or a smaller `vocabulary`"
            )
        if self.sparse and self.task == "multi_label":
            raise ValueError("`sparse` rows with several labels are for `train-extreme`; leave out `task`")
        if self.sparse and self.weight and self.task is None:
            raise ValueError("`train-extreme` does not support weights; set `task`, or leave out `weight`")
        if self.class_names and self.task in ("regression", "ranking"):
            raise ValueError(f"`class_names` are for classes, but {self.task} has none; leave them out")
        if (self.qid is not None) != (self.task == "ranking"):
            raise ValueError("`qid` and `task: ranking` go together: it names the column of the groups to rank within")
        if self.image and self.qid:
            raise ValueError("ranking needs `features`, and does not support an `image`")
        if self.qid and self.qid in (self.label, self.weight, *(self.features or ())):
            raise ValueError(f"`qid` is {self.qid!r}, which is the label, the weight or one of the features")
        if self.weight and self.weight in (self.label, *(self.features or ())):
            raise ValueError(f"`weight` is {self.weight!r}, which is the label or one of the features")
        if self.label in self.split.columns:
            raise ValueError(f"`split` names the label {self.label!r}: a model can be tested only on labels it knows")
        if self.split.stratify and (self.task not in (None, "classification") or (self.sparse and self.task is None)):
            without = self.task or "`train-extreme`, which `sparse` without a `task` is for,"
            raise ValueError(
                f"`split.stratify` splits the rows of each class separately, but {without} has no class for each row"
            )
        if self.label in (self.features or ()):
            raise ValueError(f"`features` names the label {self.label!r}; a model would only copy it")
        if len(set(self.features or ())) < len(self.features or ()):
            raise ValueError("`features` names a column twice")
        if len(set(self.class_names.values())) < len(self.class_names):
            raise ValueError("`class_names` gives two classes the same name")
        if self.in_place:
            self._check_in_place()
        if self.sparse and self.class_names:
            raise ValueError(
                "`class_names` are for plots, and `sparse` data has too many classes for these; leave them out"
            )
        return self

    def _check_in_place(self) -> None:
        needs_copy = {
            "image": self.image,
            "sparse": self.sparse,
            "qid": self.qid,
            "task: multi_label": self.task == "multi_label",
            "on_bad_rows: skip": self.on_bad_rows == "skip",
            "split.column": self.split.column,
            "split.time": self.split.time,
            "split.group": self.split.group,
            "split.stratify": self.split.stratify,
        }
        if named := [f"`{key}`" for key, is_set in needs_copy.items() if is_set]:
            raise ValueError(f"`in_place` makes no copy, which {' and '.join(named)} would need; leave one of them out")
        if self.source and self.source.format not in ("parquet", "delta", "table"):
            raise ValueError(f"`in_place` needs Parquet files, but `source` is {self.source.format}")
