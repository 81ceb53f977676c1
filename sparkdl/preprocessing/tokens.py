"""Stages that turn texts into token ids, with a tokeniser of the package ``tokenizers``, which is kept as JSON.

A ``tokenizer.json`` (https://huggingface.co/docs/tokenizers) is only data; loading it executes nothing from it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.extras import require
from sparkdl.preprocessing.learner import Facts, Learner, Wanted, most_frequent_first
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, offsets_of
from sparkdl.preprocessing.words import texts_of

__all__ = ["LearnTokens", "Tokenise", "check_tokeniser", "end_of_text", "padding_of", "size_of"]

EXTRA = "text"
PADDING = "[PAD]"
"""The token with id 0 of tokenisers that are learned here."""
_PADDINGS = PADDING, "<pad>", "<|padding|>", "<|pad|>"
"""Names of padding tokens, for tokenisers whose file does not mark one."""
_ENDS = "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"
"""Names of the token that ends a text, which tokeniser files do not mark. The first is that of tokenisers learned
here."""
_PIECES = 1 << 18
"""The number of different pieces of text from which tokens are learned: the most frequent ones."""
_LEARNED_FROM = 1 << 21
"""The approximate number of pieces with repetitions from which tokens are learned; more would change only rare
tokens."""


@dataclass(frozen=True)
class Tokenise(FittedStage):
    """Turns each text into the list of its token ids (int32)."""

    input: str
    output: str
    tokeniser: str
    """The content of a ``tokenizer.json``. Its padding and truncation are ignored."""
    length: int | None = None
    """The number of tokens, with special ones, to which longer texts are cut; None keeps all."""

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        tokeniser = _opened(self.tokeniser, self.length)
        ids = [tokeniser.encode(text).ids for text in texts_of(columns, self.input).to_pylist()]
        offsets = pa.array(offsets_of(np.array(list(map(len, ids)), np.int64)).astype(np.int32))
        flat = np.fromiter((one for row in ids for one in row), np.int32, int(offsets[-1].as_py()))
        return {self.output: pa.ListArray.from_arrays(offsets, pa.array(flat))}

    @property
    @override
    def needs(self) -> dict[str, int | None]:
        return {self.input: None}


@dataclass(frozen=True)
class LearnTokens(Learner):
    """Learns a byte-level BPE (Sennrich et al., 2016; Radford et al., 2019), which can encode every text."""

    input: str
    output: str
    vocabulary: int
    length: int | None = None
    ends_texts: bool = False
    """Whether the tokeniser gets a token for the end of a text."""

    @property
    @override
    def wanted(self) -> Wanted:
        return Wanted(most=_PIECES)

    @override
    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        cut = _byte_level().pre_tokenize_str
        return [pa.array([piece for text in texts_of(columns, self.input).to_pylist() for piece, _ in cut(text)])]

    @override
    def learn(self, facts: Facts) -> tuple[Tokenise]:
        counts = facts.counts.get(0, {})
        if not counts:
            raise DataError(f"column {self.input!r} has no text in the training rows; there are no tokens to learn")
        tokenizers = require("tokenizers", extra=EXTRA)
        tokeniser = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # a piece has no spaces
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=[PADDING, _ENDS[0]] if self.ends_texts else [PADDING],
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        share = min(1.0, _LEARNED_FROM / sum(counts.values()))
        pieces = (" ".join([piece] * max(round(counts[piece] * share), 1)) for piece in most_frequent_first(counts))
        with _one_thread():
            tokeniser.train_from_iterator(pieces, trainer)
        tokeniser.pre_tokenizer, tokeniser.decoder = _byte_level(), tokenizers.decoders.ByteLevel()
        return (Tokenise(self.input, self.output, tokeniser.to_str(), self.length),)


def check_tokeniser(text: str, origin: str) -> None:
    """Raise :class:`DataError` unless a text is a ``tokenizer.json``."""
    try:
        _opened(text, None)
    except Exception as error:  # the package raises no narrower class
        raise DataError(f"{origin} is no tokeniser of the package tokenizers: {str(error).splitlines()[0]}") from None


def size_of(tokeniser: str) -> int:
    """The largest id of a tokeniser plus 1."""
    return int(max(_opened(tokeniser, None).get_vocab(with_added_tokens=True).values())) + 1


def padding_of(tokeniser: str) -> int:
    """The id of the padding token; 0 if the tokeniser has none."""
    said = json.loads(tokeniser).get("padding")
    if said:
        return int(said["pad_id"])
    found = _opened(tokeniser, None)
    return next((found.token_to_id(token) for token in _PADDINGS if found.token_to_id(token) is not None), 0)


def end_of_text(tokeniser: str, token: str | None = None) -> int:
    """The id of the token that ends texts, or of ``token``. Raises :class:`DataError` if it does not exist."""
    found = _opened(tokeniser, None)
    names = [token] if token else _ENDS
    ids = [found.token_to_id(name) for name in names if found.token_to_id(name) is not None]
    if not ids:
        raise DataError(
            f"the tokeniser has no token {' or '.join(map(repr, names))}, which separates texts; name one of its"
            " tokens in `end_of_text`"
        )
    return int(ids[0])


@lru_cache(maxsize=8)
def _opened(text: str, length: int | None) -> Any:
    tokeniser = require("tokenizers", extra=EXTRA).Tokenizer.from_str(text)
    tokeniser.no_padding()
    tokeniser.no_truncation()
    if length is not None:
        tokeniser.enable_truncation(length)
    return tokeniser


def _byte_level() -> Any:
    return require("tokenizers", extra=EXTRA).pre_tokenizers.ByteLevel(add_prefix_space=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the package from using threads, because it would warn processes that are forked later."""
    key = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(key)
    os.environ[key] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before
