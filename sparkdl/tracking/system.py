"""What the driver's machine is busy with while a run lasts: CPU, memory, disk, network, GPU. Runs on the driver."""

import logging
import threading
from collections.abc import Callable, Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

__all__ = ["PREFIX", "SystemWatch"]

log = logging.getLogger(__name__)

SECONDS = 5.0  # between two samples; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL sets another number
PREFIX = "system/"  # where MLflow's page looks for them


class SystemWatch(threading.Thread):
    """Reads MLflow's own gauges and hands the numbers to ``record(metrics, step)``.

    MLflow's monitor would also send them, and give up at the first call that fails.
    """

    def __init__(self, record: Callable[[Mapping[str, float], int], None], *, first_step: int, uri: str) -> None:
        super().__init__(name="mlflow-system-metrics", daemon=True)
        logging.getLogger("mlflow.system_metrics").setLevel(logging.WARNING)
        self._record, self._step = record, first_step
        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            "", sampling_interval=SECONDS, tracking_uri=uri
        )
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End at once."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """A sample every few seconds."""
        while True:
            self._monitor.collect_metrics()  # type: ignore[no-untyped-call]
            if self._stopped.wait(self._monitor.sampling_interval):
                return
            metrics = self._monitor.aggregate_metrics()  # type: ignore[no-untyped-call]
            for gauge in self._monitor.monitors:
                gauge.clear_metrics()  # type: ignore[no-untyped-call]
            self._record({f"{PREFIX}{name}": value for name, value in metrics.items()}, self._step)
            self._step += 1
