"""Built-in networks, building a user's own network, and storing a trained network in a file that cannot run code."""

from sparkdl.models.answer_check import try_network
from sparkdl.models.beside_base import BesideBase, LowRank
from sparkdl.models.build import build, build_without_weights
from sparkdl.models.build_named import build_by, build_named
from sparkdl.models.experts import Experts, MixtureOfExperts, balance_losses
from sparkdl.models.export import TracedNetwork, export_network, trace_network, write_network
from sparkdl.models.export_in_parts import export_in_parts, write_in_parts
from sparkdl.models.form_files import (
    FORM_FILES,
    Form,
    checked_form,
    files_to_leave,
    read_forms,
    write_forms,
)
from sparkdl.models.full_state import full_state, leave_out_of_state, load_full_state
from sparkdl.models.half_weights import write_in_half
from sparkdl.models.int8_weights import write_in_int8
from sparkdl.models.modes import in_mode
from sparkdl.models.network_file import NETWORK_FILE, Network, load_network, load_weights, module_of
from sparkdl.models.on_disk import tensors_on_disk
from sparkdl.models.onnx_network import OnnxNetwork
from sparkdl.models.outputs import LOGITS, OnlyTensors, check_answer, logits_of, named_outputs, output_of
from sparkdl.models.reference import Reference, refer, write_reference
from sparkdl.models.speed import seconds_of_each
from sparkdl.models.user_network import copied_network, name_of

__all__ = [
    "FORM_FILES",
    "LOGITS",
    "NETWORK_FILE",
    "BesideBase",
    "Experts",
    "Form",
    "LowRank",
    "MixtureOfExperts",
    "Network",
    "OnlyTensors",
    "OnnxNetwork",
    "Reference",
    "TracedNetwork",
    "balance_losses",
    "build",
    "build_by",
    "build_named",
    "build_without_weights",
    "check_answer",
    "checked_form",
    "copied_network",
    "export_in_parts",
    "export_network",
    "files_to_leave",
    "full_state",
    "in_mode",
    "leave_out_of_state",
    "load_full_state",
    "load_network",
    "load_weights",
    "logits_of",
    "module_of",
    "name_of",
    "named_outputs",
    "output_of",
    "read_forms",
    "refer",
    "seconds_of_each",
    "tensors_on_disk",
    "trace_network",
    "try_network",
    "write_forms",
    "write_in_half",
    "write_in_int8",
    "write_in_parts",
    "write_network",
    "write_reference",
]
