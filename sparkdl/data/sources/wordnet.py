"""WordNet's synsets as rows: a gloss, and the synset's hypernym (file format: the manual page wndb(5WN))."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import exists, join, local_path, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_wordnet"]

_FILES = "data.noun", "data.verb"
"""The parts of speech that have hypernyms."""
_HYPERNYMS = "@", "@i"
"""The pointers to a hypernym: of a kind (a dog is a canine) and of an instance (the Thames is a river)."""
_LICENCE = "  "
"""The prefix of the lines before the first synset, which are the licence."""
_SCHEMA = pa.schema([(name, pa.string()) for name in ("synset", "gloss", "hypernym", "pos", "category")])


_CATEGORY_NAMES = {
    "noun": "Tops act animal artifact attribute body cognition communication event feeling food group location motive"
    " object person phenomenon plant possession process quantity relation shape state substance time",
    "verb": "body change cognition communication competition consumption contact creation emotion motion perception"
    " possession social stative weather",
}
_CATEGORIES = [f"{pos}.{name}" for pos, names in _CATEGORY_NAMES.items() for name in names.split()]
"""The lexicographers' files of nouns and verbs, in the order of their numbers (the manual page lexnames(5WN))."""
_FIRST_CATEGORY = 3
"""The number of the first of these files; the files before it are for adjectives and adverbs."""


class _Synset(NamedTuple):
    pos: str
    category: str
    word: str
    hypernym: str | None
    gloss: str


def read_wordnet(source: Source, spark: "SparkSession") -> "DataFrame":
    """The task "which synset is the direct hypernym of this one, according to its gloss". Runs on the driver.

    There is one row for every noun and verb synset that has a hypernym; a Spark task reads each of the files
    ``data.noun`` and ``data.verb``. ``gloss`` is the whole gloss, including examples. ``hypernym`` is the synset of the
    first hypernym pointer (``@`` or ``@i``) in the file; further hypernyms are left out. Synsets are named by their
    first word, part of speech and offset in the file, such as ``dog.n.02084071``. ``pos`` is ``n`` or ``v``, and
    ``category`` one of the 41 lexicographers' files, such as ``noun.animal``. The synset's own words are not in the
    rows. Raises :class:`DataError` for files that are missing or in another format.
    """
    folder = str(source.path)
    # Absolute, because tasks have another working directory.
    paths = [join(str(local_path(folder) or folder), name) for name in _FILES]
    for path in paths:
        if not exists(path):
            raise DataError(f"there is no {path}; `wordnet` expects a folder with {' and '.join(_FILES)}")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield _read_file(paths[index])

    rows = spark.range(len(paths), numPartitions=len(paths)).mapInArrow(
        read, ", ".join(f"{name} string" for name in _SCHEMA.names)
    )
    return rows.repartition(default_parallelism(spark))  # six of seven synsets are nouns


def _read_file(path: str) -> pa.RecordBatch:
    synsets = {}
    for number, line in enumerate(read_file(path).decode("utf-8").splitlines(), start=1):
        if not line.startswith(_LICENCE):
            try:
                synsets[line[:8]] = _parse(line)
            except (ValueError, IndexError):
                raise DataError(f"{path}:{number} is not a synset of WordNet; fetch the file again") from None
    below = {offset: synset for offset, synset in synsets.items() if synset.hypernym is not None}
    unknown = {synset.hypernym for synset in below.values()} - synsets.keys()
    if unknown:
        raise DataError(
            f"{path} has hypernyms that it does not define: {sorted(map(str, unknown))[:3]}; fetch it again"
        )

    def name(offset: str) -> str:
        return f"{synsets[offset].word}.{synsets[offset].pos}.{offset}"

    columns = [
        [name(offset) for offset in below],
        [synset.gloss for synset in below.values()],
        [name(str(synset.hypernym)) for synset in below.values()],
        [synset.pos for synset in below.values()],
        [synset.category for synset in below.values()],
    ]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA)


def _parse(line: str) -> _Synset:
    # offset lex_filenum ss_type w_cnt word lex_id [word lex_id...] p_cnt [symbol offset pos source/target...] | gloss
    fields, bar, gloss = line.partition(" | ")
    parts = fields.split()
    num_words = int(parts[3], 16)
    if not bar or len(parts[0]) != 8 or not parts[0].isdigit():
        raise ValueError(line)
    pointers = 4 + 2 * num_words
    end = pointers + 1 + 4 * int(parts[pointers])
    hypernyms = [parts[i + 1] for i in range(pointers + 1, end, 4) if parts[i] in _HYPERNYMS]
    category = _CATEGORIES[int(parts[1]) - _FIRST_CATEGORY]
    return _Synset(parts[2], category, parts[4], hypernyms[0] if hypernyms else None, gloss.strip())
