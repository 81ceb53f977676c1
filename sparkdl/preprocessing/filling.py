"""A stage that fills in missing numbers of vectors."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from sparkdl.preprocessing.scaling import vectors_of
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, whole

__all__ = ["FillPlaces"]


@dataclass(frozen=True)
class FillPlaces(FittedStage):
    """An estimator's ``missing``: replaces NaN, and the number that means a missing value, by the element's mean."""

    column: str
    stands_for_none: float
    means: tuple[float, ...]

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        numbers = whole(vectors_of(columns, self.column, len(self.means))).astype(np.float32)
        absent = np.isnan(numbers) | (numbers == np.float32(self.stands_for_none))
        return {self.column: np.where(absent, np.array(self.means, np.float32), numbers)}
