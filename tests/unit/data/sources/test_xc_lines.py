"""Lines of the Extreme Classification Repository's format, taken together and one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.sources.xc_lines import Lines, _parse_one_by_one, parse_lines

FEATURES, LABELS = 100, 20

ROW = st.tuples(
    st.lists(st.integers(0, LABELS - 1), min_size=1, max_size=4),
    st.dictionaries(
        st.integers(0, FEATURES - 1),
        st.floats(-1e6, 1e6, allow_nan=False).map(abs) | st.just(0.5),
        min_size=1,
        max_size=5,
    ),
)


def text_of(rows: list[tuple[list[int], dict[int, float]]]) -> bytes:
    lines = [
        ",".join(map(str, labels)) + "".join(f" {index}:{value!r}" for index, value in features.items())
        for labels, features in rows
    ]
    return ("\n".join(lines) + "\n").encode()


def rows_of(lines: Lines) -> list[tuple[list[int], dict[int, float]]]:
    return [
        (
            lines.labels[lines.label_offsets[i] : lines.label_offsets[i + 1]].tolist(),
            dict(
                zip(
                    lines.indices[lines.offsets[i] : lines.offsets[i + 1]].tolist(),
                    lines.values[lines.offsets[i] : lines.offsets[i + 1]].tolist(),
                    strict=True,
                )
            ),
        )
        for i in range(len(lines.offsets) - 1)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_rows_come_back_as_they_were_written(rows: list[tuple[list[int], dict[int, float]]]) -> None:
    lines = parse_lines(text_of(rows), FEATURES, LABELS)
    assert not lines.bad
    assert lines.num_lines == len(rows)
    assert rows_of(lines) == [(list(dict.fromkeys(labels)), features) for labels, features in rows]
    ends = set(lines.offsets.tolist())
    assert all(
        after > before or i + 1 in ends
        for i, (before, after) in enumerate(zip(lines.indices, lines.indices[1:], strict=False))
    )


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("01 9:,.-e\n"), max_size=30))
def test_taking_lines_together_accepts_nothing_that_a_single_line_would_not(text: str) -> None:
    encoded = text.encode() + b"\n"
    together, single = parse_lines(encoded, FEATURES, LABELS), _parse_one_by_one(encoded, FEATURES, LABELS)
    assert together.num_lines == single.num_lines
    assert together.bad == single.bad
    assert all(np.array_equal(a, b) for a, b in zip(together[:5], single[:5], strict=True))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hello", "not in the format"),
        ("1 2:3:4", "not in the format"),
        ("1 2", "not in the format"),
        ("1,,2 3:4", "not in the format"),
        ("1, 3:4", "not in the format"),
        ("1.5 3:4", "not in the format"),
        ("1 -3:4", "not in the format"),
        ("1 3:four", "not in the format"),
        ("1 3:1.2.3", "not in the format"),
        ("1 3:", "not in the format"),
        ("1 3:1_0  4:1", "not in the format"),
        (f"1 {10**30}:1", "not in the format"),
        ("1 3:nan", "a value that is not finite"),
        ("1 3:1e999", "a value that is not finite"),
        ("20 3:1", "a label beyond the header"),
        ("1 100:1", "a feature beyond the header"),
        ("1 3:1 3:2", "a feature twice"),
        (" 3:1", "no labels"),
        ("", "no labels"),
        ("1", "no features"),
    ],
)
def test_a_bad_line_is_named_and_its_neighbours_are_kept(line: str, kind: str) -> None:
    lines = parse_lines(f"1 2:3\n{line}\n4,5 6:7 8:9\n".encode(), FEATURES, LABELS)
    assert [(bad.number, bad.kind) for bad in lines.bad] == [(1, kind)]
    assert rows_of(lines) == [([1], {2: 3.0}), ([4, 5], {6: 7.0, 8: 9.0})]
    assert lines.num_lines == 3


def test_windows_line_ends_and_more_spaces_are_accepted() -> None:
    lines = parse_lines(b"1 2:3 \r\n4  5:6\t7:8\r\n", FEATURES, LABELS)
    assert not lines.bad
    assert rows_of(lines) == [([1], {2: 3.0}), ([4], {5: 6.0, 7: 8.0})]


def test_a_label_that_stands_twice_in_a_line_counts_once() -> None:
    lines = parse_lines(b"3,1,3 2:3\n3,3 5:6\n?\n4,4,1,4 7:8\n", FEATURES, LABELS)
    assert rows_of(lines) == [([3, 1], {2: 3.0}), ([3], {5: 6.0}), ([4, 1], {7: 8.0})]
    assert [bad.number for bad in lines.bad] == [2]
