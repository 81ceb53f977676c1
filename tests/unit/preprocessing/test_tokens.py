"""Texts become ids of tokens, by a tokeniser that was learned from counts of pieces or came as a file."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from sparkdl.errors import DataError
from sparkdl.preprocessing.learner import Facts
from sparkdl.preprocessing.tokens import LearnTokens, Tokenise, check_tokeniser, padding_of, size_of

TEXTS = ["the cat sat on the mat", "the dog sat", "Ünïcode 日本 🙂 tabs\tand\nlines", "a"]


def learned(texts: list[str], vocabulary: int = 280, length: int | None = None) -> Tokenise:
    learner = LearnTokens("t", "ids", vocabulary, length)
    (pieces,) = learner.texts({"t": pa.array(texts)})
    counts = {one["values"].as_py(): one["counts"].as_py() for one in pc.value_counts(pieces)}
    (stage,) = learner.learn(Facts(np.zeros((2, 0)), {0: counts}))
    return stage


def ids(stage: Tokenise, texts: list[str]) -> list[list[int]]:
    found = stage.transform({"t": pa.array(texts, pa.string())})["ids"]
    assert isinstance(found, pa.Array) and found.type == pa.list_(pa.int32())
    return found.to_pylist()  # type: ignore[no-any-return]


def of_words() -> Tokenizer:
    tokeniser = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1, "sat": 2, "[SEP]": 3, "<pad>": 7}, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
    tokeniser.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    return tokeniser


def test_a_learned_tokeniser_knows_every_text_and_gives_it_back() -> None:
    stage = learned(TEXTS * 3)
    again = Tokenizer.from_str(stage.tokeniser)
    for text in [*TEXTS, "never seen: zebra \x00 ß"]:
        assert again.decode(ids(stage, [text])[0]).strip() == text
    assert size_of(stage.tokeniser) <= 280 and padding_of(stage.tokeniser) == 0
    assert len(ids(stage, ["the"])[0]) == 1  # which is frequent
    assert all(0 not in row for row in ids(stage, TEXTS))


def test_what_is_learned_depends_on_counts_and_not_on_the_order_of_rows() -> None:
    assert learned(TEXTS * 2).tokeniser == learned((TEXTS * 2)[::-1]).tokeniser


def test_long_texts_are_cut_with_their_special_tokens() -> None:
    text = of_words().to_str()
    assert ids(Tokenise("t", "ids", text), ["cat sat dog", "sat"]) == [[1, 2, 0, 3], [2, 3]]
    assert ids(Tokenise("t", "ids", text, 3), ["cat sat dog", "sat"]) == [[1, 2, 3], [2, 3]]
    assert ids(Tokenise("t", "ids", text), []) == []


def test_a_file_says_what_padding_is_and_its_own_padding_and_truncation_do_not_count() -> None:
    tokeniser = of_words()
    assert padding_of(tokeniser.to_str()) == 7 and size_of(tokeniser.to_str()) == 8
    tokeniser.enable_padding(pad_id=5, length=20)
    tokeniser.enable_truncation(2)
    assert padding_of(tokeniser.to_str()) == 5
    assert ids(Tokenise("t", "ids", tokeniser.to_str()), ["cat sat dog"]) == [[1, 2, 0, 3]]


def test_what_is_no_tokeniser_and_what_has_no_texts_are_errors() -> None:
    for text in ("", "{}", json.dumps({"version": "1.0", "model": {"type": "Pickle"}})):
        with pytest.raises(DataError, match=r"x\.json is no tokeniser of the package tokenizers"):
            check_tokeniser(text, "x.json")
    with pytest.raises(DataError, match="column 't' has no text in the training rows"):
        LearnTokens("t", "ids", 300).learn(Facts(np.zeros((2, 0)), {}))
    with pytest.raises(DataError, match="column 't' is null in 1 rows"):
        learned(TEXTS).transform({"t": pa.array(["a", None])})
