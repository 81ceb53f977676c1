import subprocess
import sys


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
