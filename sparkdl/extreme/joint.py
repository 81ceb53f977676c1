"""An inverted index that finds likely classes at a cost that does not grow with their number.

A bucket of one repetition holds K/B classes: too many, if there are many. So a few repetitions are joined: the class k
lies in the joint bucket (h_1(k), ..., h_g(k)), and there are enough of these that one holds a class or none. Where the
best buckets of each of the g repetitions meet, the classes are both few and likely. Several such groups of repetitions
look at the same time, so that a class which one repetition does not see is found all the same.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sparkdl.extreme.hashing import BucketHash, table

__all__ = ["Found", "JointBuckets"]

GROUPS = 8
"""The most groups of repetitions that look. On 9,524 held-out training rows of WordNet (R = 16, B = 512) 5 groups with
36 lookups each lost 0.18 points of P@1, and 8 with 16 each, which take as long, 0.07."""
LOOKUPS = 128
"""Joint buckets that all groups together look up for a row, about: groups x (best buckets of a repetition)^g."""
SLOTS_PER_CLASS = 2
"""Where there are many more joint buckets than classes, several share a slot. That costs a score for each false find,
and no wrong answer."""
FEWEST_SLOTS = 1 << 20
"""So few cost next to nothing, and joint buckets may have one each."""


class Found(NamedTuple):
    """Pairs of a row and a class, in the order of rows; a class may come once from each group."""

    row: torch.Tensor
    """int64."""
    number: torch.Tensor
    """int64: the class."""


class JointBuckets:
    """Classes by their joint buckets, for ``num_classes`` classes on a device.

    It takes some 5 bytes for each slot and 4 for each class, in each group.
    """

    def __init__(self, hashes: Sequence[BucketHash], num_classes: int, device: torch.device) -> None:
        self.num_buckets = hashes[0].num_buckets
        needed = math.ceil(math.log(max(num_classes, 2)) / math.log(self.num_buckets) - 1e-9)
        self.joined = min(max(needed, 1), len(hashes))
        """How many repetitions a group has."""
        self.groups = min(GROUPS, len(hashes) // self.joined)
        self.hashes = tuple(hashes[: self.groups * self.joined])
        self.num_classes = num_classes
        enough = max(SLOTS_PER_CLASS << (num_classes - 1).bit_length(), FEWEST_SLOTS)
        self.joint_buckets = int(self.num_buckets**self.joined)
        self.slots = min(self.joint_buckets, enough)
        self.device = device

    def found_by_chance(self, buckets: int) -> float:
        """How many classes a row is expected to find if its best buckets are random ones."""
        return self.groups * float(buckets**self.joined) * self.num_classes / self.slots

    @property
    def usual_buckets(self) -> int:
        """How many best buckets of a repetition make for :data:`LOOKUPS`."""
        return min(round(float((LOOKUPS / self.groups) ** (1 / self.joined))), self.num_buckets)

    @cached_property
    def index(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whether a slot has a class (uint8), where its classes begin, and the classes in the order of their slots."""
        of_classes = torch.from_numpy(table(self.hashes, self.num_classes)).to(self.device)
        buckets = of_classes.unflatten(0, (self.groups, self.joined)).unbind(1)
        slots = self._slots([each.t()[..., None] for each in buckets]).view(self.num_classes, -1).t().flatten()
        sizes = slots.bincount(minlength=self.groups * self.slots)
        starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
        classes = slots.argsort(stable=True) % self.num_classes
        return (sizes > 0).byte(), starts, classes.int()

    @cached_property
    def filled_bits(self) -> npt.NDArray[np.uint8]:
        """Whether a slot has a class, in one bit each: a core's cache holds them then, and most slots have none."""
        return np.packbits(self.index[0].numpy(), bitorder="little")

    def find(self, logits: torch.Tensor, buckets: int) -> Found:
        """The classes in the joint buckets of the best ``buckets`` of each repetition, for logits of shape (R, n, B).

        These are the best one in each of so many equal parts of a repetition's buckets, which are as good as random
        parts and are found at the price of one maximum.
        """
        best = _best_buckets(logits[: len(self.hashes)], buckets).unflatten(0, (self.groups, self.joined))
        slots = self._slots([each.permute(1, 0, 2) for each in best.unbind(1)])
        filled, starts, classes = self.index
        hits = filled.index_select(0, slots).nonzero().squeeze(1)
        slots = slots.index_select(0, hits)
        rows = hits // (self.groups * buckets**self.joined)
        begins = starts.index_select(0, slots)
        sizes = starts.index_select(0, slots + 1) - begins
        ends = sizes.cumsum(0)
        which = torch.repeat_interleave(sizes, output_size=int(ends[-1]) if len(ends) else 0)
        places = torch.arange(len(which), device=which.device) + (begins - ends + sizes).index_select(0, which)
        return Found(rows.index_select(0, which), classes.index_select(0, places).long())

    def _slots(self, buckets: Sequence[torch.Tensor]) -> torch.Tensor:
        """The slots of all combinations of one bucket from each repetition, each int32 of shape (n, groups, any)."""
        small = self.joint_buckets < 2**31
        joint = buckets[0] if small else buckets[0].long()
        for each in buckets[1:]:
            joint = (joint[..., None] * self.num_buckets + each[..., None, :]).flatten(2)
        if self.slots < self.joint_buckets:
            joint = (joint % self.slots).int()
        first = torch.arange(self.groups, dtype=torch.int32, device=joint.device)[:, None] * self.slots
        slots: torch.Tensor = (joint + first).flatten()
        return slots


def _best_buckets(logits: torch.Tensor, parts: int) -> torch.Tensor:
    """The best bucket in each of so many equal parts of the last dimension, int32.

    Bucket numbers replace the lowest bits of the floats, so that a vectorised maximum brings its place along. That
    leaves 14 bits of precision for 512 buckets, enough to choose candidates by.
    """
    num_buckets = logits.shape[-1]
    low = (1 << (num_buckets - 1).bit_length()) - 1
    numbers = torch.arange(num_buckets, dtype=torch.int32, device=logits.device)
    keys = (logits.view(torch.int32) & ~low).bitwise_or_(numbers).view(torch.float32)
    best = torch.stack([part.amax(-1) for part in keys.tensor_split(parts, dim=-1)], dim=-1)
    return (best.view(torch.int32) & low).clamp_(max=num_buckets - 1)  # an infinite logit loses its number
