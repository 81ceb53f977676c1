"""Two well-known recommendation networks: embedding tables for ids, and numeric features.

Each takes ``input_shapes``, ``vocabularies`` and ``kinds`` by the names of the inputs, and ``num_classes``, and is
called with the inputs by name: ids (n, columns), tokens and sequences of ids (n, longest) with their masks, and
numbers (n, width).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from sparkdl.inputs.spec import mask_name
from sparkdl.models.networks import mlp

__all__ = ["DLRM", "RECOMMENDERS", "TwoTowers"]


class DLRM(nn.Module):
    """The deep learning recommendation model (Naumov et al., 2019, arXiv 1906.00091).

    A bottom network maps the numbers to a vector, and tables map each column of ids to one. A top network reads the dot
    products of all pairs of vectors, and the vector of the numbers.
    """

    def __init__(
        self,
        *,
        input_shapes: Mapping[str, Sequence[int]],
        vocabularies: Mapping[str, int],
        kinds: Mapping[str, str],
        num_classes: int,
        width: int = 16,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64, 32),
        sparse: bool = False,
    ) -> None:
        """``width``: that of all vectors; ``bottom`` and ``top``: hidden layers; ``sparse``: gradients of tables."""
        super().__init__()
        inputs = _Inputs(input_shapes, vocabularies, kinds)
        self.ids, self.numbers = _Ids(inputs, width, sparse=sparse), _Numbers(inputs)
        self.bottom = None
        if numbers := self.numbers.width:
            self.bottom = nn.Sequential(mlp(input_shape=[numbers], num_classes=width, hidden=bottom), nn.ReLU())
        vectors = self.ids.count + (self.bottom is not None)
        if vectors < 2:
            raise ValueError("dlrm needs at least two vectors for dot products; add `inputs` of ids, or numbers")
        below = torch.tril_indices(vectors, vectors, offset=-1)
        self.pairs: torch.Tensor
        self.register_buffer("pairs", below[0] * vectors + below[1])
        read = len(self.pairs) + width * (self.bottom is not None)
        self.top = mlp(input_shape=[read], num_classes=num_classes, hidden=top)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, num_classes)."""
        dense = [self.bottom(self.numbers(inputs))] if self.bottom is not None else []
        vectors = torch.stack([*dense, *self.ids(inputs)], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        answer: torch.Tensor = self.top(torch.cat([*dense, products.index_select(1, self.pairs)], dim=1))
        return answer


class TwoTowers(nn.Module):
    """A network for users and one for items; each returns a vector, and their dot product is the score of the pair.

    It returns ``logits`` (of the second of two classes; for regression, the dot product itself), ``user_vector`` and
    ``item_vector``. The best items for a user are those whose vectors have the largest dot products with the user's
    (Yi et al., 2019, "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations").
    """

    def __init__(
        self,
        *,
        input_shapes: Mapping[str, Sequence[int]],
        vocabularies: Mapping[str, int],
        kinds: Mapping[str, str],
        num_classes: int,
        user: Sequence[str],
        item: Sequence[str],
        width: int = 16,
        hidden: Sequence[int] = (64,),
        sparse: bool = False,
    ) -> None:
        """``user``, ``item``: the inputs of each tower; ``width``: that of vectors; ``hidden``: layers of a tower."""
        super().__init__()
        if sorted([*user, *item]) != sorted(kinds):
            raise ValueError(
                f"`user` ({', '.join(user)}) and `item` ({', '.join(item)}) must together name each of the inputs"
                f" {', '.join(kinds)} once"
            )
        if num_classes > 2:
            raise ValueError(f"two_towers returns one number, which can separate two classes, but not {num_classes}")
        inputs = _Inputs(input_shapes, vocabularies, kinds)
        self.user = _Tower(inputs.only(user), width, hidden, sparse=sparse)
        self.item = _Tower(inputs.only(item), width, hidden, sparse=sparse)
        self.num_classes = num_classes

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs by name; vectors are of shape (n, width)."""
        user, item = self.user(inputs), self.item(inputs)
        score = (user * item).sum(dim=1, keepdim=True)
        logits = score if self.num_classes == 1 else torch.cat([torch.zeros_like(score), score], dim=1)
        return {"logits": logits, "user_vector": user, "item_vector": item}


RECOMMENDERS: dict[str, Callable[..., nn.Module]] = {"dlrm": DLRM, "two_towers": TwoTowers}
"""The networks for named inputs, by their names in ``train.model``."""


class _Inputs(NamedTuple):
    """The properties of inputs, by name."""

    shapes: Mapping[str, Sequence[int]]
    vocabularies: Mapping[str, int]
    kinds: Mapping[str, str]

    def only(self, names: Sequence[str]) -> "_Inputs":
        return self._replace(kinds={name: self.kinds[name] for name in names})


class _Tower(nn.Module):
    """Maps its inputs to one vector."""

    def __init__(self, inputs: _Inputs, width: int, hidden: Sequence[int], *, sparse: bool) -> None:
        super().__init__()
        self.ids, self.numbers = _Ids(inputs, width, sparse=sparse), _Numbers(inputs)
        self.layers = mlp(input_shape=[width * self.ids.count + self.numbers.width], num_classes=width, hidden=hidden)

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        numbers = [self.numbers(inputs)] if self.numbers.width else []
        vector: torch.Tensor = self.layers(torch.cat([*self.ids(inputs), *numbers], dim=1))
        return vector


class _Ids(nn.Module):
    """An embedding table per input of ids: one vector per column; for a sequence, the mean over its ids."""

    def __init__(self, inputs: _Inputs, width: int, *, sparse: bool) -> None:
        super().__init__()
        names = [name for name in inputs.kinds if name in inputs.vocabularies]
        self.tables = nn.ModuleDict({name: _table(inputs.vocabularies[name], width, sparse=sparse) for name in names})
        self.count = sum(inputs.shapes[name][0] if inputs.kinds[name] == "ids" else 1 for name in names)
        """The number of vectors per row."""

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The vectors, each of shape (n, width)."""
        found: list[torch.Tensor] = []
        for name, table in self.tables.items():
            vectors = table(inputs[name])
            if mask_name(name) in inputs:
                there = inputs[mask_name(name)].unsqueeze(-1)
                found.append((vectors * there).sum(dim=1) / there.sum(dim=1))
            else:
                found += vectors.unbind(dim=1)
        return found


class _Numbers(nn.Module):
    """The numbers of all other inputs, concatenated."""

    def __init__(self, inputs: _Inputs) -> None:
        super().__init__()
        self.names = [name for name in inputs.kinds if name not in inputs.vocabularies]
        if other := [name for name in self.names if inputs.kinds[name] not in ("vector", "sparse")]:
            raise ValueError(
                f"it takes ids and numbers, and the input {other[0]!r} is of kind {inputs.kinds[other[0]]}"
            )
        self.width = sum(inputs.shapes[name][0] for name in self.names)

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([inputs[name] for name in self.names], dim=1)


def _table(rows: int, width: int, *, sparse: bool) -> nn.Embedding:
    """An embedding table with DLRM's initial values, which are small if there are many rows: rare ids matter little."""
    vectors = torch.empty(rows, width).uniform_(-(rows**-0.5), rows**-0.5)
    return nn.Embedding(rows, width, sparse=sparse, _weight=vectors)
