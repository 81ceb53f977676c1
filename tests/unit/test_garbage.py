import gc
import subprocess
import sys

import pytest

from sparkdl.garbage import no_collection

CYCLE = """
import sys
from sparkdl.garbage import end_without_collection

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("looked for")

kept = Cycle()
if sys.argv[1] == "soon":
    end_without_collection()
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_in_the_block_and_then_it_is_as_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), no_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(("end", "said"), [("soon", ""), ("as usual", "looked for")])
def test_a_process_may_end_without_looking_for_garbage(end: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", CYCLE, end], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == said
