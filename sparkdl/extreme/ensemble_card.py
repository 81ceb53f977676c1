"""The description of an ensemble, a file beside its weights. Runs anywhere."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkdl.data.card_parts import LabelsFile
from sparkdl.errors import ModelError
from sparkdl.extreme.hashing import BucketHash, Family, FeatureHash
from sparkdl.extreme.ranker import RankerCard
from sparkdl.settings.section import Positive

__all__ = ["ENSEMBLE_NAME", "EnsembleCard"]

ENSEMBLE_NAME = "ensemble.json"


class EnsembleCard(BaseModel):
    """Describes an ensemble: all that determines predictions, except the weights and the names of classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    width: Positive
    """Features of a row."""
    hashed_features: Positive | None = None
    """Columns to which each repetition hashes features; None without hashing."""
    labels: LabelsFile
    hidden: tuple[Positive, ...]
    buckets: Positive
    hash_family: Family
    seed: int
    """The seed of the hash functions."""
    loss: Literal["softmax", "binary"]
    asked: Positive
    """The number of repetitions that were to be trained."""
    repetitions: dict[int, str]
    """The SHA-256 of the weights of each trained repetition, by its number."""
    ranker: RankerCard | None = None
    """The ranker, if there is one."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The repetitions that were lost."""
        return tuple(sorted(set(range(self.asked)) - set(self.repetitions)))

    def bucket_hash(self, repetition: int) -> BucketHash:
        """The hash function of a repetition without a table of buckets."""
        return BucketHash(self.buckets, seed=self.seed, repetition=repetition, family=self.hash_family)

    def feature_hash(self, repetition: int) -> FeatureHash | None:
        """The hash function for features of one repetition, if it hashes them."""
        return FeatureHash(self.hashed_features, self.seed, repetition) if self.hashed_features else None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a card. Runs anywhere. Raises :class:`ModelError` if there is no valid one."""
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
