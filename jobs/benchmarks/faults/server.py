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
        self.uri = f"http://127.0.0.1:{port}"
        self._folder, self._port = folder, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return at once."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # which nobody here asks for
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                DIRECTLY.open(f"{self.uri}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise TimeoutError(f"MLflow's server did not start in {START_SECONDS:g} s")

    def kill(self) -> None:
        """SIGKILL, to it and to its workers."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def steps(self, run_id: str) -> list[int]:
        """The steps of the run's loss curve, as they were recorded."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        return [point.step for point in client.get_metric_history(run_id, "step_loss")]
