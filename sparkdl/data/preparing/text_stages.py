"""What the stages for text consist of."""

from sparkdl.preprocessing.copying import Copy
from sparkdl.preprocessing.learner import Learner
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.word_counts import CountHashes, LearnWeights, LearnWords, LogarithmOfCounts
from sparkdl.preprocessing.word_hashes import HashWords
from sparkdl.preprocessing.words import CutAtPattern, Neighbours
from sparkdl.settings import Stage

__all__ = ["text_stages"]

START = "^"
"""Stands before the first word where pairs are counted; no word can be taken for it."""


def text_stages(stage: Stage, column: str, output: str) -> list[FittedStage | Learner]:
    """The stages for a column of text, which end in the column ``output``. Runs on the driver.

    Words are counted, and so may be pairs of neighbours, one of which is the beginning and the first word: how a text
    begins often says what it is about. Counts may become 1 + ln n, and each word or pair is weighted by
    ln((N + 1) / (n + 1)), where n of the N training rows have it. ``hash_words`` keeps them in their order, by their
    hashes alone.
    """
    words, counts = f"{output}_words", f"{output}_counts"
    parts: list[FittedStage | Learner] = [CutAtPattern.of_words(column, words)]
    if stage.bigrams:
        started, pairs, both = f"{output}_started", f"{output}_pairs", f"{output}_terms"
        parts += [
            Copy((words,), started, START),
            Neighbours(started, pairs, 2),
            Copy((words, pairs), both),
        ]
        words = both
    if stage.kind == "hash_words":
        return [
            *parts,
            HashWords(words, output, stage.vocabulary, stage.dimensions),
        ]
    dampened = f"{output}_log" if stage.sublinear else None
    if stage.kind == "count_text":
        named = ", ".join(map(repr, stage.columns))
        return [*parts, LearnWords(words, counts, dampened, output, stage.vocabulary, stage.minimum_documents, named)]
    parts.append(CountHashes(words, counts, stage.dimensions, binary=False))
    if dampened:
        parts.append(LogarithmOfCounts(counts, dampened))
    # A vocabulary leaves rare words out; hashes can only be given no weight.
    return [*parts, LearnWeights(counts, dampened or counts, output, stage.minimum_documents)]
