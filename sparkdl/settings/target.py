"""The figures of an epoch, and ``train.target``: the one that a run has to reach."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from sparkdl.settings.section import Section

__all__ = ["SMALLER_IS_BETTER", "FigureName", "Target"]

FigureName = Literal[
    "loss",
    "accuracy",
    "area_under_roc",
    "area_under_pr",
    "precision",
    "recall",
    "f1",
    "macro_f1",
    "top_5_accuracy",
    "log_loss",
    "mean_average_precision",
    "r2",
    "rmse",
    "mae",
    "ndcg_at_10",
    "mean_reciprocal_rank",
    "perplexity",
]
"""The task decides which of these exist."""
SMALLER_IS_BETTER = ("loss", "log_loss", "rmse", "mae", "perplexity")
"""The figures that are better when smaller."""


class Target(Section):
    """A figure that a run has to reach: it ends after the first epoch that does, and logs ``seconds_to_target``.

    Time to accuracy is DAWNBench's measure (Coleman et al., 2017): seconds of all epochs until then, evaluation
    included.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    metric: Annotated[str, Field(pattern=rf"^(train|validation)_({'|'.join(get_args(FigureName))})$")] = (
        "validation_accuracy"
    )
    """A figure of an epoch: ``validation_area_under_roc``, ``train_loss``, ``validation_r2``."""
    value: float

    def reached(self, figures: Mapping[str, float]) -> bool:
        """Whether an epoch reaches ``value``: a loss has to be at most that, an accuracy at least."""
        found = figures.get(self.metric, math.nan)
        return found <= self.value if self.metric.endswith(SMALLER_IS_BETTER) else found >= self.value
