"""A registered model over a DataFrame, or over a few rows in memory."""

from sparkdl.scoring.dataframe import score
from sparkdl.scoring.predictor import Predictor

__all__ = ["Predictor", "score"]
