"""Fitted stages are plain values in a file, and the same stages when they are read."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.errors import ModelError
from sparkdl.preprocessing import STAGES_FILE, FittedPipeline, read_pipeline
from sparkdl.preprocessing.assembling import Assemble, ExpectWidth
from sparkdl.preprocessing.calendar_parts import CalendarParts
from sparkdl.preprocessing.categories import HashCategories, Index
from sparkdl.preprocessing.copying import Copy
from sparkdl.preprocessing.filling import FillPlaces
from sparkdl.preprocessing.lists import ShortenedLists
from sparkdl.preprocessing.numbers import Impute
from sparkdl.preprocessing.scaling import Normalize, Standardise
from sparkdl.preprocessing.stage import FittedStage, UnfittedStage
from sparkdl.preprocessing.stages_file import STAGES
from sparkdl.preprocessing.tokens import Tokenise
from sparkdl.preprocessing.word_counts import CountHashes, CountWords, LogarithmOfCounts, WeighWords
from sparkdl.preprocessing.word_hashes import HashWords
from sparkdl.preprocessing.words import CutAtPattern, CutAtSpaces, Neighbours

ODD = np.array([0.1, -0.0, 1e-320, 1 / 3, np.nan, np.inf])
EACH: list[FittedStage] = [
    Assemble(("a", "ß`.c"), "v", "float32"),
    CalendarParts("d", ("y",), ("year",), 3),
    Copy(("a",), "b", cast="double"),
    CountHashes("w", "c", 64, binary=True),
    CountWords("w", "c", pa.array(["red", "", "日本"]), binary=False),
    CutAtPattern.of_words("t", "w"),
    ExpectWidth("v", 4),
    HashCategories(("a", "b"), ("c", "d"), 10_000_000),
    HashWords("w", "h", 50_000, 6),
    Impute(("a", "b"), ("c", "d"), (0.1, -2.0)),
    Index(("a",), ("b",), (("x", "Ünï"),)),
    LogarithmOfCounts("c", "l"),
    Neighbours("w", "n", 2),
    Normalize("v", "n"),
    ShortenedLists("a", "l", "int32", 7),
    Standardise("v", "s", ODD, None, 6),
    Tokenise("t", "i", '{"version": "1.0"}', None),
    WeighWords("c", "w", ODD),
]


def written(folder: Path, stages: list[FittedStage]) -> Path:
    (folder / STAGES_FILE).write_bytes(FittedPipeline(tuple(stages)).as_json())
    return folder


def test_every_kind_of_stage_is_read_as_it_was_written_to_the_last_bit(tmp_path: Path) -> None:
    assert [type(stage) for stage in EACH] == list(STAGES)
    for one, other in zip(EACH, read_pipeline(written(tmp_path, EACH)).stages, strict=True):
        assert type(one) is type(other)
        for field in fields(one):  # type: ignore[arg-type]
            was, found = getattr(one, field.name), getattr(other, field.name)
            if isinstance(was, np.ndarray):
                assert was.tobytes() == found.tobytes()
            else:
                assert was == found


def test_every_stage_that_is_fitted_may_be_in_a_file() -> None:
    others = {UnfittedStage, CutAtSpaces, FillPlaces}  # a base, what Spark alone has saved, what the card says
    assert set(kinds_of(FittedStage)) - {*STAGES} == others


def kinds_of(base: type[FittedStage]) -> list[type[FittedStage]]:
    """All classes of this project that are derived from it."""
    direct = [each for each in base.__subclasses__() if each.__module__.startswith("sparkdl.")]
    return [kind for each in direct for kind in (each, *kinds_of(each))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stage": "Attend"}, "has a stage 'Attend', which a newer sparkdl wrote; update sparkdl"),
        ({"kind": "float8"}, "is damaged: .*stages.json"),
        ({"more": 1}, "is damaged: .*stages.json"),
        ({"inputs": 3}, "is damaged: .*stages.json"),
    ],
)
def test_a_stage_that_is_not_known_and_values_that_are_none_are_named(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    file = written(tmp_path, EACH[:1]) / STAGES_FILE
    content = json.loads(file.read_text())
    content["stages"][0] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=says):
        read_pipeline(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"stages": 3}', '{"stages": [{}]}', '{"stages": ["x"]}'])
def test_a_file_that_is_damaged_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / STAGES_FILE).write_text(content)
    with pytest.raises(ModelError, match=r"is damaged: .*stages\.json is not a valid list of stages"):
        read_pipeline(tmp_path)
