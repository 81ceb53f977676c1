"""Values as 16-bit floating-point numbers: half of the bytes of float32.

bfloat16 has the range of float32 and three digits. float16 has four digits, and loses values below 6e-8.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision

__all__ = ["Casting"]


class Casting(Averager):
    """Tensors are sent in another type, with any topology."""

    def __init__(self, plain: Averager, *, dtype: torch.dtype) -> None:
        self._plain, self._dtype = plain, dtype

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        cast = [tensor.to(self._dtype) for tensor in tensors]
        yield from self._plain.exchange(cast, key=key)
        for tensor, mean in zip(tensors, cast, strict=True):
            tensor.copy_(mean)
