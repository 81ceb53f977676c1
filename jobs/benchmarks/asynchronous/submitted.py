"""The run under dynamic allocation. Submitted to a cluster; the driver's only argument is a file of JSON."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sparkdl
from benchmarks.asynchronous.training import on_slow_cores
from sparkdl.collectives import TorchBackend
from sparkdl.settings import RankRange
from sparkdl.training.asynchronous.driver import train_asynchronously
from sparkdl.training.job import Job

__all__ = ["main"]


def main(plan_file: str) -> None:
    """Train as the plan says, without end, and write down what is done when."""
    plan = json.loads(Path(plan_file).read_text())
    workers, epoch = plan["workers"], 0

    with Path(plan["notes"]).open("a", buffering=1) as notes:

        def note(rank: int, message: Mapping[str, Any]) -> None:
            nonlocal epoch
            match message:
                case {"kind": "epoch_started", "epoch": begun}:
                    epoch = begun
                    notes.write(json.dumps({"at": time.time(), "epoch": epoch, "rows": 0}) + "\n")
                case {"kind": "steps", "rows": rows}:
                    notes.write(json.dumps({"at": time.time(), "epoch": epoch, "rows": rows}) + "\n")
                case {"kind": "epoch", "figures": figures}:
                    notes.write(json.dumps({"counted": figures["rows"]}) + "\n")

        train_asynchronously(
            Job(
                sparkdl.Dataset.open(plan["dataset"]),
                sparkdl.Train(**on_slow_cores(plan["train"], pace=plan["pace"])),
                plan["folder"],
                TorchBackend(),
                workers,
            ),
            sparkdl.Cluster(num_ranks=RankRange(max=workers)),
            sparkdl.get_session(),
            on_message=note,
            on_checkpoint=lambda checkpoint: None,
        )


if __name__ == "__main__":
    main(sys.argv[1])
