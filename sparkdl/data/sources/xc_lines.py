"""Lines ``label,label feature:value ...`` become arrays; what cannot is named."""

import re
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST", "BadLine", "Lines", "parse_lines"]

_COMMA, _COLON, _SPACE, _NEWLINE = b",: \n"
_SEPARATORS = np.zeros(256, bool)
_SEPARATORS[[_COMMA, _COLON, _SPACE, _NEWLINE]] = True
_DIGITS = np.zeros(256, bool)
_DIGITS[list(b"0123456789")] = True
_LINE = re.compile(rb"(\d+(?:,\d+)*)?((?:\s+\d+:[^\s:_]+)*)\s*")
LARGEST = 2**31 - 1
"""No label and no feature has a larger number; Spark's vectors could not hold it."""
_SHOWN = 40
"""Characters of a bad line that are shown."""


class BadLine(NamedTuple):
    """A line that cannot be used."""

    number: int
    """Counted from the first line that was handed in."""
    kind: str
    """What is wrong, for counting."""
    detail: str
    """The part of the line where it is wrong."""


class Lines(NamedTuple):
    """The rows of some lines; row i has the features from ``offsets[i]`` to ``offsets[i + 1]``, and labels likewise."""

    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    offsets: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_offsets: NDArray[np.int64]
    num_lines: int
    """Lines, the bad ones included."""
    bad: list[BadLine]


def parse_lines(text: bytes, features: int, labels: int) -> Lines:
    """Parse whole lines. Runs in a task. Features of a row come in ascending order.

    A bad line is one that is not in the format, names a feature twice, has a label that is not below ``labels`` or a
    feature that is not below ``features``, or has no labels or no features. A label that a line has twice counts once.
    """
    if not text.endswith(b"\n"):
        text += b"\n"
    lines = _parse_together(text)
    if lines is None or _looks_bad(lines, features, labels):
        lines = _parse_one_by_one(text, features, labels)
    return _without_repetition(lines)


def _parse_together(text: bytes) -> Lines | None:
    """All lines at once, by the places of what separates numbers; None when they are not simply in the format."""
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(_SEPARATORS[data])
    signs = data[at]
    before = np.concatenate([np.array([_NEWLINE], np.uint8), signs[:-1]])
    empty = np.diff(at, prepend=-1) == 1
    begins_line = before == _NEWLINE
    # A number before a comma follows a line's beginning or a comma; before a colon, a space; and so on.
    fits = np.select(
        [signs == _COMMA, signs == _COLON, signs == _SPACE],
        [
            (begins_line | (before == _COMMA)) & ~empty,
            (before == _SPACE) & ~empty,
            begins_line | (((before == _COMMA) | (before == _COLON)) & ~empty),
        ],
        (before == _COLON) & ~empty,
    )
    if not fits.all():
        return None
    # Only values may be more than digits; numpy's parser says whether they are numbers.
    is_value = before == _COLON
    strange = np.concatenate([[0], np.cumsum(~(_DIGITS[data] | _SEPARATORS[data]))])
    if (strange[at] - strange[np.concatenate([[0], at[:-1]])])[~is_value].any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # what NumPy 1 says of text that is no number
        try:
            numbers = np.fromstring(text.translate(_TO_SPACES), np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    kept = ~empty
    if len(numbers) != np.count_nonzero(kept):
        return None
    line = np.concatenate([[0], np.cumsum(signs == _NEWLINE)])[:-1]
    count = int(line[-1]) + 1
    line = line[kept]
    is_value, is_index = before[kept] == _COLON, signs[kept] == _COLON
    is_label = ~(is_value | is_index)
    if (numbers[~is_value] > LARGEST).any():
        return None
    return Lines(
        numbers[is_index].astype(np.int64),
        numbers[is_value],
        _offsets(np.bincount(line[is_index], minlength=count)),
        numbers[is_label].astype(np.int64),
        _offsets(np.bincount(line[is_label], minlength=count)),
        count,
        [],
    )


_TO_SPACES = bytes.maketrans(b",:\n", b"   ")


def _without_repetition(lines: Lines) -> Lines:
    """Each label of a row once, where it stands first."""
    row = np.repeat(np.arange(len(lines.label_offsets) - 1), np.diff(lines.label_offsets))
    _, first = np.unique(row * (LARGEST + 1) + lines.labels, return_index=True)
    if len(first) == len(lines.labels):
        return lines
    first.sort()
    counts = np.bincount(row[first], minlength=len(lines.label_offsets) - 1)
    return lines._replace(labels=lines.labels[first], label_offsets=_offsets(counts))


def _looks_bad(lines: Lines, features: int, labels: int) -> bool:
    if not len(lines.indices) or not len(lines.labels):
        return True
    lengths = np.diff(lines.offsets)
    if not lengths.all() or not np.diff(lines.label_offsets).all():
        return True
    ascending = np.diff(lines.indices) > 0
    ascending[lines.offsets[1:-1] - 1] = True
    return not (
        ascending.all()
        and lines.indices.max() < features
        and lines.labels.max() < labels
        and np.isfinite(lines.values).all()
    )


def _parse_one_by_one(text: bytes, features: int, labels: int) -> Lines:
    rows: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    bad = []
    lines = text.split(b"\n")[:-1]
    for number, line in enumerate(lines):
        row = _parse_line(line, features, labels)
        if isinstance(row, tuple):
            rows.append(row)
        else:
            kind, _, detail = row.partition("\t")
            bad.append(BadLine(number, kind, detail))
    nothing = np.empty(0, np.int64)
    return Lines(
        np.concatenate([nothing, *(row[1] for row in rows)]),
        np.concatenate([np.empty(0), *(row[2] for row in rows)]),
        _offsets(np.array([len(row[1]) for row in rows], np.int64)),
        np.concatenate([nothing, *(row[0] for row in rows)]),
        _offsets(np.array([len(row[0]) for row in rows], np.int64)),
        len(lines),
        bad,
    )


def _parse_line(
    line: bytes, features: int, labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | str:
    """The labels, indices and values of one line, or what is wrong with it: a kind, a tab, and the part."""
    match = _LINE.fullmatch(line)
    shown = line[:_SHOWN].decode("ascii", "replace")
    if match is None:
        return f"not in the format\t{shown!r}"
    found, pairs = match[1], match[2].split()
    if found is None:
        return "no labels\t"
    if not pairs:
        return "no features\t"
    try:
        values = np.array([float(pair.partition(b":")[2]) for pair in pairs])
        indices = np.array([int(pair.partition(b":")[0]) for pair in pairs], np.int64)
        classes = np.array(found.split(b","), np.int64)
    except (ValueError, OverflowError):
        return f"not in the format\t{shown!r}"
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    if not np.isfinite(values).all():
        return f"a value that is not finite\tfeature {indices[~np.isfinite(values)][0]}"
    if indices[-1] >= features:
        return f"a feature beyond the header\t{indices[-1]} of {features}"
    if classes.max() >= labels:
        return f"a label beyond the header\t{classes.max()} of {labels}"
    twice = np.flatnonzero(np.diff(indices) == 0)
    if len(twice):
        return f"a feature twice\t{indices[twice[0]]}"
    return classes, indices, values


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
