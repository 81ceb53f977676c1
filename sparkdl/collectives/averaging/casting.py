"""Values of 16 bits: half of the bytes.

bfloat16 has the range of float32 and three digits. float16 has four, and loses what is below 6e-8.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision

__all__ = ["Casting"]


class Casting(Averager):
    """Tensors travel in another type, and may be added up anywhere."""

    def __init__(self, plain: Averager, *, dtype: torch.dtype) -> None:
        self._plain, self._dtype = plain, dtype

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        cast = [tensor.to(self._dtype) for tensor in tensors]
        yield from self._plain.exchange(cast, key=key)
        for tensor, mean in zip(tensors, cast, strict=True):
            tensor.copy_(mean)
