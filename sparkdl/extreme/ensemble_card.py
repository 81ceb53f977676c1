"""What an ensemble says of itself: the file beside its weights. Runs anywhere."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkdl.data.card import LabelsFile
from sparkdl.errors import ModelError
from sparkdl.extreme.hashing import BucketHash, Family, FeatureHash
from sparkdl.extreme.ranker import RankerCard
from sparkdl.settings.section import Positive

__all__ = ["ENSEMBLE_NAME", "EnsembleCard"]

ENSEMBLE_NAME = "ensemble.json"


class EnsembleCard(BaseModel):
    """What an ensemble is made of: everything that decides an answer but the weights and the names of the classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    width: Positive
    """Features of a row."""
    hashed_features: Positive | None = None
    """Columns that each repetition hashes them to, if it does."""
    labels: LabelsFile
    hidden: tuple[Positive, ...]
    buckets: Positive
    hash_family: Family
    seed: int
    """Of the hash functions."""
    loss: Literal["softmax", "binary"]
    asked: Positive
    """How many repetitions were to be trained."""
    repetitions: dict[int, str]
    """Those that were: number to SHA-256 of the weights."""
    ranker: RankerCard | None = None
    """What orders the likeliest classes anew."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The repetitions that were lost."""
        return tuple(sorted(set(range(self.asked)) - set(self.repetitions)))

    def bucket_hash(self, repetition: int) -> BucketHash:
        """The hash function of one repetition that has no table of buckets."""
        return BucketHash(self.buckets, seed=self.seed, repetition=repetition, family=self.hash_family)

    def feature_hash(self, repetition: int) -> FeatureHash | None:
        """What one repetition hashes features with, if it does."""
        return FeatureHash(self.hashed_features, self.seed, repetition) if self.hashed_features else None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it. Runs anywhere; raises :class:`ModelError` if there is no valid one."""
        try:
            return cls.model_validate_json((folder / ENSEMBLE_NAME).read_bytes())
        except OSError as error:
            raise ModelError(f"the ensemble in {folder} has no readable {ENSEMBLE_NAME}: {error.strerror}") from None
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the file as a whole"
            raise ModelError(
                f"{folder / ENSEMBLE_NAME} does not describe an ensemble: {key}: {problem['msg']}"
            ) from None
