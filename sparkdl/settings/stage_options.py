"""The stages of preprocessing, as settings name them."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.section import Positive, Section

__all__ = ["Stage"]

DatePart = Literal[
    "year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute", "second", "age"
]
_USUAL_PARTS: list[DatePart] = ["year", "month", "day", "day_of_week"]
_EPOCH = date(1970, 1, 1)


class Stage(Section):
    """One step of preprocessing, fitted on the training split only."""

    kind: Literal["standardise", "impute", "index", "hash", "date", "hash_text", "count_text", "hash_words"]
    """``index`` numbers the categories: texts, truth values, dates, or numbers that name something. ``hash`` numbers
    them by their hash, from 0 to below ``vocabulary``, where there are too many to be listed. ``date`` makes a
    number of each of the ``parts`` of a date or a time; a time is taken in UTC, and one without a zone as it stands.
    ``hash_text`` and ``count_text`` cut texts into lower-case words, count them
    (by their hash, or those of a vocabulary) and weight them by inverse document frequency. ``hash_words`` keeps the
    first words as hashes from 1 on, and zeros behind them: for ``train.model: bag_of_words``."""
    columns: Annotated[list[str], Field(min_length=1)]
    """The raw columns it applies to; each is replaced by its result."""
    strategy: Literal["mean", "median", "mode"] = "mean"
    """``impute``: what stands in for a missing value."""
    parts: Annotated[list[DatePart], Field(min_length=1, exclude_if=lambda parts: parts == _USUAL_PARTS)] = _USUAL_PARTS
    """``date``: what is made of a date. Weeks are those of ISO 8601, whose days count from 1 for Monday. ``age`` is how
    many days after ``since`` it is, with a fraction for times, and negative before it."""
    since: Annotated[date, Field(exclude_if=lambda since: since == _EPOCH)] = _EPOCH
    """``date``: the day that ``age`` counts from."""
    dimensions: Positive = 1024
    """``hash_text``: the width of the hashed vector. ``hash_words``: how many words, or pairs, of a text are kept."""
    vocabulary: Positive = 1 << 18
    """``count_text``: how many words are kept at most: those in most rows of the training split. ``hash_words``: the
    largest hash, at most 2^24, up to which float32 holds every whole number. ``hash``: how many numbers there are; of n
    categories, about n / ``vocabulary`` of each share theirs."""
    minimum_documents: Positive = 1
    """Counted text: words in fewer training rows than this count for nothing."""
    bigrams: bool = False
    """Text: whether pairs of neighbouring words are counted too; a text's beginning is its first word's neighbour."""
    sublinear: bool = False
    """Counted text: whether a word that occurs n times counts 1 + ln n instead of n (Manning, Raghavan, Schuetze, 2008,
    Introduction to Information Retrieval, section 6.4.1)."""

    @model_validator(mode="after")
    def _hashes_are_exact(self) -> Self:
        if self.kind == "hash_words" and self.vocabulary > 1 << 24:
            raise ValueError(f"vocabulary is {self.vocabulary}; hashes of words are at most 2^24 ({1 << 24})")
        return self

    @property
    def beyond_float32(self) -> bool:
        """Whether it makes whole numbers that only the input of ``kind: ids`` holds exactly."""
        return self.kind == "hash" and self.vocabulary > 1 << 24

    @model_validator(mode="after")
    def _parts_are_of_dates(self) -> Self:
        if {"parts", "since"} & self.model_fields_set and self.kind != "date":
            raise ValueError(f"`parts` and `since` are for the stage `date`, but this one is `{self.kind}`")
        if "since" in self.model_fields_set and "age" not in self.parts:
            raise ValueError("`since` is only for the part `age`; add `age` to `parts`")
        if len(set(self.parts)) < len(self.parts):
            raise ValueError("`parts` names a part twice")
        return self
