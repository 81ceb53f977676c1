"""Prepare sparse data, with a real Spark: texts, vectors and files, one or several labels, and what can be wrong."""

import gzip
import json
import lzma
import math
import re
import string
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.feature import HashingTF, RegexTokenizer
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, open_source, prepare
from sparkdl.data.bad_rows import PROBLEM
from sparkdl.data.card import UNSEEN
from sparkdl.data.reading.loader import Loader
from sparkdl.data.reading.sparse import SparseLoader
from sparkdl.data.sparse_rows import decode_sparse
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.preprocessing import as_structs, read_pipeline
from sparkdl.preprocessing.word_counts import CountWords
from sparkdl.settings import Prepare, Source, Split, Stage

from ..applied_stages import made_again

NO_SPLIT = Split(fractions={})
BY_PART = Split(column="part", fractions={})
TEXTS = [
    ("train", "The cat sat on the mat, the cat!", ["animal", "home"]),
    ("train", "A dog sat", ["animal"]),
    ("train", "Ärger im Haus", ["home", "mood"]),
    ("train", "dog dog DOG mat", ["animal", "home"]),
    ("test", "the zebra and the dog", ["animal", "wild", "stripes"]),
    ("test", "nothing known", ["mood"]),
]

Row = tuple[frozenset[tuple[int, float]], tuple[int, ...]]


@pytest.fixture(scope="module")
def texts(spark: SparkSession) -> DataFrame:
    """Six texts with one to three labels each; two of them for testing."""
    return spark.createDataFrame(TEXTS, "part string, text string, labels array<string>").cache()


@pytest.fixture(scope="module")
def text_settings(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    return Prepare(
        output=str(tmp_path_factory.mktemp("prepared") / "texts"),
        label="labels",
        stages=[Stage(kind="count_text", columns=["text"], sublinear=True)],
        features=["text"],
        split=BY_PART,
        sparse=True,
    )


@pytest.fixture(scope="module")
def text_dataset(texts: DataFrame, text_settings: Prepare) -> Dataset:
    return prepare(texts, text_settings)


def contents(dataset: Dataset, split: str) -> Counter[Row]:
    """The rows of a split as the loader gives them."""
    found: Counter[Row] = Counter()
    for batch in SparseLoader(dataset, split, batch_size=3).epoch(0):
        for i in range(len(batch.offsets) - 1):
            features = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
            labels = slice(int(batch.label_offsets[i]), int(batch.label_offsets[i + 1]))
            pairs = zip(batch.indices[features].tolist(), batch.values[features].tolist(), strict=True)
            found[frozenset(pairs), tuple(batch.labels[labels].tolist())] += 1
    return found


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def weights_by_hand(text: str, training: list[str]) -> dict[str, float]:
    """(1 + ln n) ln((N + 1) / (m + 1)), divided by its norm."""
    known = {word for other in training for word in words_of(other)}
    weights = {}
    for word, count in Counter(words_of(text)).items():
        if word in known:
            having = sum(word in words_of(other) for other in training)
            weights[word] = (1 + math.log(count)) * math.log((len(training) + 1) / (having + 1))
    norm = math.sqrt(sum(weight**2 for weight in weights.values()))
    return {word: weight / norm for word, weight in weights.items()}


def test_texts_become_sublinear_tf_idf_of_unit_norm(text_dataset: Dataset, texts: DataFrame) -> None:
    training = [text for part, text, _ in TEXTS if part == "train"]
    assert text_dataset.preprocessing_path
    stages = read_pipeline(Path(text_dataset.preprocessing_path)).stages
    vocabulary = next(stage.vocabulary.to_pylist() for stage in stages if isinstance(stage, CountWords))
    assert set(vocabulary) == {word for text in training for word in words_of(text)}
    assert "ärger" in vocabulary
    assert text_dataset.input.model_dump(include={"kind", "shape"}) == {"kind": "sparse", "shape": (len(vocabulary),)}
    for split in text_dataset.splits:
        found = {
            tuple(sorted((vocabulary[index], round(value, 5)) for index, value in features))
            for features, _ in contents(text_dataset, split)
        }
        expected = {
            tuple(sorted((word, round(weight, 5)) for word, weight in weights_by_hand(text, training).items()))
            for part, text, _ in TEXTS
            if part == split
        }
        assert found == expected


def test_classes_are_those_of_training_and_all_others_are_unseen(text_dataset: Dataset) -> None:
    assert text_dataset.label_names == ("animal", "home", "mood")
    assert text_dataset.label_counts.tolist() == [3, 3, 1]
    assert text_dataset.num_classes == 3
    assert {labels for _, labels in contents(text_dataset, "train")} == {(0, 1), (0,), (1, 2)}
    assert {labels for _, labels in contents(text_dataset, "test")} == {(0, UNSEEN, UNSEEN), (2,)}
    card = json.loads(Path(text_dataset.path, "card.json").read_text())
    assert card["label_names"] == []
    assert card["splits"]["test"]["sparse"] == {"values": 2, "labels": 4, "unseen": 2, "empty": 1}


def test_spark_reads_the_same_rows(spark: SparkSession, text_dataset: Dataset) -> None:
    rows = spark.read.parquet(f"{text_dataset.path}/test")
    assert dict(rows.dtypes) == dict.fromkeys(["indices", "values", "labels"], "binary")
    seen = Counter(
        (
            frozenset(zip(np.frombuffer(row.indices, "<i4"), np.frombuffer(row["values"], "<f4"), strict=True)),
            tuple(np.frombuffer(row.labels, "<i8")),
        )
        for row in rows.collect()
    )
    assert seen == contents(text_dataset, "test")


def test_saved_preprocessing_makes_the_same_rows_again(text_dataset: Dataset, texts: DataFrame) -> None:
    again = as_structs(made_again(text_dataset, texts.where("part = 'train'")))
    indices, values, offsets = decode_sparse(again, text_dataset.input)
    made = {
        frozenset(zip(indices[begin:end].tolist(), values[begin:end].tolist(), strict=True))
        for begin, end in pairwise(offsets)
    }
    assert made == {features for features, _ in contents(text_dataset, "train")}


def test_preparing_again_is_recognised_and_skipped(
    texts: DataFrame, text_settings: Prepare, text_dataset: Dataset
) -> None:
    before = Path(text_dataset.path, "card.json").stat().st_mtime_ns
    assert prepare(texts.orderBy("text"), text_settings) == text_dataset
    assert Path(text_dataset.path, "card.json").stat().st_mtime_ns == before


def test_an_altered_file_of_labels_is_found(texts: DataFrame, text_settings: Prepare, tmp_path: Path) -> None:
    dataset = prepare(texts, text_settings.model_copy(update={"output": str(tmp_path / "d")}))
    dataset.verify()
    labels = tmp_path / "d" / "labels.parquet"
    content = bytearray(labels.read_bytes())
    content[20] ^= 1
    labels.write_bytes(content)
    with pytest.raises(DatasetError, match=r"labels\.parquet was altered"):
        dataset.verify()
    with pytest.raises(DatasetError, match=r"labels\.parquet was altered"):
        _ = dataset.label_names
    labels.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=r"labels\.parquet has .* bytes instead of"):
        Dataset.open(dataset.path)
    labels.unlink()
    with pytest.raises(DatasetError, match=r"labels\.parquet is missing"):
        Dataset.open(dataset.path)


def test_a_loader_of_whole_rows_says_which_one_to_use(text_dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match="read it with SparseLoader"):
        Loader(text_dataset, "train", batch_size=2)


def test_words_can_be_hashed_and_paired(texts: DataFrame, tmp_path: Path) -> None:
    stage = Stage(kind="hash_text", columns=["text"], dimensions=1 << 16, bigrams=True)
    settings = Prepare(
        output=str(tmp_path / "d"), label="labels", features=["text"], stages=[stage], split=BY_PART, sparse=True
    )
    dataset = prepare(texts, settings)
    assert dataset.input.shape == (1 << 16,)
    sizes = sorted(len(features) for features, _ in contents(dataset, "train"))
    assert sizes == sorted(
        len({*words_of(text), *pairwise(["^", *words_of(text)])}) for part, text, _ in TEXTS if part == "train"
    )


def test_rare_words_count_for_nothing(texts: DataFrame, tmp_path: Path) -> None:
    stage = Stage(kind="count_text", columns=["text"], minimum_documents=2)
    settings = Prepare(
        output=str(tmp_path / "d"), label="labels", features=["text"], stages=[stage], split=BY_PART, sparse=True
    )
    dataset = prepare(texts, settings)
    assert dataset.input.shape == (3,)  # sat, mat, dog
    assert dataset.card.splits["train"].sparse
    assert dataset.card.splits["train"].sparse.empty == 1


def test_words_are_numbered_the_same_however_rows_are_partitioned(
    texts: DataFrame, text_settings: Prepare, text_dataset: Dataset, tmp_path: Path
) -> None:
    rows = texts.repartition(3).orderBy(sf.desc("text"))
    again = prepare(rows, text_settings.model_copy(update={"output": str(tmp_path / "d")}))
    assert again.digest == text_dataset.digest


def test_a_vocabulary_that_would_be_empty_is_refused(texts: DataFrame, text_settings: Prepare, tmp_path: Path) -> None:
    stage = Stage(kind="count_text", columns=["text"], minimum_documents=5)
    with pytest.raises(DataError, match="no word is in 5 training rows; lower `minimum_documents`"):
        prepare(texts, text_settings.model_copy(update={"output": str(tmp_path / "d"), "stages": [stage]}))


def test_vectors_of_any_form_with_single_labels_in_equal_groups(spark: SparkSession, tmp_path: Path) -> None:
    vectors = [Vectors.sparse(50, [i % 50], [2.0]) if i % 2 else Vectors.dense([1.0] * 50) for i in range(90)]
    rows = spark.createDataFrame([(v, float(i % 7 + 5)) for i, v in enumerate(vectors)], ["x", "label"])
    settings = Prepare(
        output=str(tmp_path / "d"), split=NO_SPLIT, sparse=True, unit_norm=False, rows_per_group=20, seed=3
    )
    dataset = prepare(rows, settings)
    assert dataset.label_names == tuple(map(str, range(5, 12)))
    assert [group.rows for group in dataset.row_groups("train")] == [23, 23, 22, 22]
    expected = Counter(
        (frozenset(zip(v.toArray().nonzero()[0].tolist(), v.toArray()[v.toArray() != 0], strict=True)), (i % 7,))
        for i, v in enumerate(vectors)
    )
    assert contents(dataset, "train") == expected


def test_a_pipeline_of_the_user_may_end_in_sparse_vectors(texts: DataFrame, tmp_path: Path) -> None:
    words = RegexTokenizer(inputCol="text", outputCol="words", pattern=r"\W+")
    pipeline = Pipeline(stages=[words, HashingTF(inputCol="words", outputCol="features", numFeatures=100)])
    settings = Prepare(output=str(tmp_path / "d"), label="labels", features=["text"], split=BY_PART, sparse=True)
    dataset = prepare(texts, settings, pipeline=pipeline)
    assert dataset.input.shape == (100,)
    (cat,) = [features for features, labels in contents(dataset, "train") if len(features) == 5]
    assert sorted(value for _, value in cat) == [1, 1, 1, 2, 3]
    with pytest.raises(ConfigError, match="or a pipeline, not both"):
        prepare(
            texts,
            settings.model_copy(update={"unit_norm": True, "output": str(tmp_path / "e")}),
            pipeline=pipeline,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": "if(part = 'test', null, labels)"}, "label column 'labels' is null in 2 rows"),
        ({"labels": "if(part = 'test', array(), labels)"}, "'labels' has 2 rows with an empty set of labels"),
        ({"labels": "array('a', null)"}, "'labels' has 6 rows with a null among their labels"),
        ({"labels": "array(1.5, 2.0)"}, "'labels' has 6 rows that are not whole numbers"),
        ({"text": "if(part = 'test', ' -- ', text)"}, "2 rows have no word in 'text'"),
        ({"text": "if(part = 'test', null, text)"}, "column 'text' has 2 rows that are null"),
        ({"labels": "map('a', 'b')"}, "which fits no task: classification needs whole numbers, strings"),
    ],
)
def test_rows_that_cannot_be_learned_from(
    texts: DataFrame, text_settings: Prepare, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    rows = texts
    for column, expression in change.items():
        rows = rows.withColumn(column, sf.expr(expression))
    with pytest.raises(DataError, match=message):
        prepare(rows, text_settings.model_copy(update={"output": str(tmp_path / "d")}))
    assert list(tmp_path.iterdir()) == []


def test_bad_rows_are_skipped_and_counted_where_the_settings_say_so(
    texts: DataFrame, text_settings: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture, spark: SparkSession
) -> None:
    bad = spark.createDataFrame(
        [("train", "...", ["x"]), ("test", None, ["x"]), ("train", "a text", []), ("train", "a text", None)],
        texts.schema,
    )
    settings = text_settings.model_copy(update={"output": str(tmp_path / "d"), "on_bad_rows": "skip"})
    with caplog.at_level("WARNING", logger="sparkdl"):
        dataset = prepare(texts.union(bad), settings)
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 4, "test": 2}
    assert "skipped: 1 rows have no word in 'text'" in caplog.text
    assert "1 rows with an empty set of labels" in caplog.text
    assert "'labels' is null in 1 rows" in caplog.text
    assert "column 'text' has 1 rows that are null" in caplog.text


TRAIN = "3 10 5\n0,3 1:0.5 7:2\n4 0:1 9:1e-1\n3 2:3\n"
TEST = "2 10 5\n1,3 1:1\n0 9:4 5:3\n"


def xc_settings(folder: Path, files: dict[str, str], **settings: object) -> Prepare:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    path: object = {name: str(folder / f"{name}.txt") for name in files}
    values = {"output": str(folder / "d"), "sparse": True, "unit_norm": False, "num_ranks": 1}
    return Prepare.model_validate({"source": Source(format="xc", path=path), **values, **settings})  # type: ignore[arg-type]


def test_files_of_the_repository_keep_their_splits(spark: SparkSession, tmp_path: Path) -> None:
    dataset = prepare(None, xc_settings(tmp_path, {"train": TRAIN, "test": TEST}), spark=spark)
    assert dataset.label_names == ("0", "3", "4")
    assert dataset.input.shape == (10,)
    tenth = float(np.float32(0.1))
    assert contents(dataset, "train") == Counter(
        [
            (frozenset({(1, 0.5), (7, 2.0)}), (0, 1)),
            (frozenset({(0, 1.0), (9, tenth)}), (2,)),
            (frozenset({(2, 3.0)}), (1,)),
        ]
    )
    assert contents(dataset, "test") == Counter(
        [(frozenset({(1, 1.0)}), (UNSEEN, 1)), (frozenset({(5, 3.0), (9, 4.0)}), (0,))]
    )


def test_a_folder_of_files_is_split_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "bibtex_trn.txt").write_text(TRAIN)
    (tmp_path / "raw" / "bibtex_tst.txt").write_text(TEST)
    rows = open_source(Source(format="xc", path=str(tmp_path / "raw")), spark)
    assert Counter(row.split for row in rows.collect()) == {"train": 3, "test": 2}
    single = open_source(Source(format="xc", path=str(tmp_path / "raw" / "bibtex_trn.txt")), spark)
    assert single.columns == ["features", "label", PROBLEM]
    (tmp_path / "raw" / "more.txt").write_text(TEST)
    with pytest.raises(DataError, match=r"more\.txt contains no split"):
        open_source(Source(format="xc", path=str(tmp_path / "raw")), spark)


def test_bad_lines_are_counted_and_named_with_file_and_line(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["0 1:1", "hello", "1 10:1", "5 1:1", " 2:2", "3", "2,3 4:1 5:2"]
    files = {"train": f"{len(lines)} 10 5\n" + "\n".join(lines) + "\n", "test": "3 10 5\n0 1:1\n0 2:1"}
    with pytest.raises(DataError) as raised:
        prepare(None, xc_settings(tmp_path, files), spark=spark)
    message = str(raised.value)
    assert message.startswith("6 lines cannot be used (")
    for kind in ("not in the format", "a label beyond the header", "a feature beyond the header", "no labels"):
        assert f"{kind}: 1" in message
    path = tmp_path / "test.txt"
    assert f"{path}:3: the header promises another number of rows (3, not 2)" in message
    assert f"{tmp_path / 'train.txt'}:3: not in the format ('hello')" in message
    assert f"{tmp_path / 'train.txt'}:5: a label beyond the header (5 of 5)" in message
    assert "set `on_bad_rows: skip`" in message
    with caplog.at_level("WARNING", logger="sparkdl"):
        dataset = prepare(None, xc_settings(tmp_path, files, on_bad_rows="skip"), spark=spark)
    assert "skipped: 6 lines cannot be used" in caplog.text
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 2, "test": 2}


def test_files_may_be_gzipped_begin_with_a_mark_and_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "raw [1]"
    folder.mkdir()
    lines = "".join(f"{i % 3},{i % 3} 1:{i + 1}\r\n" for i in range(40))
    text = b"\xef\xbb\xbf" + f"41 10 5\r\n{lines}?\r\n".encode()
    (folder / "a_train.txt.gz").write_bytes(gzip.compress(text))
    (folder / "a_test.txt").write_bytes(text)
    rows = open_source(Source(format="xc", path=str(folder)), spark).collect()
    assert Counter((row.split, tuple(row.label)) for row in rows if row.label) == Counter(
        (split, (i % 3,)) for split in ("train", "test") for i in range(40)
    )
    bad = {row[PROBLEM].file: row[PROBLEM].line for row in rows if row[PROBLEM]}
    assert bad == {str(folder / "a_train.txt.gz"): 42, str(folder / "a_test.txt"): 42}
    (folder / "a_train.txt.gz").write_bytes(gzip.compress(text)[:-12])
    with pytest.raises(DataError, match=r"a_train\.txt\.gz cannot be unpacked: .*; fetch it again"):
        prepare(Source(format="xc", path=str(folder)), xc_settings(tmp_path, {"train": TRAIN}), spark=spark)


def test_lines_are_numbered_across_the_parts_of_a_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    lines = [f"{i % 9} {' '.join(f'{j}:{i}' for j in range(random.integers(1, 9)))}" for i in range(500)]
    lines[123] = lines[321] = "?"
    (tmp_path / "all.txt").write_text("500 10 9\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr("sparkdl.data.sources.xc._CHUNK_BYTES", 4321)
    rows = open_source(Source(format="xc", path=str(tmp_path / "all.txt")), spark).collect()
    assert sorted(row[PROBLEM].line for row in rows if row[PROBLEM]) == [125, 323]
    expected = Counter(int(line.rpartition(":")[2]) for line in lines if line != "?")
    assert Counter(int(row.features.values[0]) for row in rows if row.features) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "no header\n0 1:1\n"}, r"train\.txt:1 must be `rows features labels`"),
        ({"train": "0 10 5\n"}, "there is nothing to learn"),
        ({"train": "1 5000000000 5\n1 3000000000:1\n"}, "promises 5000000000 features .* at most 2,147,483,647"),
        ({"train": TRAIN, "test": "1 11 5\n0 1:1\n"}, "first lines do not agree"),
    ],
)
def test_headers_that_are_wrong(spark: SparkSession, tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(None, xc_settings(tmp_path, files), spark=spark)


SYNSETS = {
    "data.noun": [
        "  1 This software and database is being provided to you",
        "00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is perceived  ",
        '00001930 03 n 02 thing 0 object 1 002 @ 00001740 n 0000 ~ 00002137 n 0000 | an entity; "full of things"  ',
        "00002137 17 n 01 Thames 0 003 #p 00001740 n 0000 @i 00001930 n 0000 @ 00001740 n 0000 | a river  ",
    ],
    "data.verb": [
        "00000100 29 v 01 breathe 0 000 02 + 02 00 + 08 00 | draw air  ",
        "00000200 29 v 0a a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 001 @ 00000100 v 0000 01 + 02 00 | breathe hard  ",
    ],
}


def test_wordnet_gives_the_first_synset_above_each_gloss(spark: SparkSession, tmp_path: Path) -> None:
    for name, lines in SYNSETS.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    rows = open_source(Source(format="wordnet", path=str(tmp_path)), spark).orderBy("synset").collect()
    assert [tuple(row) for row in rows] == [
        ("Thames.n.00002137", "a river", "thing.n.00001930", "n", "noun.object"),
        ("a.v.00000200", "breathe hard", "breathe.v.00000100", "v", "verb.body"),
        ("thing.n.00001930", 'an entity; "full of things"', "entity.n.00001740", "n", "noun.Tops"),
    ]
    (tmp_path / "data.verb").write_text("not a synset\n")
    with pytest.raises(DataError, match=r"data\.verb:1 is not a synset"):
        prepare(
            None,
            Prepare(
                source=Source(format="wordnet", path=str(tmp_path)),
                output=str(tmp_path / "d"),
                label="hypernym",
                features=["gloss"],
                stages=[Stage(kind="count_text", columns=["gloss"])],
            ),
            spark=spark,
        )
    (tmp_path / "data.noun").unlink()
    with pytest.raises(DataError, match=r"there is no .*data\.noun"):
        open_source(Source(format="wordnet", path=str(tmp_path)), spark)


ARCHIVE = """Package: hello
Section: devel
Maintainer: Somebody <somebody@example.org>
Depends: libc6 (>= 2.34), libssl3 | libgnutls30, perl:any, libc6 (<< 3)
Description: example package
Tag: role::program,
 interface::commandline

Package: hello-doc
Description: nothing is needed to read it
"""

SOURCES = """Package: hello
Binary: hello, hello-doc
Maintainer: Somebody <somebody@example.org>
Build-Depends: debhelper-compat (= 13), libssl-dev | libgnutls28-dev
Build-Depends-Indep: python3-sphinx <!nodoc>
Files:
 0123 1000 hello_1.dsc
Homepage: https://example.org/hello
Section: devel
"""


def test_a_debian_archive_gives_the_packages_that_each_one_needs(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(format="debian", path=str(tmp_path))
    with pytest.raises(DataError, match=r"there is no Packages\.xz or Sources\.xz in .*; `debian` expects"):
        open_source(source, spark)
    (tmp_path / "Packages.xz").write_bytes(lzma.compress(ARCHIVE.encode()))
    (row,) = open_source(source, spark).collect()
    assert row.asDict() == {
        "package": "hello",
        "section": "devel",
        "maintainer": "Somebody <somebody@example.org>",
        "tag": "role::program, interface::commandline",
        "description": "example package",
        "depends": ["libc6", "libssl3", "perl"],
    }
    (tmp_path / "Packages.xz").write_bytes(lzma.compress(b"no field"))
    with pytest.raises(
        Exception, match=r"Packages\.xz is not the index of a Debian archive: 'no field' is not a field"
    ):
        open_source(source, spark).collect()
    (tmp_path / "Sources.xz").write_bytes(lzma.compress(SOURCES.encode()))
    with pytest.raises(
        DataError, match=r"has Packages\.xz and Sources\.xz; `debian` expects a folder with one of them"
    ):
        open_source(source, spark)
    (tmp_path / "Packages.xz").unlink()
    (row,) = open_source(source, spark).collect()
    assert row.asDict() == {
        "package": "hello",
        "section": "devel",
        "maintainer": "Somebody <somebody@example.org>",
        "uploaders": "",
        "binary": "hello, hello-doc",
        "homepage": "https://example.org/hello",
        "build_depends": ["debhelper-compat", "libssl-dev", "python3-sphinx"],
    }


ENTRIES = {
    "Dog": """Dog \\Dog\\ (d[o^]g), n. [AS. docga; akin to
   D. dog mastiff.]
   1. (Zool.) A quadruped of the genus {Canis}.
      [1913 Webster]

            Every dog has his day.

   2. A mean, worthless fellow.
      [1913 Webster]
""",
    "Hound": "Hound \\Hound\\, n.\n   See {Dog}. [1913 Webster]\n",
    "Cur": "Cur \\Cur\\, n.\n   A mongrel or inferior dog.\n   [1913 Webster]\n",
}


def write_dictionary(folder: Path, entries: dict[str, str]) -> None:
    digits = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    content, index = "", "00-database-info\tA\tA\n"
    for headword, entry in entries.items():
        numbers = ["".join(digits[n >> shift & 63] for shift in (12, 6, 0)) for n in (len(content), len(entry))]
        index += "\t".join([headword, *numbers]) + "\n"
        content += entry
    (folder / "tiny.index").write_text(index)
    (folder / "tiny.dict.dz").write_bytes(gzip.compress(content.encode()))


def test_a_dictionary_gives_each_definition_and_the_word_that_it_defines(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(format="dictionary", path=str(tmp_path))
    with pytest.raises(DataError, match=r"expects a folder with one \*\.index"):
        open_source(source, spark)
    write_dictionary(tmp_path, ENTRIES)
    rows = open_source(source, spark).collect()
    assert sorted((row.headword, row.definition) for row in rows) == [
        ("Cur", "A mongrel or inferior dog."),
        ("Dog", "(Zool.) A quadruped of the genus {Canis}."),
        ("Dog", "A mean, worthless fellow."),
    ]
    (tmp_path / "tiny.index").write_text("Dog\tA\n")
    with pytest.raises(Exception, match=r"are not a dictionary of dictd's"):
        open_source(source, spark).collect()


def test_every_word_that_a_dictionary_tests_has_another_definition_to_learn_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = {
        f"Word{n}": f"Word{n} \\\\, n.\n" + "".join(f"   {d}. Sense {d}.\n\n" for d in range(4)) for n in range(60)
    }
    write_dictionary(tmp_path, words)
    dataset = prepare(
        None,
        Prepare(
            source=Source(format="dictionary", path=str(tmp_path)),
            output=str(tmp_path / "d"),
            label="headword",
            features=["definition"],
            sparse=True,
            stages=[Stage(kind="count_text", columns=["definition"])],
            num_ranks=1,
        ),
        spark=spark,
    )
    assert dataset.num_classes == 60
    assert 5 < dataset.rows("test") < 40
    assert dataset.card.splits["test"].sparse is not None and dataset.card.splits["test"].sparse.unseen == 0
