"""The code of a network that could not be exported: checked before tasks start, and shipped. Runs on the driver."""

import logging
import pickle
from collections.abc import Collection
from pathlib import Path

from sparkdl.cluster.modules import ModuleSource, sources_for
from sparkdl.models import NETWORK_FILE, load_network, module_of

__all__ = ["code_for"]

log = logging.getLogger(__name__)


def code_for(folder: Path, trusted: Collection[str]) -> tuple[tuple[str, ModuleSource], ...]:
    """The program's own modules that tasks need to build a model's network; none if the network was exported.

    A network that was not exported is built once here, as a check. Raises :class:`~sparkdl.errors.ModelError` if its
    module is not among the ``trusted`` ones, is missing, or builds a network that the weights do not fit.
    """
    module = module_of(folder / NETWORK_FILE)
    if module is None:
        return ()
    load_network(folder / NETWORK_FILE, trusted=trusted)
    log.warning("the network is not exported: tasks import %s, which score.trusted_modules names, to build it", module)
    return tuple(sources_for(pickle.dumps([f"{module}:"])).items())
