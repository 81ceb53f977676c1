from pathlib import Path

import pyarrow as pa
import pytest

from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.words import CutAtPattern


@pytest.mark.parametrize("lower", [True, False])
def test_a_text_is_cut_alike_whichever_texts_are_beside_it(lower: bool) -> None:
    """Of ASCII alone they are cut by another pattern."""
    values = {"inputCol": "text", "outputCol": "words", "pattern": r"(?U)\W+", "toLowercase": lower}
    stage = CutAtPattern.read(SavedStage(Path(), "RegexTokenizer", values, {"gaps": True, "minTokenLength": 1}))
    plain = pa.array(["", "a_b-C 3,4\t\n", "...", " one ", "x" * 100, "".join(map(chr, range(128)))])
    (alone,) = stage.transform({"text": plain}).values()
    (beside,) = stage.transform({"text": pa.concat_arrays([plain, pa.array(["Straße, naïve"])])}).values()
    assert isinstance(alone, pa.Array) and isinstance(beside, pa.Array)
    assert alone.to_pylist() == beside.to_pylist()[:-1]
    assert beside.to_pylist()[-1] == (["straße", "naïve"] if lower else ["Straße", "naïve"])
