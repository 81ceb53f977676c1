"""Definitions in a dictionary of dictd's format: a compressed file of entries, and an index of their offsets.

The format is described in the manual page dictd(8). Entries are like those of Webster's Dictionary in Debian's package
``dict-gcide``: headword, pronunciation and etymology, then indented definitions, numbered if there are several.
"""

import gzip
import hashlib
import re
import string
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import join, list_folder, local_path, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_dictionary"]

_DIGITS = {
    digit: value for value, digit in enumerate(string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/")
}
_SCHEMA = pa.schema([(name, pa.string()) for name in ("headword", "definition", "split")])
_NUMBER = re.compile(r"(?m)^   (?=\d+\. )")
_ORIGIN = re.compile(r"\[[^\]]*(?:Webster|WordNet|PJC|Century)[^\]]*\]")
_REFERENCE = re.compile(r"(\(.{1,12}\) )*(See( also)?|Same as|Cf\.) (under )?\{")
TEST_SHARE = 10
"""One in this number of the further definitions of a headword is for testing."""


def read_dictionary(source: Source, spark: "SparkSession") -> "DataFrame":
    """The task "which word does this define". Runs on the driver; a Spark task reads the dictionary.

    There is one row for each definition, without examples and references to other entries: ``headword``,
    ``definition`` and ``split``. The first definition of a headword is always in ``train``, because no model can
    predict a word that it has not seen; of the further ones, a tenth, chosen by a hash, is in ``test``. Raises
    :class:`DataError` for a folder without ``*.index`` and ``*.dict.dz``, or with files in another format.
    """
    folder = str(source.path)
    folder = str(local_path(folder) or folder)  # absolute, because tasks have another working directory
    names = [entry.name for entry in list_folder(folder)]
    found = [[join(folder, name) for name in names if name.endswith(end)] for end in (".index", ".dict.dz")]
    if [len(names) for names in found] != [1, 1]:
        raise DataError(f"`dictionary` expects a folder with one *.index and its *.dict.dz, which {folder} lacks")
    (index,), (entries,) = found

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from _read(index, entries)

    columns = ", ".join(f"{name} string" for name in _SCHEMA.names)
    rows = spark.range(1, numPartitions=1).mapInArrow(read, columns)
    return rows.repartition(default_parallelism(spark))


def _read(index: str, entries: str) -> Iterator[pa.RecordBatch]:
    try:
        text = gzip.decompress(read_file(entries))
        places = {_place(line) for line in read_file(index).decode().splitlines() if not line.startswith("00")}
    except (OSError, ValueError, KeyError):
        raise DataError(f"{index} and {entries} are not a dictionary of dictd's; fetch the files again") from None
    rows: dict[tuple[str, str], str] = {}
    seen: set[str] = set()
    for begin, size in sorted(places):
        headword, definitions = _parse(text[begin : begin + size].decode(errors="replace"))
        for definition in definitions:
            digest = hashlib.sha256(f"{headword} {definition}".encode()).digest()
            further = headword in seen
            rows.setdefault((headword, definition), "test" if further and digest[0] % TEST_SHARE == 0 else "train")
            seen.add(headword)
    columns = [[headword for headword, _ in rows], [definition for _, definition in rows], list(rows.values())]
    yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA)


def _place(line: str) -> tuple[int, int]:
    """The offset and the size of the entry of an index line, which are numbers to the base 64."""
    _, *numbers = line.split("\t")
    begin, size = (sum(_DIGITS[digit] << (6 * place) for place, digit in enumerate(reversed(n))) for n in numbers)
    return begin, size


def _parse(entry: str) -> tuple[str, list[str]]:
    """The headword and its definitions, each on one line."""
    lines = entry.splitlines()
    heading = 1
    while heading < len(lines) and _opened(lines[:heading]):
        heading += 1
    definitions = []
    for part in _NUMBER.split("\n".join(lines[heading:])):
        first = " ".join(_ORIGIN.sub("", part.split("\n\n")[0]).split())
        text = re.sub(r"^\d+\. ", "", first)
        if len(re.findall(r"\w+", text)) > 1 and not _REFERENCE.match(text):
            definitions.append(text)
    return lines[0].partition(" \\")[0].strip(), definitions


def _opened(lines: list[str]) -> bool:
    """Whether a bracket is open at the end, such as that of an etymology."""
    text = "".join(lines)
    return text.count("[") > text.count("]")
