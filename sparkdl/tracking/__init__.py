"""MLflow, spoken to from the driver alone: what was run, what came out, and which version is the one to use."""

from sparkdl.tracking.courier import Synced, sync
from sparkdl.tracking.download import download, download_whole, figures_of, pinned
from sparkdl.tracking.registry import Registered, check_gate
from sparkdl.tracking.run import Run
from sparkdl.tracking.start import start_run
from sparkdl.tracking.store import page_command, tracking_uri
from sparkdl.tracking.store_check import check_store
from sparkdl.tracking.surroundings import active_run, under

__all__ = [
    "Registered",
    "Run",
    "Synced",
    "active_run",
    "check_gate",
    "check_store",
    "download",
    "download_whole",
    "figures_of",
    "page_command",
    "pinned",
    "start_run",
    "sync",
    "tracking_uri",
    "under",
]
