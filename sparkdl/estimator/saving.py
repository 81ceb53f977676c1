"""How estimators and models are saved: pyspark.ml's metadata, the format's version, and a model's files beside it."""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from typing_extensions import override

from sparkdl.errors import ConfigError, ModelError
from sparkdl.estimator.summary import TrainingSummary
from sparkdl.sessions import is_remote, ml_context
from sparkdl.storage import download_files, join, upload_files
from sparkdl.tracking import download_whole

if TYPE_CHECKING:
    from sparkdl.estimator.fitted import FittedModel

__all__ = ["EstimatorReader", "EstimatorWriter", "ModelReader", "ModelWriter"]

FORMAT = 3
"""The version of the saved format. Format 1 had neither a version nor a summary; format 2 had no means."""
KEY = "sparkdl"
"""The key of our own entries in pyspark.ml's metadata."""


class _Writer(MLWriter):
    """Overwrites through Spark Connect, too, where PySpark's writers overwrite only PySpark's own stages."""

    @override
    def _handleOverwrite(self, path: str) -> None:
        if is_remote(self.sparkSession):
            from pyspark.ml.connect.readwrite import RemoteMLWriter  # type: ignore[import-not-found]

            RemoteMLWriter.handleOverwrite(path, True)
        else:
            super()._handleOverwrite(path)  # type: ignore[no-untyped-call]


class EstimatorWriter(_Writer, DefaultParamsWriter):
    """Writes the parameters, as pyspark.ml does, and the version of the format.

    Raises :class:`ConfigError`, before anything is overwritten, for a network, a loss or an optimizer that is a class
    or a function and not a name.
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__(estimator)  # type: ignore[no-untyped-call]
        for param in estimator.params:
            if estimator.isDefined(param) and callable(value := estimator.getOrDefault(param)):
                raise ConfigError(
                    f"{param.name} is the {'class' if isinstance(value, type) else 'function'}"
                    f" {getattr(value, '__qualname__', type(value).__name__)}, which cannot be saved; set its import"
                    " path instead, such as 'yourpackage.networks:Net'"
                )

    @override
    def saveImpl(self, path: str) -> None:
        DefaultParamsWriter.saveMetadata(
            self.instance, path, ml_context(self.sparkSession), extraMetadata={KEY: {"format": FORMAT}}
        )


class EstimatorReader(DefaultParamsReader[Any]):
    """Reads what :class:`EstimatorWriter` wrote. Raises :class:`ModelError` for a newer format."""

    @override
    def load(self, path: str) -> Any:
        _ours(path, DefaultParamsReader.loadMetadata(path, ml_context(self.sparkSession)))
        return super().load(path)


class ModelWriter(_Writer):
    """Writes the parameters, the training summary, and a copy of the model."""

    def __init__(self, model: "FittedModel") -> None:
        super().__init__()
        self.model = model

    @override
    def saveImpl(self, path: str) -> None:
        summary = self.model.trainingSummary
        ours = {
            "format": FORMAT,
            "label_type": self.model.label_type,
            "means": self.model.means,
            "summary": summary and asdict(summary),
        }
        DefaultParamsWriter.saveMetadata(self.model, path, ml_context(self.sparkSession), extraMetadata={KEY: ours})
        upload_files(join(path, "model"), download_whole(self.model.model_uri, self.model.tracking))


class ModelReader(MLReader["FittedModel"]):
    """Reads what :class:`ModelWriter` wrote. Raises :class:`ModelError` for a newer format."""

    def __init__(self, cls: "type[FittedModel]") -> None:
        super().__init__()
        self.cls = cls

    @override
    def load(self, path: str) -> "FittedModel":
        metadata = DefaultParamsReader.loadMetadata(path, ml_context(self.sparkSession))
        ours = _ours(path, metadata)
        folder = TemporaryDirectory(prefix="sparkdl-loaded-")  # a copy, as the model may be saved over ``path`` later
        _loaded.append(folder)
        download_files(join(path, "model"), Path(folder.name, "model"))
        summary = TrainingSummary(**ours["summary"]) if ours.get("summary") else None
        model = self.cls(
            f"{folder.name}/model",
            label_type=ours.get("label_type"),
            means=ours.get("means"),
            summary=summary,
        )
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


_loaded: list[TemporaryDirectory[str]] = []  # removed when the driver's Python ends


def _ours(path: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Our own entries of the metadata. Raises :class:`ModelError` for a newer format."""
    ours: dict[str, Any] = metadata.get(KEY, {"format": 1})
    if ours["format"] > FORMAT:
        raise ModelError(
            f"{path} was saved in format {ours['format']} by a newer version of sparkdl, and this one reads up to"
            f" {FORMAT}; load it with that version, or save it again with this one"
        )
    return ours
