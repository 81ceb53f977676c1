"""The section ``tracking``: where MLflow keeps what happened, and what a new version must reach."""

from typing import Annotated

from pydantic import Field

from sparkdl.settings.section import Folder, Section

__all__ = ["Gate", "Tracking"]


class Gate(Section):
    """What a new version must reach before the alias moves to it."""

    metric: str = "test_accuracy"
    minimum: float | None = None
    """For a metric that is better when larger: the least acceptable value."""
    maximum: float | None = None
    """For a metric that is better when smaller: the largest acceptable value."""
    better_than_current: bool = True
    """Whether the version must also be no worse than the one the alias points to now."""


class Tracking(Section):
    """Where MLflow keeps what happened."""

    uri: Annotated[str | None, Field(repr=False)] = None
    """A tracking URI; by default ``MLFLOW_TRACKING_URI``, else SQLite in ``output/mlflow.db``."""
    experiment: str = "sparkdl"
    """The experiment's name."""
    run_name: str | None = None
    offline: bool = False
    """Start also when the store does not answer: everything is kept on disk, and ``sparkdl sync`` delivers it."""
    spool: Folder = "output/tracking"
    """Where records are kept until the store has them; a folder that outlives this machine loses none with it."""
    register_as: str | None = None
    """The registered model's name; without one, nothing is registered."""
    alias: str = "candidate"
    """The alias that moves to the new version when the gate allows it."""
    gate: Gate = Gate()
