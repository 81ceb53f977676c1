"""The section ``tracking``: where MLflow records runs, and what a new version must reach."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from sparkdl.settings.section import Folder, Section

__all__ = ["Gate", "Tracking"]


def _model_name(name: str) -> str:
    """What MLflow takes as the name of a registered model; found here, before anything is trained."""
    if not name:
        return name  # as without one: nothing is registered
    if not name.strip() or "/" in name or ":" in name or name == "." or name.startswith(".."):
        raise ValueError(f"the model name {name!r} is not valid in MLflow: it must be a plain name without '/' and ':'")
    if "'" in name and '"' in name:
        raise ValueError(f"a model named {name!r} cannot be found in MLflow: use only one kind of quotes")
    return name


def _alias(name: str) -> str:
    """What MLflow takes as an alias."""
    if not re.fullmatch(r"[\w-]{1,255}", name):
        raise ValueError(f"the alias {name!r} is not valid in MLflow: it may have letters, digits, '_' and '-'")
    if re.fullmatch(r"(?i)latest|v\d+", name):
        raise ValueError(f"the alias {name!r} is reserved by MLflow; choose another one")
    return name


class Gate(Section):
    """What a new version must reach before the alias moves to it."""

    model_config = ConfigDict(allow_inf_nan=False)

    metric: str | None = None
    """The figure that is compared, for example ``test_loss``. By default the accuracy (for very many classes the
    precision at 1, for several labels the mean average precision, for regression R², for ranking NDCG at 10) on
    ``test``, or on ``validation`` if there is no such split."""
    minimum: float | None = None
    """For a metric that is better when larger: the least acceptable value."""
    maximum: float | None = None
    """For a metric that is better when smaller: the largest acceptable value."""
    better_than_current: bool = True
    """Whether the version must also be no worse than the one that has the alias now."""

    @model_validator(mode="after")
    def _in_one_direction(self) -> Self:
        if self.minimum is not None and self.maximum is not None:
            raise ValueError("set `minimum` for a metric that is better when larger, or else `maximum`, not both")
        return self


class Tracking(Section):
    """Where and how runs are recorded in MLflow."""

    uri: Annotated[str | None, Field(repr=False)] = None
    """A tracking URI; by default ``MLFLOW_TRACKING_URI``, else SQLite in ``output/mlflow.db``."""
    experiment: str = "sparkdl"
    """The experiment's name. If it is not set: the experiment of the caller's open run in the same store, else the one
    in MLflow's environment variables (``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_EXPERIMENT_ID``)."""
    run_name: str | None = None
    offline: bool = False
    """Whether to start even if the store does not answer: records stay on disk, and ``sparkdl sync`` delivers them."""
    spool: Folder = "output/tracking"
    """Where records are kept until the store has them. On shared storage, they survive the loss of this machine."""
    register_as: Annotated[str, AfterValidator(_model_name)] | None = None
    """The registered model's name; without one, nothing is registered."""
    alias: Annotated[str, AfterValidator(_alias)] = "candidate"
    """The alias that moves to the new version when the gate allows it."""
    gate: Gate = Gate()
