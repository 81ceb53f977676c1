"""Recognises failures of HDFS by the texts that its Python clients pass on."""

import errno
import re

__all__ = ["number_of"]

_EXCEPTION = re.compile(r"\b[\w.]+\.(\w+Exception)\b")
_OF_SYSTEM = re.compile(r"\(os error (\d+)\)")
"""How hdfs-native, a client written in Rust, reports the error codes of the operating system."""
_NUMBERS = {
    **dict.fromkeys(
        (
            "ConnectException",
            "ConnectTimeoutException",
            "NotReplicatedYetException",
            "RetriableException",
            "SafeModeException",  # raised for half a minute after a name node has started
            "SocketTimeoutException",
            "StandbyException",
        ),
        errno.ETIMEDOUT,
    ),
    **dict.fromkeys(("AccessControlException", "AuthorizationException"), errno.EACCES),
    **dict.fromkeys(("DSQuotaExceededException", "NSQuotaExceededException"), errno.EDQUOT),
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""The ``errno`` for each of Hadoop's exceptions."""
_UNREACHED = re.compile(
    r"failed to lookup address|NoActiveNameNode|RPC listener disconnected|could only be written to 0 of the"
    r"|^DataTransferError\("
)
"""An unknown host name, no active name node, a name node that ended during a request, no data node: all may pass."""


def number_of(error: BaseException) -> int | None:
    """The ``errno`` that follows from the text of a client's error; None if the text is not known."""
    if not isinstance(error, OSError | RuntimeError):
        return None
    text = str(error)
    if _UNREACHED.search(text):
        return errno.ETIMEDOUT
    for name in _EXCEPTION.findall(text):
        if number := _NUMBERS.get(name):
            return number
    if isinstance(error, OSError) and error.errno is None and (found := _OF_SYSTEM.search(text)):
        number = int(found[1])
        return errno.ETIMEDOUT if number in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE) else number
    return errno.EIO if text.startswith("RPCError(") else None
