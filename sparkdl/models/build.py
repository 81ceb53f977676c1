"""From what a user calls a model (a name, an import path, a callable) to a module that reads raw batches."""

import copy
import importlib
import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import cloudpickle
import torch
from torch import nn

from sparkdl.config import makes
from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer, like, moved, shapes_of
from sparkdl.models.modes import in_mode
from sparkdl.models.networks import NETWORKS
from sparkdl.models.outputs import LOGITS, check_answer, logits_of
from sparkdl.models.packages import is_auto_class, maker_in_package
from sparkdl.models.recommenders import RECOMMENDERS

__all__ = [
    "ScaledImages",
    "build",
    "build_without_weights",
    "copied_network",
    "import_model",
    "make_network",
    "name_of",
    "try_network",
]

log = logging.getLogger(__name__)


def build(
    model: str | Callable[..., Any],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a network for inputs of this shape, and try it on a batch of zeros. Runs on driver and ranks.

    ``model`` is a name from :data:`sparkdl.models.networks.NETWORKS`, an import path ``package.module:callable``, or a
    callable that returns a module (of a module itself, a copy is taken with its weights). It is called with
    ``options``, and with ``input_shape`` and ``num_classes`` where it takes arguments of these names.

    An ``input_shape`` of (height, width, channels) means images: the result reads uint8 (n, height, width, channels),
    and a first layer hands float32 (n, channels, height, width) to the network, scaled to [0, 1] and, when ``mean``
    and ``std`` per channel are given, standardised; the network is told the shape (channels, height, width). Any other
    shape is read as float32 (n, *input_shape).

    Raises :class:`ModelError` if the model cannot be found or built, or does not answer (n, num_classes).
    """
    network = _assembled(model, input_shape, num_classes, mean, std, options or {}, device=None)
    dtype = torch.uint8 if len(input_shape) == 3 else torch.float32
    try_network(network, model, torch.zeros(2, *input_shape, dtype=dtype), num_classes)
    return network


def build_without_weights(
    model: str | Callable[..., Any],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The same network with shapes alone, on PyTorch's device ``meta``: its weights take no memory. It is not tried.

    Runs on driver and ranks. Raises :class:`ModelError` if the model cannot be found or built, or has weights already.
    """
    network = _assembled(model, input_shape, num_classes, mean, std, options or {}, device="meta")
    if made := [name for name, parameter in network.named_parameters() if not parameter.is_meta]:
        raise ModelError(
            f"the model {name_of(model)!r} comes with its weight {made[0]!r}; a sharded network has"
            " to be built by a function that makes new weights"
        )
    return network


def _assembled(
    model: str | Callable[..., Any],
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    options: Mapping[str, Any],
    *,
    device: str | None,
) -> nn.Module:
    """What a user calls a model, behind a layer that scales images; ``device``: where its weights are made."""
    if isinstance(model, str) and model in RECOMMENDERS:
        raise ModelError(f"the model {model!r} takes inputs by their names; prepare the dataset with `inputs`")
    images = len(input_shape) == 3
    shape = (input_shape[2], input_shape[0], input_shape[1]) if images else tuple(input_shape)
    with torch.device(device) if device else nullcontext():
        network = make_network(model, {"input_shape": shape, "num_classes": num_classes}, options)
    return nn.Sequential(ScaledImages(shape[0], mean=mean, std=std), network) if images else network


def make_network(model: str | Callable[..., Any], offered: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """What a user calls a model, called with the options and those offered arguments that it takes.

    Raises :class:`ModelError` if it cannot be found or built.
    """
    return _make(_resolve(model), name_of(model), offered, options)


def name_of(model: str | Callable[..., Any]) -> str:
    """What messages call a model."""
    return model if isinstance(model, str) else str(getattr(model, "__name__", type(model).__name__))


class ScaledImages(nn.Module):
    """uint8 (n, height, width, channels) to float32 (n, channels, height, width) in [0, 1], standardised on request."""

    def __init__(
        self, channels: int, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        centre = torch.zeros(channels) if mean is None else torch.tensor(mean, dtype=torch.float32)
        spread = torch.ones(channels) if std is None else torch.tensor(std, dtype=torch.float32)
        if centre.shape != (channels,) or spread.shape != (channels,):
            raise ModelError(
                f"images of {channels} channels need {channels} means and standard deviations,"
                f" got {centre.numel()} and {spread.numel()}"
            )
        spread = torch.where(spread > 0, spread, torch.ones(channels))  # a channel that never changes stays as it is
        # (x/255 - mean) / std as one multiplication and one addition per value.
        self.scale: torch.Tensor
        self.shift: torch.Tensor
        self.register_buffer("scale", (1 / (255 * spread)).view(1, -1, 1, 1))
        self.register_buffer("shift", (-centre / spread).view(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The batch as the network wants it."""
        return torch.addcmul(self.shift, images.permute(0, 3, 1, 2).to(self.scale.dtype), self.scale)


def _resolve(model: str | Callable[..., Any]) -> Callable[..., Any]:
    """The callable behind a name or an import path."""
    if not isinstance(model, str):
        return model
    known: Callable[..., Any] | None = NETWORKS.get(model) or RECOMMENDERS.get(model)
    if known:
        return known
    if not all(model.partition(":")):
        raise ModelError(
            f"there is no model named {model!r}; known are {', '.join([*NETWORKS, *RECOMMENDERS])},"
            " or an import path like 'package.module:callable'"
        )
    return import_model(model)


def import_model(model: str) -> Callable[..., Any]:
    """What an import path stands for. Raises :class:`ModelError` if that is nothing that makes a network."""
    module_name, _, attribute = model.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ModelError(
            f"cannot import the model {model!r}: {error}. Is its folder on the Python path of driver and executors?"
        ) from error
    except AttributeError:
        raise ModelError(f"the module {module_name!r} has no {attribute!r} (from the model {model!r})") from None
    if not callable(found):
        raise ModelError(f"the model {model!r} is a {type(found).__name__}, not something that can be called")
    if not makes(found, nn.Module) and not is_auto_class(found):
        raise ModelError(
            f"the model {model!r} is no torch.nn.Module, and no function that says it returns one (`-> nn.Module`): a"
            " name may come from a stranger's file, so nothing else is called. Annotate it, or hand it in from Python"
        )
    resolved: Callable[..., Any] = found
    return resolved


def _make(
    callable_: Callable[..., Any], name: str, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    """Call it with the options and those offered arguments that it takes."""
    if isinstance(callable_, nn.Module):
        return copied_network(_unwrapped(callable_, name), name)  # which is trained, and the caller's is not
    if maker := maker_in_package(callable_, name):
        return _unwrapped(_built(lambda: maker(offered, options), name), name)
    parameters = inspect.signature(callable_).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    arguments = {key: value for key, value in offered.items() if takes_all or key in parameters} | dict(options)
    unknown = [] if takes_all else [key for key in arguments if key not in parameters]
    if unknown:
        raise ModelError(
            f"the model {name!r} takes no option {unknown[0]!r}; its options are"
            f" {', '.join(key for key in parameters if key not in offered) or 'none'}"
        )
    return _unwrapped(_built(lambda: callable_(**arguments), name), name)


def _built(make: Callable[[], Any], name: str) -> nn.Module:
    try:
        network = make()
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the model {name!r} could not be built: {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"the model {name!r} returned a {type(network).__name__}, not a torch.nn.Module")
    return network


def _unwrapped(network: nn.Module, name: str) -> nn.Module:
    """What is inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``: ranks do without them.

    Raises :class:`ModelError` for a network of TorchScript, which cannot be traced to a file.
    """
    inside: Any = network
    while (compiled := _is_compiled(inside)) or isinstance(
        inside, (nn.DataParallel, nn.parallel.DistributedDataParallel)
    ):
        log.info("the model %r is wrapped in %s; what is inside is trained", name, type(inside).__name__)
        inside = inside._orig_mod if compiled else inside.module
    if any(isinstance(module, torch.jit.ScriptModule) for module in inside.modules()):
        raise ModelError(
            f"the model {name!r} is of TorchScript, which cannot be exported; hand in the torch.nn.Module from which"
            " torch.jit made it"
        )
    for module in inside.modules():
        for key, child in module.named_children():
            if (found := _unwrapped(child, name)) is not child:
                setattr(module, key, found)
    return inside  # type: ignore[no-any-return]


def _is_compiled(network: nn.Module) -> bool:
    """Whether a network is what ``torch.compile`` made; then its compiler, which takes 2 s to import, is there."""
    made = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)  # which another thread may be importing
    return made is not None and isinstance(network, made)


def copied_network(network: nn.Module, name: str) -> nn.Module:
    """A copy of a module; some that ``deepcopy`` refuses can be pickled (`weight_norm`), and the other way round."""
    try:
        return copy.deepcopy(network)
    except Exception:
        try:
            pickled: nn.Module = pickle.loads(cloudpickle.dumps(network))
        except Exception as error:
            raise ModelError(f"the model {name!r} cannot be copied: {type(error).__name__}: {error}") from error
    return pickled


def try_network(
    network: nn.Module, model: str | Callable[..., Any], rows: Inputs, num_classes: int, *, by_token: bool = False
) -> None:
    """Check with two rows that a network answers one logit per class, and leave it in its mode.

    With ``by_token``, that it answers one for each place and token, of which classes are the number; or more of them,
    as networks do whose table of tokens is larger than a tokeniser needs.

    Raises :class:`ModelError`, which tells it by what the user calls it.
    """
    name = name_of(model)
    try:
        with in_mode(network, training=False), torch.no_grad():
            answered = answer(network, moved(rows, _device(network)))
    except Exception as error:
        raise ModelError(
            f"the model {name!r} failed on two rows of shape {shapes_of(like(rows, lambda each: each[0]))}:"
            f" {type(error).__name__}: {error}{_about_ids(error, rows)}"
        ) from error
    check_answer(answered, [LOGITS], name)
    logits = logits_of(answered)
    if by_token:
        _check_tokens(logits, rows, num_classes, name)
    elif logits.shape != (2, num_classes):
        raise ModelError(
            f"the model {name!r} answered {tuple(logits.shape)} for two rows, but the labels have {num_classes}"
            f" classes: its output must have the shape (n, {num_classes})"
        )


def _check_tokens(logits: torch.Tensor, rows: Inputs, vocabulary: int, name: str) -> None:
    """Raise :class:`ModelError` unless there are logits for all tokens in each place of the rows."""
    assert isinstance(rows, dict)
    length = next(iter(rows.values())).shape[1]
    if logits.ndim != 3 or logits.shape[:2] != (2, length):
        raise ModelError(
            f"the model {name!r} answered {tuple(logits.shape)} for two rows of {length} tokens, and language modelling"
            f" needs logits for the token after each of them: its output must have the shape (n, {length},"
            f" {vocabulary})"
        )
    if logits.shape[2] < vocabulary:
        raise ModelError(
            f"the model {name!r} answers logits for {logits.shape[2]:,} tokens, and the dataset's tokeniser has"
            f" {vocabulary:,}; prepare with the tokeniser that belongs to the network (`tokenizer`), or build it for"
            " so many"
        )


def _about_ids(error: Exception, rows: Inputs) -> str:
    """What an index out of range is likely to be about: ids, for which a table has too few rows."""
    if not isinstance(error, IndexError) or not isinstance(rows, dict):
        return ""
    ids = {key: int(each.max()) for key, each in rows.items() if each.dtype == torch.int64}
    told = ", ".join(f"those of {key} go up to {largest:,}" for key, largest in ids.items())
    return f". Has a table of embeddings fewer rows than there are ids, or places? {told}" if told else ""


def _device(network: nn.Module) -> torch.device:
    """Where the network's first weight lies."""
    weight = next(iter(network.parameters()), None)
    return torch.device("cpu") if weight is None else weight.device
