"""What Spark says when it cannot write to a place is one line of ours. The texts are those of Hadoop's clients."""

import pytest
from pyspark.errors import PySparkException

from sparkdl.data.job_errors import explained
from sparkdl.errors import StorageError

PLACE = "s3a://predictions/monday"
TRACE = "\n\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:212)"
NOBODY = "No AWS Credentials provided by TemporaryAWSCredentialsProvider SimpleAWSCredentialsProvider"
UNKNOWN = "The specified bucket does not exist (Service: Amazon S3; Status Code: 404; Error Code: NoSuchBucket)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"java.nio.file.AccessDeniedException: {PLACE}: o.a.h.fs.s3a.auth.NoAuthWithAWSException: {NOBODY}",
            "has no c",
        ),
        ("AccessDeniedException: predictions: NoAuthWithAWSException: Unable to load AWS credentials", "has no cred"),
        (f"java.nio.file.AccessDeniedException: {PLACE}: getFileStatus: Forbidden", "access is denied. Set AWS_ACCESS"),
        ("AmazonS3Exception: Access Denied (Service: Amazon S3; Status Code: 403; Request ID: 1)", "access is denied"),
        (
            f"org.apache.hadoop.fs.s3a.UnknownStoreException: `{PLACE}': getFileStatus: {UNKNOWN}",
            "no such bucket. Create",
        ),
        ("UnknownStoreException: `s3a://predictions/':  Bucket does not exist", "there is no such bucket"),
        ('UnsupportedFileSystemException: No FileSystem for scheme "s3a"', "no file system for s3a://"),
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "no file system for s3a://. Add Hadoop's package for it to `spark.jars.packages`",
        ),
        (
            "java.net.ConnectException: Call From a/127.0.0.1 to b:8020 failed on connection exception:",
            "name node does",
        ),
        ("java.lang.IllegalArgumentException: java.net.UnknownHostException: nohost.invalid", "correct its host"),
        (
            "org.apache.hadoop.security.AccessControlException: Permission denied: user=ann, access=WRITE, inode=x",
            "the user ann has no right to write there",
        ),
    ],
)
def test_a_place_that_spark_cannot_write_to_is_named_with_what_to_do(text: str, words: str) -> None:
    with pytest.raises(StorageError, match=words) as refused, explained(PLACE):
        raise PySparkException(f"An error occurred while calling o126.parquet.\n: {text}{TRACE}")
    assert str(refused.value).startswith(f"Spark cannot reach {PLACE}: ")
    assert "\n" not in str(refused.value) and refused.value.__suppress_context__


def test_what_has_nothing_to_do_with_the_place_stays_as_it_is() -> None:
    for text in ("java.nio.file.AccessDeniedException: blockmgr-1/0c", "[DIVIDE_BY_ZERO] Division by zero"):
        with pytest.raises(PySparkException, match=r"zero|blockmgr"), explained(PLACE):
            raise PySparkException(text)
