"""The forms of an ensemble of hashed meta-models: ``int8``. Runs in a Spark task, which has the model's files."""

from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.light_networks import LIGHT_NAME, bits_that_fit, files_it_replaces, open_light, write_light
from sparkdl.forms.gated import Candidate, FormMaker
from sparkdl.forms.task_figure import TaskFigure
from sparkdl.settings.compress import Compress, FormName

__all__ = ["EnsembleForms"]

_FIGURE = "precision_at_1"
_ASKED = 5
"""Classes that a shortlist must have at least."""


class EnsembleForms(FormMaker[Ensemble]):
    """Makes the form of the ensemble in a folder: with 2 bits a weight of the first layers where the gate allows it."""

    def __init__(self, folder: Path, dataset: Dataset, split: str, settings: Compress, target: Path) -> None:
        super().__init__(folder, dataset, split, settings, target)
        self.original = Ensemble.open(folder)
        self.replaces = files_it_replaces(self.original.card)

    @override
    def file_of(self, name: FormName) -> str:
        return LIGHT_NAME

    @override
    def candidates(self, name: FormName) -> Iterator[Candidate[Ensemble]]:
        if name != "int8":
            raise ModelError("an ensemble for very many classes has no such form; it has int8")
        card, ranker = self.original.card, self.original.ranker
        shortlist = max(ranker.card.candidates // 2, min(_ASKED, ranker.card.candidates)) if ranker else None
        fitting = bits_that_fit(card)
        if not fitting:
            width = [*card.hidden, card.buckets][0]
            raise ModelError(
                f"its first layers have {width} outputs, which at 2 or 4 bits each do not fill whole bytes"
            )
        for bits in fitting:
            path = self._scratch / f"{bits}.safetensors"
            write_light(self._folder, card, path, bits=bits, shortlist=shortlist)
            networks, lighter = open_light(path, card)
            made = f"first layers in {bits} bits a weight, those behind them in 8"
            if ranker:
                made += f"; a ranker in 8, for {shortlist} classes instead of {ranker.card.candidates}"
            yield Candidate(path, made, Ensemble(self._folder, card, networks, lighter))

    @override
    def measured(self, model: Ensemble) -> TaskFigure:
        (found,) = model.evaluate(self._dataset, self._split, k=1).values()
        return TaskFigure(_FIGURE, float(found.precision[0]), found.rows)
