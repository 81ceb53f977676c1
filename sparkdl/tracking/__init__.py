"""Experiment tracking and model registry with MLflow. Only the driver talks to MLflow."""

from sparkdl.tracking.courier import Synced, sync
from sparkdl.tracking.download import download, download_whole, pinned
from sparkdl.tracking.original import Original, original_of
from sparkdl.tracking.registry import Registered, check_gate
from sparkdl.tracking.run import Run
from sparkdl.tracking.start import start_run
from sparkdl.tracking.store import page_command, tracking_uri
from sparkdl.tracking.store_check import check_store
from sparkdl.tracking.surroundings import active_run, below, under

__all__ = [
    "Original",
    "Registered",
    "Run",
    "Synced",
    "active_run",
    "below",
    "check_gate",
    "check_store",
    "download",
    "download_whole",
    "original_of",
    "page_command",
    "pinned",
    "start_run",
    "sync",
    "tracking_uri",
    "under",
]
