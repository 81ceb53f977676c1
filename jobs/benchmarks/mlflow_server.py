"""MLflow's server as a process that can be killed and started again."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

__all__ = ["Server"]

DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine
START_SECONDS = 240.0  # a machine on which everything restarts is slow


class Server:
    """A real MLflow server with SQLite, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self.uri = port, f"http://127.0.0.1:{port}"
        self.log = folder / "server.log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with the records that it had before, and return at once."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        # Nobody here asks for jobs; nothing is read from the user's folder, as on a machine of its own.
        environment = os.environ | {"HOME": str(self._folder), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Return when it answers. Raises ``TimeoutError``, with the end of its log, when it does not in time."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                DIRECTLY.open(f"{self.uri}/health", timeout=5).close()
                return
            time.sleep(0.2)
        log = self.log.read_text(errors="replace")[-3000:]
        raise TimeoutError(f"MLflow's server did not start in {START_SECONDS:g} s\n{log}")

    def signal(self, number: int) -> None:
        """Send a signal to it and to its workers, unless it has been killed."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End it and its workers at once."""
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait()

    def steps(self, run_id: str) -> list[int]:
        """The steps of the run's loss curve, as they were recorded."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        return [point.step for point in client.get_metric_history(run_id, "step_loss")]
