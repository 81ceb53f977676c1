"""A registered network whose files hold only adapters, and refer to the files of its base network.

Adapters are in the format of ``peft`` (https://huggingface.co/docs/peft/developer_guides/checkpoint). Scoring does not
need that package: it adds the adapters to the base's weights when it reads them.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from sparkdl.errors import ModelError
from sparkdl.storage import hash_file

__all__ = ["ADAPTERS_FILE", "BesideBase", "LowRank", "put_back"]

ADAPTERS_FILE = "adapter_model.safetensors"
"""The file of the adapters; the name is that of ``peft``."""


class LowRank(NamedTuple):
    """The low-rank matrix that is added to a weight: ``scale`` times B A."""

    a: str
    """The name of A among the adapters."""
    b: str
    scale: float
    transposed: bool
    """Whether its transpose is added, for weights that are stored as (inputs, outputs)."""

    def of(self, adapters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix, from the tensors in the adapters' file."""
        found = adapters[self.b].float() @ adapters[self.a].float()
        return (found.T if self.transposed else found) * self.scale


@dataclass(frozen=True)
class BesideBase:
    """The adapters of a network, and the base network to which they belong."""

    place: str
    """The base: a folder of safetensors files, or one such file, that driver and executors reach."""
    adapters: Mapping[str, torch.Tensor]
    """The tensors of the adapters, by the names that ``peft`` gives them."""
    added: Mapping[str, LowRank]
    """The low-rank matrices, by the name of the weight to which each is added."""
    whole: Mapping[str, str]
    """The names of weights that were trained completely, with their names among the adapters."""

    def take_out(self, tensors: Mapping[str, torch.Tensor], folder: Path) -> tuple[dict[str, torch.Tensor], Any]:
        """Write the adapters into a folder. Returns the other tensors that the base lacks, and where the rest is.

        ``tensors`` are those of the merged network. Runs on the driver. Raises :class:`ModelError` if the base lacks a
        weight to which adapters are added.
        """
        save_file({name: each.detach().cpu().clone() for name, each in self.adapters.items()}, folder / ADAPTERS_FILE)
        with _Files(self.place) as files:
            found = {name: files.find(name, each, self._added_to(name)) for name, each in tensors.items()}
            if missing := [name for name in self.added if found.get(name) is None]:
                raise ModelError(
                    f"the base {self.place} has no weight that equals the network's {missing[0]!r} without adapters;"
                    " remove train.adapters.registered"
                )
        in_base = {name: place for name, place in found.items() if place and name not in self.whole}
        described = {
            "place": str(Path(self.place).absolute()),
            "files": {
                name: hash_file(str(files.paths[name])) for name in sorted({file for file, _ in in_base.values()})
            },
            "tensors": {
                name: [*place, str(tensors[name].dtype).removeprefix("torch.")] for name, place in in_base.items()
            },
            "added": {name: each._asdict() for name, each in self.added.items()},
            "whole": dict(self.whole),
        }
        return {
            name: each for name, each in tensors.items() if name not in in_base and name not in self.whole
        }, described

    def _added_to(self, name: str) -> torch.Tensor | None:
        return self.added[name].of(self.adapters) if name in self.added else None


def put_back(described: Mapping[str, Any], folder: Path) -> dict[str, torch.Tensor]:
    """The inverse of :meth:`BesideBase.take_out`: the base's tensors with the adapters added. Runs anywhere.

    Raises :class:`ModelError` if the base is missing, or is not the one with which the adapters were trained.
    """
    tensors: dict[str, torch.Tensor] = {}
    adapters = load_file(folder / ADAPTERS_FILE)
    place = Path(described["place"])
    paths = {str(name): place if place.is_file() else place / str(name) for name in described["files"]}
    for name, path in paths.items():
        if not path.is_file():
            raise ModelError(f"the model needs a file of its base network, but {path} is missing; restore it there")
        if hash_file(str(path)) != described["files"][name]:
            raise ModelError(
                f"the model needs a file of its base network, but {path} has changed since training; restore the file"
            )
    for name, path in paths.items():
        with safe_open(path, framework="pt") as file:
            for ours, (own, theirs, dtype) in described["tensors"].items():
                if own == name:
                    tensors[ours] = file.get_tensor(theirs).to(getattr(torch, dtype))
    for name, added in described["added"].items():
        tensors[name] = tensors[name] + LowRank(**added).of(adapters).to(tensors[name].dtype)
    return tensors | {name: adapters[theirs] for name, theirs in described["whole"].items()}


class _Files:
    """The opened files of a base network."""

    def __init__(self, place: str) -> None:
        path = Path(place)
        found = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
        if not found:
            raise ModelError(f"the base {place} has no safetensors files; set the folder that has them")
        self.paths = {each.name: each for each in found}
        self._open: dict[str, Any] = {}
        self._opened = ExitStack()

    def __enter__(self) -> "_Files":
        try:
            for name, path in self.paths.items():
                self._open[name] = self._opened.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read the base: {error}") from None
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def find(self, name: str, value: torch.Tensor, added: torch.Tensor | None) -> tuple[str, str] | None:
        """The file and the name of the tensor that equals ``value`` after ``added`` was added to it; None if none does.

        In the files, names of a network's weights may have other prefixes.
        """
        for file, theirs in self._alike(name, value):
            found = self._open[file].get_tensor(theirs).to(value.dtype)
            same = torch.equal(found, value) if added is None else torch.allclose(found + added, value, atol=1e-5)
            if same:
                return file, theirs
        return None

    def _alike(self, name: str, value: torch.Tensor) -> Iterator[tuple[str, str]]:
        """Tensors of the same shape, in the order of similarity of their names."""
        shape = list(value.shape)
        alike = [
            (file, theirs)
            for file, opened in self._open.items()
            for theirs in opened.keys()  # noqa: SIM118 - it is no mapping
            if _common(name, theirs) and opened.get_slice(theirs).get_shape() == shape
        ]
        yield from sorted(alike, key=lambda each: -_common(name, each[1]))


def _common(one: str, other: str) -> int:
    """The number of equal parts at the end of two names."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return next(
        (number for number, (left, right) in enumerate(pairs) if left != right),
        min(one.count("."), other.count(".")) + 1,
    )
