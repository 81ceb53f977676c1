"""What YARN and HDFS refuse, or cannot do at the moment, is a line that says what to do."""

from pathlib import Path

import pytest

from .hadoop import CONFIGURATION, PROPERTIES, ROOT, Hadoop, until

NOBODY = {"HADOOP_USER_NAME": "nobody"}
UNREACHED = {  # where nothing listens; by default, Hadoop's client tries for a quarter of an hour
    "spark.hadoop.yarn.resourcemanager.address": "127.0.0.1:9",
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "1000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "500",
    "spark.hadoop.ipc.client.connect.max.retries": "0",
}


def refusal(hadoop: Hadoop, job: str, *settings: str, variables: dict[str, str] | None = None, **options: str) -> str:
    """The last line that a job says, which must be one of ours; there must be no stack of Java's."""
    chosen = [part for item in options.items() for part in ("--conf", "=".join(item))]
    script = str(ROOT / "jobs" / f"{job}.py")
    done = hadoop.submit(
        script, str(CONFIGURATION), *settings, options=(*PROPERTIES, *chosen), check=False, variables=variables
    )
    assert done.returncode in (69, 74), done.stdout + done.stderr
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]  # Python's are all in the first
    assert not [line for line in lines if line.startswith(("\tat ", "Traceback"))], done.stdout + done.stderr
    (ours,) = [line for line in lines if line.startswith("sparkdl: ")]
    return ours


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spark.yarn.queue": "nowhere"}, ("nowhere", "--queue")),
        (
            {"spark.executor.memory": "9g"},
            ("above the max threshold (4096 MB)", "yarn.scheduler.maximum-allocation-mb"),
        ),
        (UNREACHED, (":9 failed on connection exception", "HADOOP_CONF_DIR")),
    ],
    ids=["queue", "memory", "resource manager"],
)
def test_what_does_not_start_is_a_line(options: dict[str, str], words: tuple[str, ...], hadoop: Hadoop) -> None:
    line = refusal(hadoop, "prepare", **options)
    assert all(word in line for word in words), line


def test_a_user_without_the_right_to_write_hears_so_in_a_line(hadoop: Hadoop, dataset: str) -> None:
    staged = {"spark.yarn.stagingDir": f"file://{hadoop.configuration.folder}"}  # where that user may start Spark
    runs = f"{hadoop.configuration.hdfs}/kept/runs-of-nobody"
    line = refusal(hadoop, "train", f"train.dataset={dataset}", f"train.run_dir={runs}", variables=NOBODY, **staged)
    assert "runs-of-nobody" in line and "Permission denied: user=nobody" in line, line
    line = refusal(hadoop, "prepare", variables=NOBODY)
    assert "user=nobody" in line and "spark.yarn.stagingDir" in line, line


def test_a_job_while_hdfs_is_down_ends_with_a_line(hadoop: Hadoop, dataset: str, tmp_path: Path) -> None:
    hadoop.find("name node")[0].kill()
    until(lambda: not hadoop.find("name node"), "the name node did not end")
    try:
        line = refusal(hadoop, "train", f"train.dataset={dataset}")
    finally:
        hadoop.start_daemon("name node")
        until(lambda: not hadoop.safe(), "the name node did not come back")
    assert ":" + hadoop.configuration.hdfs.rpartition(":")[2] in line and "HADOOP_CONF_DIR" in line, line
