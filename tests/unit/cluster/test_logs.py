import io
import subprocess
import sys

import pytest

from sparkdl.cluster.logs import print_text


def test_output_of_every_kind_is_caught_in_order_and_the_descriptors_are_restored() -> None:
    program = """
import logging, os, sys
from sparkdl.cluster.logs import captured_output
lines = []
with captured_output(lines.extend):
    print("print")
    logging.getLogger().warning("logging")
    os.write(1, b"descriptor\\n")
    os.system("echo child")
    child = os.fork()
    if not child:
        import time; time.sleep(30); os._exit(0)
    os.write(2, "größer\\n".encode())
    os.write(1, b"cut \\0 off")
os.kill(child, 9)
assert lines == ["print", "logging", "descriptor", "child", "größer", "cut \\0 off"], lines
print("restored")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == ("restored\n", "")


REPLACE = """
class Tee:
    def __init__(self, inner): self.inner = inner
    def write(self, text): self.inner.write(text)
    def flush(self): self.inner.flush()
sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)
"""
WRAP = "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True)"
CLOSE = "sys.stdout.close(); sys.stdout = sys.stderr"


@pytest.mark.parametrize("change", [REPLACE, WRAP, CLOSE], ids=["replaced", "wrapped", "closed"])
@pytest.mark.parametrize("run", ["captured_output(lines.extend)", "own_streams()"])
def test_what_a_function_does_to_the_streams_ends_with_it(change: str, run: str) -> None:
    program = f"""
import io, sys
from sparkdl.cluster.logs import captured_output, own_streams
before = sys.stdout, sys.stderr
lines = []
for number in range(2):
    with {run}:
        exec({change!r})
        print("in run", number)
    assert (sys.stdout, sys.stderr) == before
print(*lines, "after both", sep=", ")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    output = (done.stdout + done.stderr).splitlines()
    expected = ["in run 0, in run 1, after both"] if "captured" in run else ["in run 0", "in run 1", "after both"]
    assert sorted(output) == sorted(expected)


def test_what_the_drivers_encoding_lacks_is_printed_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, printed in (("utf-8", "größer \\udcff"), ("ascii", "gr\\xf6\\xdfer \\udcff")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        print_text("größer \udcff")
        assert stream.buffer.getvalue().decode(encoding) == f"{printed}\n"  # type: ignore[attr-defined]
