"""What HDFS says of failures means the same as what other storage says. The texts are those of real name nodes."""

import errno

import pytest

from sparkdl.storage.failures import OutageError, patient

STARTING = (
    'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create directory /t/runs.'
    ' Name node is in safe mode.\\n\\tat org.apache.hadoop.hdfs.server.namenode.FSNamesystem...")'
)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (
            RuntimeError('RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "/t/x (is not a directory)")'),
            errno.ENOTDIR,
        ),
        (
            RuntimeError(
                'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=ann, access='
                'WRITE, inode=\\"/t\\":root:supergroup:drwxr-xr-x")'
            ),
            errno.EACCES,
        ),
        (
            RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota")'),
            errno.EDQUOT,
        ),
        (RuntimeError('RPCError("java.lang.IllegalStateException", "what nobody expects")'), errno.EIO),
    ],
)
def test_a_refusal_of_a_name_node_is_an_error_of_the_operating_system(error: Exception, number: int) -> None:
    @patient
    def fail(path: str) -> None:
        raise error

    with pytest.raises(OSError) as found:
        fail("hdfs://name-node/t")
    assert found.value.errno == number


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(STARTING),
        OSError("Connection refused (os error 111)"),
        OSError("failed to lookup address"),
        RuntimeError("RPC listener disconnected"),  # of a name node that was killed
        RuntimeError('DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: ... }]")'),
    ],
)
def test_a_name_node_that_is_starting_or_away_is_waited_for(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.storage.failures.PATIENCE_SECONDS", 0.3)
    tries = []

    @patient
    def fail(path: str) -> str:
        tries.append(path)
        if len(tries) < 3:
            raise error
        return "there"

    assert fail("hdfs://name-node/t") == "there"

    @patient
    def never(path: str) -> None:
        raise error

    with pytest.raises(OutageError, match="no answer for"):
        never("hdfs://name-node/t")


def test_an_error_that_is_no_failure_of_storage_stays_as_it_is() -> None:
    @patient
    def fail(path: str) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        fail("hdfs://name-node/t")


def test_a_user_without_the_right_hears_whose_name_counts() -> None:
    @patient
    def fail(path: str) -> None:
        raise RuntimeError('RPCError("a.AccessControlException", "Permission denied: user=me")')

    with pytest.raises(PermissionError, match=r"Permission denied: user=me.*set HADOOP_USER_NAME to a user who"):
        fail("hdfs://name-node/t")
