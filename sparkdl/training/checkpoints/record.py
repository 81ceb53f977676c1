"""The record of a run, written at its start, from which it can be resumed later. Runs on the driver."""

import hashlib
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ConfigError
from sparkdl.settings import Section, Train
from sparkdl.storage import join, list_folder
from sparkdl.training.checkpoints.record_file import load_record, save_record

__all__ = ["RunRecord", "find_run", "parts_of", "recipe_of"]

log = logging.getLogger(__name__)

NAME = "run.json"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""A memory address in a ``repr``, which differs between processes."""
FREE = {"dataset", "run_dir", "task", "outputs", "epochs", "target", "patience", "resume", "start_from"}
FREE |= {"adapters.registered", "checkpoint_minutes", "checkpoint_steps", "keep_last", "keep_best", "strategy.shard"}
"""Settings that may change when a run is resumed: they do not affect what was learned so far."""


@dataclass(frozen=True)
class RunRecord:
    """The record of one run, which is kept beside its checkpoints."""

    run_id: str
    dataset: str
    """The dataset's digest."""
    recipe: dict[str, str]
    reference: int
    """The number of ranks that the learning rate and the batch size are meant for."""
    epochs: int
    finished: bool = False
    parts: str = ""
    """A digest of network, loss and optimizer, which shows when a callable makes different ones than before."""
    begun: float = 0.0
    """When the run was started or last resumed, in seconds since 1970 by the driver's clock."""

    def save(self, folder: str) -> None:
        """Write it into the run's folder. Raises :class:`CheckpointError` when the folder cannot be written."""
        save_record(self, folder, NAME)

    @classmethod
    def load(cls, folder: str) -> "RunRecord":
        """Read a record. Raises :class:`ConfigError` if there is none, :class:`CheckpointError` if storage fails."""
        return load_record(cls, folder, NAME, of="run")

    def check(self, dataset: Dataset, settings: Train, parts: str, *, any_strategy: bool = False) -> None:
        """Raise :class:`ConfigError` unless the run can be resumed with this dataset, these settings and these parts.

        With ``any_strategy``, the strategy may change: the run then goes on from the consensus.
        """
        if self.dataset != dataset.digest:
            raise ConfigError(
                f"the run {self.run_id} was trained on a dataset with another digest than {dataset.path}; continue it"
                " with its own dataset, or start a new run"
            )
        if self.finished and settings.epochs <= self.epochs:
            raise ConfigError(
                f"the run {self.run_id} has finished its {self.epochs} epochs; raise train.epochs to go on, or start a"
                " new run"
            )
        now = recipe_of(settings)
        then = _defaults_beside(settings) | self.recipe  # keys that this version has added
        changed = [
            f"train.{key} was {then.get(key, 'not there')} and is {now.get(key, 'not there')}"
            for key in sorted((then.keys() | now.keys()) - FREE)
            if then.get(key) != now.get(key) and not (any_strategy and key.partition(".")[0] == "strategy")
        ]
        if changed:
            raise ConfigError(
                f"the run {self.run_id} cannot be continued with another recipe: {'; '.join(changed)}. Set them back,"
                " or start a new run from its model (train.start_from)"
            )
        if self.parts and self.parts != parts:
            raise ConfigError(
                f"the run {self.run_id} cannot be continued: train.model, train.loss or train.optimizer makes something"
                " else than it did then (other layers, sizes or class weights). Change it back, or start a new run"
            )


def find_run(dataset: Dataset, settings: Train, parts: str) -> RunRecord | None:
    """The run that ``train.resume`` names; with ``auto``, the newest unfinished run, or None.

    ``parts`` is the result of :func:`parts_of`.

    Raises :class:`ConfigError` for a run that does not exist or does not fit.
    """
    if settings.resume is None:
        return None
    if settings.resume != "auto":
        record = RunRecord.load(f"{settings.run_dir}/{settings.resume}")
        record.check(dataset, settings, parts, any_strategy=True)
        return _told(record, settings)
    unfinished = []
    for entry in list_folder(settings.run_dir):
        if entry.is_folder:
            with suppress(ConfigError):
                record = RunRecord.load(join(settings.run_dir, entry.name))
                record.check(dataset, settings, parts)
                unfinished += [] if record.finished else [record]
    return _told(max(unfinished, key=lambda record: record.begun), settings) if unfinished else None


def recipe_of(settings: Train) -> dict[str, str]:
    """The settings that affect the weights, by key, as text; a section of several kinds has an entry for its kind."""
    recipe: dict[str, str] = {}
    for key, value in settings:
        if key in FREE:
            continue
        if isinstance(value, Section):
            keys = value.model_dump()
            recipe |= {key: keys.pop("kind", "given")} | {
                f"{key}.{name}": _text(option) for name, option in keys.items() if f"{key}.{name}" not in FREE
            }
        else:
            recipe[key] = _text(value)
    return recipe


def _defaults_beside(settings: Train) -> dict[str, str]:
    """The recipe with all keys at their defaults, except the kinds of sections, which are those of ``settings``."""
    sections = {key: value for key, value in settings if isinstance(value, Section) and key not in FREE}
    kinds = {key: kind for key, section in sections.items() if (kind := section.model_dump().get("kind"))}
    # Some kinds are valid only with several epochs; their number is no part of the recipe.
    return recipe_of(Train(**kinds, epochs=settings.epochs + 1))


def parts_of(model: nn.Module, settings: Train) -> str:
    """A digest of the network without its weights, and of loss and optimizer as far as they can be described."""
    sizes = [(name, tuple(weight.shape)) for name, weight in model.state_dict().items()]
    parts = [_described(model), sizes, _described(settings.loss), _described(settings.optimizer)]
    if isinstance(settings.loss, nn.Module):
        parts.append([_described(buffer) for buffer in settings.loss.buffers()])
    return hashlib.sha256(str(parts).encode()).hexdigest()


def _described(value: Any) -> str:
    """A description that is the same in every process; functions are described by their names."""
    if isinstance(value, partial):
        return f"{_described(value.func)}({_described(value.args)}, {_described(value.keywords)})"
    if isinstance(value, dict):
        return str({key: _described(part) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return str([_described(part) for part in value])
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, Callable) and not isinstance(value, nn.Module):  # type: ignore[arg-type]
        return _text(value)
    return ADDRESS.sub("", str(value))


def _told(record: RunRecord, settings: Train) -> RunRecord:
    log.info("continuing run %s, begun for %d epochs, up to epoch %d", record.run_id, record.epochs, settings.epochs)
    return record


def _text(value: Any) -> str:
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return ADDRESS.sub("", str(value))
