"""A network of ONNX with its weights in int8, which computes with whole numbers, by ONNX Runtime's quantiser.

Weights have a scale for each output channel. The range of what flows between layers is found for every batch anew
(dynamic), or beforehand from rows to calibrate by (static; Jacob et al., 2018, https://arxiv.org/abs/1712.05877). Runs
in tasks.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sparkdl.errors import ModelError
from sparkdl.extras import require
from sparkdl.forms.short_onnx import shorten
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import OnnxNetwork
from sparkdl.models.network_file import INPUT

__all__ = ["quantised"]

_WITH_WEIGHTS = {"Conv", "Gather", "Gemm", "MatMul"}
"""The operations whose weights become int8: convolutions, embeddings, layers; attention consists of the last."""
_BETWEEN = ("Add", "AveragePool", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Reshape", "Transpose", "Flatten")
"""What static quantisation keeps in whole numbers between these."""


def quantised(source: Path, folder: Path, calibration: Sequence[Inputs]) -> dict[Path, str]:
    """A network of ONNX in int8, in each way that there is: files in a folder, and how they were made, in words.

    Static ones need ``calibration``, batches of rows. Raises :class:`ModelError`, which names the operations, for a
    network without any that has weights to quantise and for one that the quantiser does not take.
    """
    onnx, quantisation = require("onnx", extra="forms"), require("onnxruntime.quantization", extra="forms")
    plain = folder / "plain.onnx"
    try:
        with _quiet():  # symbolic shapes are left out: they cannot be found of all graphs
            quantisation.quant_pre_process(str(source), str(plain), skip_symbolic_shape=True)
    except Exception as error:  # whatever a quantiser raises
        raise ModelError(f"ONNX Runtime cannot quantise the network: {type(error).__name__}: {error}") from None
    kinds = {node.op_type for node in onnx.load(plain).graph.node}
    if not kinds & _WITH_WEIGHTS:
        raise ModelError(
            f"none of the network's operations ({', '.join(sorted(kinds))}) has weights to quantise; those that may"
            f" have are {', '.join(sorted(_WITH_WEIGHTS))}"
        )
    found: dict[Path, str] = {}
    problems: list[str] = []
    for words, write in _ways(quantisation, plain, calibration).items():
        path = folder / f"{len(found)}.int8.onnx"
        try:
            with _quiet():
                write(path)
            shorten(path)
            OnnxNetwork(path)
        except Exception as error:
            problems.append(f"{words}: {type(error).__name__}: {error}")
        else:
            found[path] = words
    if not found:
        raise ModelError(f"ONNX Runtime cannot quantise the network: {'; '.join(problems)}")
    return found


def _ways(quantisation: Any, plain: Path, calibration: Sequence[Inputs]) -> dict[str, Callable[[Path], None]]:
    """How a network may be quantised: what writes it to a file, by what that is called."""
    common = {"per_channel": True, "weight_type": quantisation.QuantType.QInt8}

    def dynamic(path: Path) -> None:
        quantisation.quantize_dynamic(plain, path, op_types_to_quantize=sorted(_WITH_WEIGHTS), **common)

    def static(path: Path, quant_format: str, kinds: Sequence[str]) -> None:
        quantisation.quantize_static(
            plain,
            path,
            _Reader(calibration),
            quant_format=quantisation.QuantFormat[quant_format],
            activation_type=quantisation.QuantType.QUInt8,
            op_types_to_quantize=list(kinds),
            **common,
        )

    ways: dict[str, Callable[[Path], None]] = {"dynamic": dynamic}
    if calibration:
        layers, more = sorted(_WITH_WEIGHTS), [*sorted(_WITH_WEIGHTS), *_BETWEEN]
        ways["static, layers alone"] = partial(static, quant_format="QDQ", kinds=layers)
        ways["static"] = partial(static, quant_format="QDQ", kinds=more)
        ways["static, with ONNX Runtime's own operators"] = partial(static, quant_format="QOperator", kinds=more)
    return ways


class _Reader:
    """The batches of rows to calibrate by, as ONNX Runtime asks for them."""

    def __init__(self, batches: Sequence[Inputs]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._batches, None)
        return None if batch is None else _arrays(batch)


def _arrays(batch: Inputs) -> dict[str, Any]:
    named = batch if isinstance(batch, dict) else {INPUT: batch}
    return {name: tensor.numpy() for name, tensor in named.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser logs by the root logger what it would rather be given."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
