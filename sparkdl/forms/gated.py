"""What making a form has in common for all models: it is measured beside the original, and a gate decides."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from sparkdl.data import Dataset
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import ModelError, SparkdlError
from sparkdl.forms.task_figure import TaskFigure, loss_of
from sparkdl.models import FORM_FILES, Form
from sparkdl.settings.compress import Compress, FormName
from sparkdl.storage import hash_file

__all__ = ["Candidate", "FormMaker"]

Answering = TypeVar("Answering")
"""What answers: a network, an ensemble."""


@dataclass(frozen=True)
class Candidate(Generic[Answering]):
    """A file that may become a form."""

    path: Path
    made: str
    """How, in words."""
    model: Answering
    rows_at_a_time: int | None = None


class FormMaker(ABC, Generic[Answering]):
    """Makes the forms of the model in a folder, one after another, into ``target``. Runs in a Spark task."""

    original: Answering
    replaces: tuple[str, ...]
    """The files of the original, of which forms have no need."""

    def __init__(self, folder: Path, dataset: Dataset, split: str, settings: Compress, target: Path) -> None:
        self._folder, self._dataset, self._split, self._settings = folder, dataset, split, settings
        self._target, self._kept = target, TemporaryDirectory()
        self._scratch = Path(self._kept.name)
        self._card = ModelCard.load(folder)
        self._own: TaskFigure | None = None

    @abstractmethod
    def candidates(self, name: FormName) -> Iterable[Candidate[Answering]]:
        """What may become the form, the best first. Raises :class:`ModelError` where there can be none."""

    @abstractmethod
    def measured(self, model: Answering) -> TaskFigure:
        """What a model reaches on the rows that are held out."""

    @abstractmethod
    def file_of(self, name: FormName) -> str:
        """How the form's file is called."""

    def make(self, name: FormName) -> dict[str, object]:
        """The ``form``, whose file is then among the others, or why it was ``refused``."""
        try:
            return {"form": self._made(name).model_dump()}
        except SparkdlError as error:
            return {"refused": str(error)}

    def _made(self, name: FormName) -> Form:
        """Raises :class:`ModelError` for one that cannot be, or that loses too much."""
        self._own = self._own or self.measured(self.original)
        own, allowed, refusals = self._own, self._settings.gate.lose, []
        for candidate in self.candidates(name):
            found = self.measured(candidate.model)
            lost = loss_of(own.name, own.value, found.value)
            if allowed is not None and not lost <= allowed:
                refusals.append((lost, found.value))
                continue
            file = self.file_of(name)
            path = Path(copyfile(candidate.path, self._target / file))
            return Form(
                file=None if file == FORM_FILES[name] else file,
                replaces=self.replaces,
                sha256=hash_file(str(path)),
                bytes=path.stat().st_size,
                original_bytes=sum((self._folder / each).stat().st_size for each in self.replaces),
                made=candidate.made,
                rows_at_a_time=candidate.rows_at_a_time,
                metric=f"{self._split}_{own.name}",
                figure=found.value,
                original_figure=own.value,
                rows=found.rows,
            )
        lost, value = min(refusals)
        raise ModelError(
            f"it loses too much: its {self._split}_{own.name} is {value:.4f}, the original's {own.value:.4f}, and"
            f" compress.gate.lose allows a loss of {allowed:g}"
        )
