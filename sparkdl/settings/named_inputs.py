"""One of ``prepare.inputs``: what a network gets by one name."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.inputs.spec import NAME, is_name, mask_name
from sparkdl.settings.section import Positive, Section, Storage
from sparkdl.settings.stage_options import Stage

__all__ = ["Input", "InputKind", "NamedInputs", "check_blocks", "check_names"]

InputKind = Literal["vector", "image", "sparse", "ids", "tokens", "sequence"]
_RAGGED = "tokens", "sequence"
_FEWEST_TOKENS = 257


class Input(Section):
    """One input of a network that has several, or one that has a name."""

    column: str | None = None
    """The only column that it is made from."""
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    """Or the columns that it is made from, side by side in one vector."""
    kind: InputKind | None = None
    """``vector``: float32, as ``features`` make it. ``sparse``: the same, of which files store only nonzero values.
    ``image`` (if ``image_shape`` is given). ``ids``: whole numbers from 0 on, int64, for tables of embeddings; the
    stages ``index``, ``hash`` and ``hash_words`` make them. ``tokens``: ids of a text's tokens. ``sequence``: arrays
    of different lengths, whole numbers for ids or events, floats for a series. A batch of ``tokens`` and of a
    ``sequence`` is padded to its longest row, and one more argument, ``<name>_mask`` (of ``input_ids``:
    ``attention_mask``), is true for elements and false for padding."""
    image_shape: Annotated[list[Positive], Field(min_length=2, max_length=3)] | None = None
    """Of an image, as ``prepare.image_shape``."""
    stages: list[Stage] = []
    """Preprocessing of a ``vector``, of ``sparse`` ones and of ``ids``, as ``prepare.stages``."""
    tokenizer: Storage | None = None
    """``tokens``: a ``tokenizer.json`` of the package ``tokenizers``, which is kept in the dataset and in models."""
    vocabulary: Positive | None = None
    """``tokens`` without a file: a byte-level BPE (Sennrich et al., 2016, arXiv 1508.07909) of so many tokens is
    learned from the training rows. ``ids`` and a ``sequence`` of whole numbers: all are below it; by default they are
    the largest one in the dataset or below."""
    max_length: Positive | None = None
    """``tokens`` and ``sequence``: the longest that a row may be."""
    on_long_rows: Literal["error", "cut"] = "error"
    """What happens to longer rows: they are bad rows, or are truncated to ``max_length``."""
    block_length: Annotated[int | None, Field(ge=2, exclude_if=lambda length: length is None)] = None
    """``tokens`` of ``task: language_modelling``: texts of any length are concatenated, with a token between them, and
    cut into blocks of this many tokens, which are the rows of the dataset."""
    end_of_text: Annotated[str | None, Field(exclude_if=lambda token: token is None)] = None
    """The token between texts. By default the first that the tokeniser has of ``<|endoftext|>``, ``<|end_of_text|>``,
    ``</s>``, ``<eos>`` and ``[SEP]``; a tokeniser that ``prepare`` trains has ``<|endoftext|>``."""

    @property
    def raw(self) -> list[str]:
        """The columns that it is made from."""
        return [self.column] if self.column else list(self.columns or ())

    @property
    def made_as(self) -> InputKind:
        """Its kind, where the settings leave that to others of them."""
        if self.kind:
            return self.kind
        return "image" if self.image_shape else "tokens" if self.tokenizer else "vector"

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        kind = self.made_as
        if bool(self.column) == bool(self.columns):
            raise ValueError("give either `column` or `columns`")
        if len(self.raw) > 1 and kind in ("image", *_RAGGED):
            raise ValueError(f"`kind: {kind}` is of one `column`; several are several inputs")
        if len(set(self.raw)) < len(self.raw):
            raise ValueError("`columns` names a column twice")
        fitting = {
            "image_shape": ("image",),
            "stages": ("vector", "sparse", "ids"),
            "tokenizer": ("tokens",),
            "vocabulary": ("ids", *_RAGGED),
            "max_length": _RAGGED,
            "block_length": ("tokens",),
            "end_of_text": ("tokens",),
        }
        for key, kinds in fitting.items():
            if getattr(self, key) and kind not in kinds:
                raise ValueError(f"`{key}` is for {' and '.join(f'`{each}`' for each in kinds)}, but this is `{kind}`")
        if kind == "tokens" and bool(self.tokenizer) == bool(self.vocabulary):
            raise ValueError(
                "`tokens` need either `tokenizer`, the path of a tokenizer.json, or `vocabulary`: how many to learn"
            )
        if kind == "tokens" and self.vocabulary and self.vocabulary < _FEWEST_TOKENS:
            raise ValueError(
                f"`vocabulary` is {self.vocabulary}; a byte-level BPE needs {_FEWEST_TOKENS}: 256 bytes and padding"
            )
        if kind != "ids" and any(stage.beyond_float32 for stage in self.stages):
            raise ValueError("`hash` makes numbers beyond 2^24, which only `kind: ids` keeps exactly")
        if self.block_length and (self.max_length or self.on_long_rows == "cut"):
            raise ValueError(
                "with `block_length`, texts may have any length; leave out `max_length` and `on_long_rows`"
            )
        if self.end_of_text and not self.block_length:
            raise ValueError("`end_of_text` is for texts that are cut into blocks; set `block_length`, too")
        if self.on_long_rows == "cut" and self.max_length is None:
            raise ValueError("`on_long_rows: cut` cuts at `max_length`; set that, too")
        return self


NamedInputs = dict[Annotated[str, Field(pattern=NAME)], Input]
"""By the names of a network's arguments."""


def check_names(inputs: NamedInputs) -> None:
    """Raise ``ValueError`` for names that no network, or no file beside labels and weights, can have."""
    taken = {"label": "the labels", "weight": "the rows' weights"}
    for name, each in inputs.items():
        if each.made_as in _RAGGED:
            taken[mask_name(name)] = f"the mask of {name!r}"
    for name in inputs:
        if not is_name(name):
            raise ValueError(
                f"`inputs` has {name!r}, which cannot be the name of an argument in Python; choose another name"
            )
        if name in taken:
            raise ValueError(f"`inputs` has {name!r}, which is already the name of {taken[name]}; choose another name")


def check_blocks(inputs: NamedInputs, *, of_language: bool) -> None:
    """Raise ``ValueError`` unless there is one input, of tokens in blocks, for language modelling, and none elsewhere.

    Blocks hold several texts, or parts of one, so that nothing else can be beside them.
    """
    in_blocks = [name for name, each in inputs.items() if each.block_length]
    if of_language and (len(inputs) != 1 or len(in_blocks) != 1):
        raise ValueError(
            "`task: language_modelling` needs exactly one of `inputs`, `tokens` with a `block_length`, such as"
            " {input_ids: {column: text, kind: tokens, vocabulary: 8000, block_length: 512}}"
        )
    if in_blocks and not of_language:
        raise ValueError(f"`inputs.{in_blocks[0]}.block_length` is for `task: language_modelling`; set both or neither")
