"""A sharded parameter server: servers that each hold a slice of every parameter, and the clients of workers.

The transport is Arrow Flight over TLS, with a certificate made for the run and a token in every call; within a host it
is a Unix socket.
"""

from sparkdl.parameters.calls import Connection, Credentials, Endpoint
from sparkdl.parameters.client import ParameterClient
from sparkdl.parameters.parameter_server import ParameterServer
from sparkdl.parameters.part import Part, Push
from sparkdl.parameters.partition import Memory, Partition
from sparkdl.parameters.quasi_newton import QuasiNewton, answers_of
from sparkdl.parameters.rules import RULES, Outer, Rule
from sparkdl.parameters.unix_socket import address_towards

__all__ = [
    "RULES",
    "Connection",
    "Credentials",
    "Endpoint",
    "Memory",
    "Outer",
    "ParameterClient",
    "ParameterServer",
    "Part",
    "Partition",
    "Push",
    "QuasiNewton",
    "Rule",
    "address_towards",
    "answers_of",
]
