"""Where a run into which faults are injected keeps what it writes."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunFiles"]


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, which are below one folder."""

    folder: Path

    @property
    def log(self) -> Path:
        """What the driver says."""
        return self.folder / "driver.log"

    @property
    def notes(self) -> Path:
        """The folder in which ranks note the rows of their batches."""
        return self.folder / "notes"

    @property
    def runs(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.folder / "runs"

    @property
    def spool(self) -> Path:
        """The folder in which records wait for MLflow."""
        return self.folder / "spool"

    @property
    def notice(self) -> Path:
        """The file that is made when the host is about to be taken away."""
        return self.folder / "notice"

    @property
    def result(self) -> Path:
        """What the driver writes when the run has ended."""
        return self.folder / "result.json"

    def told(self, text: str) -> int:
        """How often the driver has said so."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0
