"""The run that faults are injected into. Submitted to a cluster; the driver's only argument is a file of JSON."""

import json
import logging
import sys
from pathlib import Path

import sparkdl
from benchmarks.faults.network import Noting

__all__ = ["main"]


def main(plan_file: str) -> None:
    """Train as the plan says, continuing what an earlier driver began, and write down what came out."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    plan = json.loads(Path(plan_file).read_text())
    options = {"folder": plan["notes"], "pause": plan["pause"]}
    settings = sparkdl.Train(model=Noting, model_options=options, resume="auto", **plan["train"])
    trained = sparkdl.train(
        plan["dataset"],
        settings,
        cluster=sparkdl.Cluster(**plan["cluster"]),
        tracking=sparkdl.Tracking(**plan["tracking"]),
        spark=sparkdl.get_session(),
    )
    result = {"run_id": trained.run_id, "model_uri": trained.model_uri, "history": trained.history}
    Path(plan["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
