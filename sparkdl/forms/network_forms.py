"""The forms of a network. Runs in a Spark task, which has the model's files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn
from typing_extensions import override

from sparkdl.data import Batch, Dataset
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ModelError
from sparkdl.forms.gated import Candidate, FormMaker
from sparkdl.forms.int8 import quantised
from sparkdl.forms.onnx_export import export_onnx
from sparkdl.forms.task_figure import TaskFigure, measure
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import mask_name
from sparkdl.inputs.tensors import Inputs, count_rows, like, sliced
from sparkdl.models import (
    FORM_FILES,
    NETWORK_FILE,
    Network,
    OnnxNetwork,
    load_network,
    seconds_of_each,
    write_in_half,
    write_in_int8,
)
from sparkdl.settings.compress import Compress, FormName
from sparkdl.settings.score import BATCH_SIZE

__all__ = ["NetworkForms"]

_PIECES = None, 32, 8
"""How many rows of a batch ONNX Runtime may be given at a time: what it computes of them should fit into a cache."""
_COMPARED_ROWS = 64
"""Real rows by which a network of ONNX is compared with the original."""


class NetworkForms(FormMaker[nn.Module]):
    """Makes the forms of the network in a folder, one after another."""

    replaces = (NETWORK_FILE,)

    def __init__(self, folder: Path, dataset: Dataset, split: str, settings: Compress, target: Path) -> None:
        super().__init__(folder, dataset, split, settings, target)
        self.original = load_network(folder / NETWORK_FILE)
        self._exported: Path | None = None

    @override
    def file_of(self, name: FormName) -> str:
        return FORM_FILES[name]

    @override
    def candidates(self, name: FormName) -> Iterator[Candidate[nn.Module]]:
        """What may become the form, the best first."""
        scratch = self._scratch
        match name:
            case "float16":
                path = write_in_half(self._folder / NETWORK_FILE, scratch / "half")
                yield Candidate(path, "weights in float16, computed with in float32", load_network(path))
            case "int8_weights":
                path = write_in_int8(self._folder / NETWORK_FILE, scratch / "int8_weights")
                yield Candidate(path, "weights in int8, computed with in float32", load_network(path))
            case "onnx":
                yield from self._fastest({self._as_onnx(): "for ONNX Runtime"})
            case "int8":
                wanted = self._settings.calibration_rows
                calibration = list(self._rows(wanted, shuffle=True)) if wanted else []
                yield from self._fastest(quantised(self._as_onnx(), scratch, calibration))

    def _fastest(self, files: Mapping[Path, str]) -> list[Candidate[nn.Module]]:
        """Files of ONNX, which answer real rows the sooner the earlier they come, each by pieces of the best size."""
        rows = next(iter(self._rows(BATCH_SIZE)))
        tried: list[Candidate[nn.Module]] = [
            Candidate(path, made, OnnxNetwork(path, rows_at_a_time=size), size)
            for path, made in files.items()
            for size in _PIECES
        ]
        seconds = seconds_of_each([candidate.model for candidate in tried], rows, within=5.0)
        best: dict[Path, Candidate[nn.Module]] = {}
        for _, candidate in sorted(zip(seconds, tried, strict=True), key=lambda pair: pair[0]):
            best.setdefault(candidate.path, candidate)
        return list(best.values())

    def _as_onnx(self) -> Path:
        if self._exported is None:
            if not isinstance(self.original, Network):
                raise ModelError("the network is not exported: its own code builds it")
            path = self._scratch / "exported.onnx"
            inputs = self._card.inputs
            rows = next(iter(self._rows(_COMPARED_ROWS)))
            ragged = [name for name, spec in inputs.items() if spec.is_ragged]
            lengths = [argument for name in ragged for argument in (name, mask_name(name))]
            sample = sample_inputs(inputs) if inputs else like(next(iter(self._rows(2))), torch.zeros_like)
            export_onnx(self.original, path, sample, rows, lengths=lengths)
            self._exported = path
        return self._exported

    @override
    def measured(self, model: nn.Module) -> TaskFigure:
        return measure(model, self._card, self._batches(BATCH_SIZE))

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
