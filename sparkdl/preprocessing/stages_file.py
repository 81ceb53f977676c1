"""Writes fitted stages as JSON, and reads them; reading executes nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sparkdl.errors import ModelError
from sparkdl.preprocessing.assembling import Assemble, ExpectWidth
from sparkdl.preprocessing.calendar_parts import CalendarParts
from sparkdl.preprocessing.categories import HashCategories, Index
from sparkdl.preprocessing.copying import Copy
from sparkdl.preprocessing.lists import ShortenedLists
from sparkdl.preprocessing.numbers import Impute
from sparkdl.preprocessing.scaling import Normalize, Standardise
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.tokens import Tokenise
from sparkdl.preprocessing.word_counts import CountHashes, CountWords, LogarithmOfCounts, WeighWords
from sparkdl.preprocessing.word_hashes import HashWords
from sparkdl.preprocessing.words import CutAtPattern, Neighbours

__all__ = ["STAGES", "STAGES_FILE", "as_json", "read_stages"]

STAGES_FILE = "stages.json"
STAGES: tuple[type[FittedStage], ...] = (
    Assemble,
    CalendarParts,
    Copy,
    CountHashes,
    CountWords,
    CutAtPattern,
    ExpectWidth,
    HashCategories,
    HashWords,
    Impute,
    Index,
    LogarithmOfCounts,
    Neighbours,
    Normalize,
    ShortenedLists,
    Standardise,
    Tokenise,
    WeighWords,
)
"""The stages that a file may have; it has the names of their classes."""
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in STAGES}


def as_json(stages: Sequence[FittedStage]) -> bytes:
    """The stages as JSON, each with the name of its class and its values."""
    found = [{"stage": type(stage).__name__, **_ADAPTERS[type(stage).__name__].dump_python(stage)} for stage in stages]
    return json.dumps({"stages": found}, ensure_ascii=False, indent=1).encode()


def read_stages(path: Path) -> list[FittedStage]:
    """The stages in a file. Raises :class:`ModelError` if the file is damaged, or a newer version wrote it."""
    try:
        found = json.loads(path.read_bytes())["stages"]
        return [_stage(dict(values)) for values in found]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"the preprocessing is damaged: {path} is not a valid list of stages: {reason}") from None


def _stage(values: dict[str, Any]) -> FittedStage:
    name = values.pop("stage")
    if name not in _ADAPTERS:
        raise ModelError(f"the preprocessing has a stage {name!r}, which a newer sparkdl wrote; update sparkdl")
    stage: FittedStage = _ADAPTERS[name].validate_python(values)
    return stage
