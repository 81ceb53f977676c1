"""Networks to start from, how a user's own is built, and how a trained one is kept in a file that cannot run code."""

from sparkdl.models.build import build, build_without_weights, copied_network, name_of, try_network
from sparkdl.models.export import TracedNetwork, export_in_parts, export_network, trace_network, write_network
from sparkdl.models.full_state import full_state, load_full_state
from sparkdl.models.network_file import NETWORK_FILE, load_network, load_weights

__all__ = [
    "NETWORK_FILE",
    "TracedNetwork",
    "build",
    "build_without_weights",
    "copied_network",
    "export_in_parts",
    "export_network",
    "full_state",
    "load_full_state",
    "load_network",
    "load_weights",
    "name_of",
    "trace_network",
    "try_network",
    "write_network",
]
