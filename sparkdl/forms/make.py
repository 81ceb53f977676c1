"""The forms of a network, made and measured. Runs in a Spark task, which has the model's files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import torch
from pyspark import SparkFiles, TaskContext
from torch import nn

from sparkdl.cluster import limited_threads
from sparkdl.data import Batch, Dataset
from sparkdl.data.model_card import ModelCard
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ModelError, SparkdlError
from sparkdl.forms.int8 import quantised
from sparkdl.forms.onnx_export import export_onnx
from sparkdl.forms.task_figure import TaskFigure, loss_of, measure
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import mask_name
from sparkdl.inputs.tensors import Inputs, count_rows, like, sliced
from sparkdl.models import (
    FORM_FILES,
    NETWORK_FILE,
    Form,
    Network,
    OnnxNetwork,
    load_network,
    seconds_of_each,
    write_in_half,
)
from sparkdl.settings.compress import Compress, FormName
from sparkdl.settings.score import BATCH_SIZE
from sparkdl.storage import hash_file, upload_files

__all__ = ["make_forms"]

_PIECES = None, 32, 8
"""How many rows of a batch ONNX Runtime may be given at a time: what it computes of them should fit into a cache."""
_COMPARED_ROWS = 64
"""Real rows by which a network of ONNX is compared with the original."""


def make_forms(
    files: Sequence[tuple[str, str]], dataset: Dataset, split: str, settings: Compress, target: str
) -> list[str]:
    """Make the forms of a model's network, measure each beside it, and put those that may stay into ``target``.

    ``files`` are those of the model's folder, by their names there and among what Spark has brought here. Returns a
    line of JSON for each form: its ``name``, and the ``form``, or why it was ``refused``.
    """
    context = TaskContext.get()
    with limited_threads(context.cpus() if context else 1), TemporaryDirectory() as scratch:
        folder, made = Path(scratch, "model"), Path(scratch, "made")
        folder.mkdir()
        made.mkdir()
        for name, shipped in files:
            (folder / name).symlink_to(SparkFiles.get(shipped))
        maker = FormMaker(folder, dataset, split, settings, made)
        lines = [json.dumps({"name": name, **maker.make(name)}) for name in settings.forms]
        upload_files(target, made)
    return lines


@dataclass(frozen=True)
class Candidate:
    """A file that may become a form."""

    path: Path
    made: str
    """How, in words."""
    network: nn.Module
    rows_at_a_time: int | None = None


class FormMaker:
    """Makes the forms of the network in a folder, one after another."""

    def __init__(self, folder: Path, dataset: Dataset, split: str, settings: Compress, target: Path) -> None:
        self._folder, self._dataset, self._split, self._settings = folder, dataset, split, settings
        self._target, self._scratch = target, TemporaryDirectory()
        self._card = ModelCard.load(folder)
        self._network = load_network(folder / NETWORK_FILE)
        self._own: TaskFigure | None = None
        self._exported: Path | None = None

    def make(self, name: FormName) -> dict[str, object]:
        """The ``form``, whose file is then among the others, or why it was ``refused``."""
        try:
            return {"form": self._made(name).model_dump()}
        except SparkdlError as error:
            return {"refused": str(error)}

    def _made(self, name: FormName) -> Form:
        """Raises :class:`ModelError` for one that cannot be, or that loses too much."""
        self._own = self._own or self._measured(self._network)
        own, allowed, refusals = self._own, self._settings.gate.lose, []
        for candidate in self._candidates(name):
            found = self._measured(candidate.network)
            lost = loss_of(own.name, own.value, found.value)
            if allowed is not None and not lost <= allowed:
                refusals.append((lost, found.value))
                continue
            path = Path(copyfile(candidate.path, self._target / FORM_FILES[name]))
            return Form(
                sha256=hash_file(str(path)),
                bytes=path.stat().st_size,
                original_bytes=(self._folder / NETWORK_FILE).stat().st_size,
                made=candidate.made,
                rows_at_a_time=candidate.rows_at_a_time,
                metric=f"{self._split}_{own.name}",
                figure=found.value,
                original_figure=own.value,
                rows=found.rows,
            )
        lost, value = min(refusals)
        raise ModelError(
            f"it loses too much: {self._split}_{own.name} is {value:.4f}, and {own.value:.4f} of the original, of"
            f" which it may lose {allowed:g} (compress.gate.lose)"
        )

    def _candidates(self, name: FormName) -> Iterator[Candidate]:
        """What may become the form, the best first."""
        scratch = Path(self._scratch.name)
        match name:
            case "float16":
                path = write_in_half(self._folder / NETWORK_FILE, scratch / "half")
                yield Candidate(path, "weights in float16, computed with in float32", load_network(path))
            case "onnx":
                yield from self._fastest({self._as_onnx(): "for ONNX Runtime"})
            case "int8":
                wanted = self._settings.calibration_rows
                calibration = list(self._rows(wanted, shuffle=True)) if wanted else []
                yield from self._fastest(quantised(self._as_onnx(), scratch, calibration))

    def _fastest(self, files: Mapping[Path, str]) -> list[Candidate]:
        """Files of ONNX, which answer real rows the sooner the earlier they come, each by pieces of the best size."""
        rows = next(iter(self._rows(BATCH_SIZE)))
        tried = [
            Candidate(path, made, OnnxNetwork(path, rows_at_a_time=size), size)
            for path, made in files.items()
            for size in _PIECES
        ]
        seconds = seconds_of_each([candidate.network for candidate in tried], rows, within=5.0)
        best: dict[Path, Candidate] = {}
        for _, candidate in sorted(zip(seconds, tried, strict=True), key=lambda pair: pair[0]):
            best.setdefault(candidate.path, candidate)
        return list(best.values())

    def _as_onnx(self) -> Path:
        if self._exported is None:
            if not isinstance(self._network, Network):
                raise ModelError("the network is not exported: its own code builds it")
            path = Path(self._scratch.name, "exported.onnx")
            inputs = self._card.inputs
            rows = next(iter(self._rows(_COMPARED_ROWS)))
            ragged = [name for name, spec in inputs.items() if spec.is_ragged]
            lengths = [argument for name in ragged for argument in (name, mask_name(name))]
            sample = sample_inputs(inputs) if inputs else like(next(iter(self._rows(2))), torch.zeros_like)
            export_onnx(self._network, path, sample, rows, lengths=lengths)
            self._exported = path
        return self._exported

    def _measured(self, network: nn.Module) -> TaskFigure:
        return measure(network, self._card, self._batches(BATCH_SIZE))

    def _rows(self, count: int, *, shuffle: bool = False) -> Iterator[Inputs]:
        """So many rows of those that are held out, or all if there are fewer, in batches."""
        for batch in self._batches(min(count, BATCH_SIZE), shuffle=shuffle):
            rows = count_rows(batch.inputs)
            yield sliced(batch.inputs, slice(count))
            count -= rows
            if count <= 0:
                return

    def _batches(self, batch_size: int, *, shuffle: bool = False) -> Iterator[Batch]:
        return Loader(self._dataset, self._split, batch_size=batch_size, shuffle=shuffle).epoch(0)
