"""What HDFS says of a failure, which its Python clients hand on as text."""

import errno
import re

__all__ = ["number_of"]

_EXCEPTION = re.compile(r"\b[\w.]+\.(\w+Exception)\b")
_OF_SYSTEM = re.compile(r"\(os error (\d+)\)")
"""How a client that is written in Rust (hdfs-native) tells of the operating system's numbers."""
_NUMBERS = {
    **dict.fromkeys(
        (
            "ConnectException",
            "ConnectTimeoutException",
            "NotReplicatedYetException",
            "RetriableException",
            "SafeModeException",  # for half a minute after a name node has started
            "SocketTimeoutException",
            "StandbyException",
        ),
        errno.ETIMEDOUT,
    ),
    **dict.fromkeys(("AccessControlException", "AuthorizationException"), errno.EACCES),
    **dict.fromkeys(("DSQuotaExceededException", "NSQuotaExceededException"), errno.EDQUOT),
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""By the names of Hadoop's exceptions."""
_UNREACHED = re.compile(
    r"failed to lookup address|NoActiveNameNode|RPC listener disconnected|could only be written to 0 of the"
    r"|^DataTransferError\("
)
"""No name that is known, no name node in charge, one that ended when it was asked, no data node: they may return."""


def number_of(error: BaseException) -> int | None:
    """The number (``errno``) that a client's error tells of by its text; None if it tells of none."""
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
