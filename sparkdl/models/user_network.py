"""Makes a network from a user's model: a name, an import path, or a callable."""

import copy
import importlib
import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import torch
from torch import nn

from sparkdl.config import makes
from sparkdl.errors import ModelError
from sparkdl.models.networks import NETWORKS
from sparkdl.models.packages import is_auto_class, maker_in_package
from sparkdl.models.recommenders import RECOMMENDERS

__all__ = ["copied_network", "import_model", "make_network", "name_of"]

log = logging.getLogger(__name__)


def make_network(model: str | Callable[..., Any], offered: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """Call a user's model with the options, and with those of the offered arguments that it has.

    Raises :class:`ModelError` if it cannot be found or built.
    """
    return _make(_resolve(model), name_of(model), offered, options)


def name_of(model: str | Callable[..., Any]) -> str:
    """The name of a model in messages."""
    return model if isinstance(model, str) else str(getattr(model, "__name__", type(model).__name__))


def _resolve(model: str | Callable[..., Any]) -> Callable[..., Any]:
    """The callable behind a name or an import path."""
    if not isinstance(model, str):
        return model
    known: Callable[..., Any] | None = NETWORKS.get(model) or RECOMMENDERS.get(model)
    if known:
        return known
    if not all(model.partition(":")):
        raise ModelError(
            f"there is no model named {model!r}; it must be one of {', '.join([*NETWORKS, *RECOMMENDERS])},"
            " or an import path like 'package.module:callable'"
        )
    return import_model(model)


def import_model(model: str) -> Callable[..., Any]:
    """Import the object with this path. Raises :class:`ModelError` if it does not make a network."""
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
        raise ModelError(f"the model {model!r} is a {type(found).__name__}, which cannot be called")
    if not makes(found, nn.Module) and not is_auto_class(found):
        raise ModelError(
            f"the model {model!r} is neither a torch.nn.Module nor a function that is annotated to return one (`->"
            " nn.Module`): a name may come from a stranger's file, so nothing else is called. Annotate the function, or"
            " pass it from Python"
        )
    resolved: Callable[..., Any] = found
    return resolved


def _make(
    callable_: Callable[..., Any], name: str, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    """Call it with the options and those offered arguments that it takes."""
    if isinstance(callable_, nn.Module):
        return copied_network(_unwrapped(callable_, name), name)  # training must not change the caller's module
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
    """The network inside ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel``, which ranks do not need.

    Raises :class:`ModelError` for a TorchScript network, which cannot be exported.
    """
    inside: Any = network
    while (compiled := _is_compiled(inside)) or isinstance(
        inside, (nn.DataParallel, nn.parallel.DistributedDataParallel)
    ):
        log.info("the model %r is wrapped in %s; the network inside is trained", name, type(inside).__name__)
        inside = inside._orig_mod if compiled else inside.module
    if any(isinstance(module, torch.jit.ScriptModule) for module in inside.modules()):
        raise ModelError(
            f"the model {name!r} is a TorchScript module, which cannot be exported; pass the torch.nn.Module from which"
            " torch.jit made it"
        )
    for module in inside.modules():
        for key, child in module.named_children():
            if (found := _unwrapped(child, name)) is not child:
                setattr(module, key, found)
    return inside  # type: ignore[no-any-return]


def _is_compiled(network: nn.Module) -> bool:
    """Whether a network was made by ``torch.compile``. Does not import the compiler, which takes 2 s."""
    made = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)  # another thread may be importing it
    return made is not None and isinstance(network, made)


def copied_network(network: nn.Module, name: str) -> nn.Module:
    """A copy of a module, by ``deepcopy`` or by pickling: some modules support only one of them (`weight_norm`)."""
    try:
        return copy.deepcopy(network)
    except Exception:
        try:
            pickled: nn.Module = pickle.loads(cloudpickle.dumps(network))
        except Exception as error:
            raise ModelError(f"the model {name!r} cannot be copied: {type(error).__name__}: {error}") from error
    return pickled
