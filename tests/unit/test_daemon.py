"""The process that Python workers are forked from."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_package_that_cannot_be_imported_is_no_reason_not_to_fork_workers(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ValueError('numpy.dtype size changed')")
    environment = os.environ | {"SPARKDL_TASKS": "data", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "sparkdl.daemon"],
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert len(done.stdout) == 4, done.stderr.decode()  # the port at which Spark asks for workers
