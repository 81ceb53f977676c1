"""The code of a network that is not exported: checked before tasks start, and brought to them. Runs on the driver."""

import logging
import pickle
from collections.abc import Collection
from pathlib import Path

from sparkdl.cluster.modules import ModuleSource, sources_for
from sparkdl.models import NETWORK_FILE, load_network, module_of

__all__ = ["code_for"]

log = logging.getLogger(__name__)


def code_for(folder: Path, trusted: Collection[str]) -> tuple[tuple[str, ModuleSource], ...]:
    """The program's own modules that a model's network needs in tasks; none where it is exported.

    Of one that is not, the network is built here once. Raises :class:`~sparkdl.errors.ModelError` if its module is not
    among the ``trusted`` ones, is missing, or builds what its weights do not fit.
    """
    module = module_of(folder / NETWORK_FILE)
    if module is None:
        return ()
    load_network(folder / NETWORK_FILE, trusted=trusted)
    log.warning("the network is not exported: tasks import %s, which score.trusted_modules names, to build it", module)
    return tuple(sources_for(pickle.dumps([f"{module}:"])).items())
