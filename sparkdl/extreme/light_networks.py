"""An ensemble in fewer bits, its form ``int8``: one safetensors file that replaces those of repetitions and ranker.

The first layers, nearly all of the bytes, have 2 or 4 bits per weight, and a scale and an offset per feature, as
quantised embedding tables do (Guan et al., 2019, arXiv 1911.02079). The later layers have 8 bits per weight and a scale
per output, and are multiplied as integers with activations that are rounded row by row; so are the ranker's
classifiers, with a scale per class. The shortlist may also be shorter than the one that the ranker was trained for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparkdl.data import SparseBatch
from sparkdl.errors import ModelError
from sparkdl.extreme.ensemble_card import EnsembleCard
from sparkdl.extreme.hashing import Buckets
from sparkdl.extreme.ranker import RANKER_NAME, Classifiers, Ranker
from sparkdl.extreme.repetitions import BUCKETS, open_weights, rows_of_first_layer, weights_name
from sparkdl.extreme.stored_networks import buckets_of, hashed

__all__ = ["LIGHT_NAME", "LightNetworks", "bits_that_fit", "files_it_replaces", "open_light", "write_light"]

LIGHT_NAME = "int8.safetensors"
BITS = 2, 4
"""Allowed bits per weight of a first layer."""
_LARGEST_WEIGHT = 127
_LARGEST_VALUE = 127
"""Of 7 bits: two products of 7 and 8 bits fit into 16, in which processors without VNNI add them up."""
_BITS, _SHORTLIST = "bits", "shortlist"
_RANKER = "ranker"


class Layer(NamedTuple):
    """One layer after the first one, of one repetition."""

    weight: Any
    """The weight, packed for oneDNN's matrix product."""
    scales: torch.Tensor
    """The scales of outputs, float32 of shape (outputs,)."""
    bias: torch.Tensor
    """float32 of shape (outputs,)."""


class LightNetworks:
    """The networks of all repetitions. Runs on the driver or in a task.

    Raises :class:`ModelError` for tensors of other shapes than in the card, KeyError for missing tensors.
    """

    def __init__(self, card: EnsembleCard, tensors: dict[str, torch.Tensor], *, bits: int) -> None:
        self._card, self._bits = card, bits
        self._repetitions = tuple(sorted(card.repetitions))
        self._outputs = [*card.hidden, card.buckets]
        buckets: list[Buckets] = []
        self._tables: list[torch.Tensor] = []
        self._biases: list[torch.Tensor] = []
        self._layers: list[list[Layer]] = []
        for repetition in self._repetitions:
            own = _with_prefix(tensors, str(repetition))
            buckets.append(buckets_of(card, repetition, own.get(BUCKETS)))
            width = _packed_width(self._outputs[0], bits)
            rows = card.hashed_features or card.width
            self._tables.append(_checked(own["table"], torch.uint8, (rows, width)))
            self._biases.append(_checked(own["bias.0"], torch.float16, (self._outputs[0],)).float())
            self._layers.append([self._layer(own, number) for number in range(1, len(self._outputs))])
        self.buckets: Sequence[Buckets] = buckets
        """The mapping from class to bucket of each repetition."""

    def _layer(self, own: dict[str, torch.Tensor], number: int) -> Layer:
        inputs, outputs = self._outputs[number - 1], self._outputs[number]
        weight = _checked(own[f"weight.{number}"], torch.int8, (outputs, inputs))
        return Layer(
            torch.ops.onednn.qlinear_prepack(weight, None),
            _checked(own[f"scale.{number}"], torch.float32, (outputs,)),
            _checked(own[f"bias.{number}"], torch.float16, (outputs,)).float(),
        )

    @torch.no_grad()
    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (repetitions, rows, buckets), float32."""
        found = torch.empty(len(self._repetitions), len(batch.offsets) - 1, self._card.buckets)
        for place, repetition in enumerate(self._repetitions):
            rows = hashed(batch, self._card.feature_hash(repetition))
            values = self._first_layer(self._tables[place], rows).add_(self._biases[place])
            for number, layer in enumerate(self._layers[place], start=1):
                is_last = number == len(self._layers[place])
                values = _multiplied(values.relu_(), layer, out=found[place] if is_last else None)
            if not self._layers[place]:
                found[place] = values
        return found

    def _first_layer(self, table: torch.Tensor, batch: SparseBatch) -> torch.Tensor:
        kernel = getattr(torch.ops.quantized, f"embedding_bag_{self._bits}bit_rowwise_offsets")
        sums: torch.Tensor = kernel(
            table, batch.indices, batch.offsets, per_sample_weights=batch.values, include_last_offset=True
        )
        return sums


def _multiplied(values: torch.Tensor, layer: Layer, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A layer's outputs for non-negative values (rows, inputs), each row of which is quantised by its own maximum."""
    steps = values.amax(1, keepdim=True).div_(_LARGEST_VALUE).clamp_(min=torch.finfo(torch.float32).tiny)
    whole = values.div_(steps).round_().to(torch.uint8)
    no_offset = torch.zeros(len(layer.scales), dtype=torch.int32)
    products = torch.ops.onednn.qlinear_pointwise(
        whole, 1.0, 0, layer.weight, layer.scales, no_offset, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return torch.addcmul(layer.bias, products, steps, out=out)


def bits_that_fit(card: EnsembleCard) -> tuple[int, ...]:
    """The allowed bits per weight of the first layers, so that a feature's weights fill whole bytes."""
    outputs = [*card.hidden, card.buckets][0]
    return tuple(bits for bits in BITS if outputs * bits % 8 == 0)


def write_light(folder: Path, card: EnsembleCard, path: Path, *, bits: int, shortlist: int | None) -> None:
    """Write the ensemble of a folder in fewer bits. Runs in a task.

    ``bits`` is one of :func:`bits_that_fit`; ``shortlist`` is the number of classes that the ranker orders, None
    without a ranker. Raises :class:`ModelError` for files that are missing or altered.
    """
    tensors: dict[str, torch.Tensor] = {}
    for repetition, sha256 in card.repetitions.items():
        state = open_weights(folder / weights_name(repetition), sha256=sha256)
        tensors |= {f"{repetition}.{name}": tensor for name, tensor in _lightened(state, bits)}
    if card.ranker:
        stored = open_weights(folder / RANKER_NAME, sha256=card.ranker.sha256)
        tensors |= {f"{_RANKER}.{name}": tensor for name, tensor in _light_classifiers(stored).items()}
    save_file(tensors, path, metadata={_BITS: str(bits), _SHORTLIST: str(shortlist or 0)})


def open_light(path: Path, card: EnsembleCard) -> tuple[LightNetworks, Ranker | None]:
    """The networks and the ranker in a file that :func:`write_light` has written, mapped into memory.

    Raises :class:`ModelError` for a file that is damaged or does not fit the card.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            said = file.metadata() or {}
        bits, shortlist = int(said[_BITS]), int(said[_SHORTLIST])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"cannot read the weights {path}: {error}") from None
    if bits not in BITS:
        raise ModelError(f"{path} has {bits} bits a weight; there are forms of {BITS[0]} and {BITS[1]}")
    networks = LightNetworks(card, tensors, bits=bits)
    if card.ranker is None:
        return networks, None
    own = _with_prefix(tensors, _RANKER)
    classifiers = Classifiers.from_tensors(own)
    if shortlist < 1 or not classifiers.fit(card.width, card.labels.classes, values=np.int8):
        raise ModelError(f"the ranker in {path} is not for {card.width} features and {card.labels.classes} classes")
    scales = _checked(own["scales"], torch.float32, (card.labels.classes,)).numpy()
    shorter = card.ranker.model_copy(update={"candidates": shortlist})
    return networks, Ranker(shorter, classifiers, width=card.width, scales=scales)


def files_it_replaces(card: EnsembleCard) -> tuple[str, ...]:
    """The files of the ensemble's weights, which the form does not need."""
    return (*map(weights_name, sorted(card.repetitions)), *([RANKER_NAME] if card.ranker else []))


def _lightened(state: dict[str, torch.Tensor], bits: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one repetition."""
    pack = getattr(torch.ops.quantized, f"embedding_bag_{bits}bit_prepack")
    for name, tensor in state.items():
        if name == "table":
            yield name, torch.cat([pack(rows) for rows in rows_of_first_layer(state)])
        elif name.startswith("weight."):
            whole, scales = _in_whole_numbers(tensor.float().t().contiguous())
            yield name, whole
            yield name.replace("weight", "scale"), scales
        else:
            yield name, tensor


def _light_classifiers(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The ranker's tensors: weights of 8 bits, and a scale for each class."""
    classifiers = Classifiers.from_tensors(stored)
    lengths, sizes = np.diff(classifiers.ends), np.abs(classifiers.values)
    largest = np.zeros(len(lengths), np.float32)
    some = lengths > 0  # for a class without weights, reduceat would return the next class's
    largest[some] = np.maximum.reduceat(sizes, classifiers.ends[:-1][some])
    scales = np.where(some, largest / _LARGEST_WEIGHT, 1).astype(np.float32)
    whole = np.rint(classifiers.values / np.repeat(scales, lengths)).astype(np.int8)
    return {**classifiers._replace(values=whole).to_tensors(), "scales": torch.from_numpy(scales)}


def _in_whole_numbers(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight (outputs, inputs) in 8 bits, and the scale of each output."""
    scales = weight.abs().amax(1).div(_LARGEST_WEIGHT).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _packed_width(outputs: int, bits: int) -> int:
    """The bytes of a feature: its weights, and scale and offset in float16."""
    return outputs * bits // 8 + 4


def _with_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(f"{prefix}."): each for name, each in tensors.items() if name.startswith(f"{prefix}.")}


def _checked(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor after checking its type and shape, because kernels do not check them."""
    if tensor.dtype != dtype or tensor.shape != shape:
        raise ModelError(
            f"a tensor of the form is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtype} of shape {shape}"
        )
    return tensor
