from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from mlflow import MlflowClient

from sparkdl.settings import Tracking
from sparkdl.tracking.delivery import Delivery
from sparkdl.tracking.journal import Journal


def test_steps_that_a_run_resumed_offline_takes_again_are_there_once(
    client: MlflowClient, settings: Callable[..., Tracking], tmp_path: Path
) -> None:
    run_id = client.create_run("0").info.run_id
    for step in range(10):
        client.log_metric(run_id, "loss", 1.0, timestamp=1, step=step)
    journal = Journal(tmp_path / "run", {"opened_as": "a", "run_id": run_id})
    delivery = Delivery(journal, settings())  # which begins without a connection
    for steps in (range(3, 5), range(5, 7), range(7, 13)):
        for step in steps:
            journal.append("metrics", {"time": 2, "step": step, "metrics": {"loss": 1.0}})
        delivery.deliver()
    journal.close()
    assert [metric.step for metric in client.get_metric_history(run_id, "loss")] == list(range(13))


def test_runs_that_read_a_new_dataset_at_the_same_time_all_have_it(
    client: MlflowClient, settings: Callable[..., Tracking], tmp_path: Path
) -> None:
    together = Barrier(4, timeout=60)

    def tell(run_id: str) -> None:
        journal = Journal(tmp_path / run_id, {"opened_as": "a", "run_id": run_id})
        delivery = Delivery(journal, settings())
        for number in range(5):
            journal.append("dataset", {"name": "new", "digest": f"{number}", "source": "{}", "card": "{}"})
            together.wait()
            delivery.deliver()
        journal.close()

    runs = [client.create_run("0").info.run_id for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(tell, runs))
    assert all(len(client.get_run(run_id).inputs.dataset_inputs) == 5 for run_id in runs)
