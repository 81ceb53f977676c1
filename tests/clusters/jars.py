"""Hadoop's daemons from Maven Central, in the versions of PySpark's own clients of Hadoop."""

import os
import subprocess
from pathlib import Path

from benchmarks.standalone import SPARK_HOME
from sparkdl.java import ensure_java
from sparkdl.storage import cache_folder

JARS = {
    "3.3.4": (
        "org.apache.hadoop:hadoop-client-minicluster:3.3.4",
        "org.bouncycastle:bcprov-jdk15on:1.68",
        "org.bouncycastle:bcpkix-jdk15on:1.68",
    ),
    "3.5.0": (
        "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
        "org.bouncycastle:bcprov-jdk18on:1.78.1",
        "org.bouncycastle:bcpkix-jdk18on:1.78.1",
        "org.bouncycastle:bcutil-jdk18on:1.78.1",
    ),
}
"""By Hadoop's version, that of the client in PySpark's ``jars``: 3.3.4 in Spark 3.5, and 3.5.0 in Spark 4.3."""
IN_PYSPARK = "org.apache.hadoop:hadoop-client-runtime,org.xerial.snappy:snappy-java,junit:junit"
"""What the first of them asks for, and is there already or has no use."""


def hadoop_jars() -> list[Path]:
    """The jars, which come before PySpark's own on a daemon's class path; what the user's cache lacks is fetched."""
    (client,) = (SPARK_HOME / "jars").glob("hadoop-client-api-*.jar")
    wanted = JARS[client.stem.removeprefix("hadoop-client-api-")]
    ivy = cache_folder() / "ivy"
    found = [ivy / "jars" / "{}_{}-{}.jar".format(*jar.split(":")) for jar in wanted]
    if not all(jar.exists() for jar in found):
        _fetch(wanted, ivy)
    return found


def _fetch(wanted: tuple[str, ...], ivy: Path) -> None:
    """Let Spark fetch them, as it does for a job with ``--packages``."""
    ensure_java()
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local", "--conf", f"spark.jars.ivy={ivy}"]
    submit += ["--packages", ",".join(wanted), "--exclude-packages", IN_PYSPARK]
    job = ["--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"]
    environment = os.environ | {"SPARK_HOME": str(SPARK_HOME)}
    done = subprocess.run([*submit, *job], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"Maven Central gave no jars\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
