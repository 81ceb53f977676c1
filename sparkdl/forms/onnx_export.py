"""A network's file as ONNX. Runs in tasks."""

import logging
import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from sparkdl.errors import ModelError
from sparkdl.extras import require
from sparkdl.forms.short_onnx import shorten
from sparkdl.inputs.tensors import Inputs, answer, sliced
from sparkdl.models import Network, OnlyTensors, OnnxNetwork, named_outputs

__all__ = ["export_onnx"]

_LARGEST = 2**31 - 1
"""Bytes of an ONNX file whose weights are not in other files: protocol buffers have no more."""
_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far answers may be from the network's own. Runtimes add numbers up in different orders."""


def export_onnx(network: Network, path: Path, sample: Inputs, rows: Inputs, *, lengths: Collection[str] = ()) -> None:
    """Write a network as ONNX, for batches of any size, and sequences of any length in the inputs ``lengths`` names.

    Of the ``sample`` only types and shapes matter: two or more rows, and sequences of three or more. ``rows`` are real
    ones, by which its answers are compared with the network's before this returns.
    Raises :class:`ModelError`, which names the operation, for a network that ONNX has no words for, and for one that is
    too large for a file of ONNX or answers otherwise there.
    """
    for package in ("onnx", "onnxscript"):
        require(package, extra="forms")
    size = sum(tensor.nbytes for tensor in network.tensors)
    if size > _LARGEST:
        raise ModelError(f"the network's weights have {size:,} bytes, but an ONNX file can hold at most {_LARGEST:,}")
    names = list(sample) if isinstance(sample, dict) else None
    traced = OnlyTensors(network, names, network.output_names)
    given = tuple(sample.values()) if isinstance(sample, dict) else (sample,)
    free = tuple({0: Dim.DYNAMIC, 1: Dim.DYNAMIC} if name in lengths else {0: Dim.DYNAMIC} for name in names or [""])
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                traced.eval(),
                given,
                dynamo=True,
                input_names=list(network.input_names),
                output_names=list(network.output_names),
                dynamic_shapes=(free,),
                verbose=False,
            )
        assert program is not None
        _tell_apart(program.model.graph)
        program.save(path, external_data=False)
        shorten(path)
    except Exception as error:
        raise ModelError(f"the network cannot be written as ONNX: {_reason(error)}") from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    _compare(network, OnnxNetwork(path), rows)


def _tell_apart(graph: Any) -> None:
    """Give what a network computes on the way other names than its outputs, such as one that is called `embedding`."""
    outputs = set(map(id, graph.outputs))
    for node in graph:
        for value in node.outputs:
            if id(value) not in outputs:
                value.name = f"value.{value.name}"


def _reason(error: BaseException) -> str:
    """The operation that ONNX has no word for, or else what the exporter says first."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    if found := re.search(r"aten\.\w+(\.\w+)?", next((text for text in texts if "No ONNX function" in text), "")):
        return f"ONNX has no operator for {found[0]}"
    return next((line for text in reversed(texts) for line in text.splitlines() if line.strip()), type(error).__name__)


def _compare(network: Network, exported: OnnxNetwork, rows: Inputs) -> None:
    """Raise :class:`ModelError` unless both answer alike for these rows and for one of them alone."""
    with torch.inference_mode():
        for some in (rows, sliced(rows, slice(1))):
            expected, found = named_outputs(answer(network, some)), answer(exported, some)
            for name, ours in expected.items():
                _compare_output(name, ours, found[name])


def _compare_output(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    spread = float(ours.float().std()) if ours.numel() > 1 else 1.0
    alike = ours.shape == theirs.shape and torch.allclose(
        theirs.float(), ours.float(), rtol=_RELATIVE, atol=_ABSOLUTE * max(spread, 1e-6), equal_nan=True
    )
    if not alike:
        far = "" if ours.shape != theirs.shape else f", up to {float((ours - theirs).abs().max()):.2g} away"
        raise ModelError(
            f"as ONNX it answers {name} of shape {tuple(theirs.shape)}, and the network itself {tuple(ours.shape)}{far}"
        )
