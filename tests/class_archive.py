"""Print the options with which JVMs of the tests start fast, and make the archive of classes that they name.

Tests start some eighty JVMs. The archive holds Spark's classes as a JVM keeps them in memory, read and verified, and
halves what it costs to start one. It fits one installation of PySpark; a JVM that it does not fit does without.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from sparkdl.java import ensure_java

# No JVM of the tests lives long enough to earn back what the optimising compiler and parallel collectors cost.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JARS = Path(pyspark.__file__).parent / "jars"
ARCHIVE = Path(__file__).parents[1] / ".pytest_cache" / f"spark-{pyspark.__version__}-{JARS.stat().st_mtime_ns}.jsa"
PROGRAM = """
from pyspark.ml import Pipeline
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config(
    "spark.driver.extraJavaOptions", "-XX:ArchiveClassesAtExit={archive} -Xlog:disable").getOrCreate()
processes = "SparkSubmit", "master.Master", "worker.Worker"
for name in ["executor.CoarseGrainedExecutorBackend", *("deploy." + name for name in processes)]:
    spark._jvm.java.lang.Class.forName("org.apache.spark." + name)
spark.range(99).selectExpr("id", "double(id) x", "string(id % 3) text").write.parquet("{folder}/rows")
rows = spark.read.parquet("{folder}/rows")
rows.rdd.map(lambda row: row.text).toDF("string").groupBy("value").count().toPandas()
rows.mapInArrow(lambda batches: batches, rows.schema, barrier=True).collect()
indexer, assembler = StringIndexer(inputCol="text", outputCol="index"), VectorAssembler(inputCols=["x"], outputCol="v")
pipeline = Pipeline(stages=[indexer, assembler, StandardScaler(inputCol="v", outputCol="z")])
pipeline.fit(rows).transform(rows).join(rows.groupBy("text").count(), "text").collect()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
jvm.wait()
"""


def make() -> None:
    """Run a program that uses what tests use; its JVM leaves an archive of the classes that it loaded, if it can."""
    ensure_java()
    ARCHIVE.parent.mkdir(exist_ok=True)
    for outdated in ARCHIVE.parent.glob(f"spark-{pyspark.__version__}-*.jsa"):
        outdated.unlink()
    with TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        partial = Path(folder) / "classes.jsa"
        program = PROGRAM.format(folder=folder, archive=partial)
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JVM}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the program that makes the archive of Spark's classes failed:\n{done.stderr[-4000:]}")
        if partial.exists():
            partial.rename(ARCHIVE)
        else:
            print("this Java keeps no archive of classes: every JVM of the tests starts without", file=sys.stderr)


if __name__ == "__main__":
    if not ARCHIVE.exists():
        make()
    print(f"{JVM} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr" if ARCHIVE.exists() else JVM)
