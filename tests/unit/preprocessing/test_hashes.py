"""MurmurHash3, as its authors publish it and as Spark computes it."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from sparkdl.preprocessing.hashes import SEED, murmur3, murmur3_of_ints, murmur3_x86_32


@pytest.mark.parametrize(
    ("key", "seed", "expected"),
    [  # the vectors that go round with SMHasher's reference implementation
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0, 0xF55B516B),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21", 0, 0x72661CF4),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3_gives_the_published_values(key, seed, expected):
    assert murmur3_x86_32(np.frombuffer(key, dtype=np.uint8)[None], seed=seed).tolist() == [expected]


@given(key=st.binary(max_size=40), seed=st.integers(0, 2**32 - 1))
def test_murmur3_agrees_with_scikit_learn(key, seed):
    found = murmur3_x86_32(np.frombuffer(key, dtype=np.uint8)[None], seed=seed)
    assert found[0] == murmurhash3_32(key, seed=seed, positive=True)


@given(texts=st.lists(st.text(max_size=40), max_size=20))
def test_texts_of_any_lengths_hash_as_one_by_one(texts):
    found = murmur3(pa.array(texts, pa.string()))
    assert found.tolist() == [murmurhash3_32(text.encode(), seed=SEED) for text in texts]


@given(numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_a_number_hashes_as_its_four_bytes(numbers):
    found = murmur3_of_ints(np.array(numbers, np.int32))
    assert found.tolist() == [
        murmurhash3_32(number.to_bytes(4, "little", signed=True), seed=SEED) for number in numbers
    ]
