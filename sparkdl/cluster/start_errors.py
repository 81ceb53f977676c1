"""The reason why Spark could not start an application, in one line. Runs on the driver."""

import re

from sparkdl.errors import ClusterError

__all__ = ["start_error"]

_EXCEPTION = re.compile(
    r"^: (?:[\w$.]+: )*(?:An error has occurred\.$[\s\S]*?^Caused by: (?:[\w$.]+: )*)?", re.MULTILINE
)
"""The prefix of a Java exception in py4j's error: names of classes. For Kubernetes' client, also its empty message."""
_MORE = re.compile(r"; +For more details see")
"""The beginning of the link to documentation with which Hadoop's errors about connections end."""
_ADVICE = {
    re.compile(r"unknown queue|Queue .* does not exist|submit to the queue", re.IGNORECASE): (
        "choose a queue that exists and that you may submit to (spark-submit's --queue)"
    ),
    re.compile(r"above the max threshold"): "",  # Spark names the settings
    re.compile(r"Permission denied: user="): (
        "Spark puts its files for an application into the user's folder of the default file system; ask for the right"
        " to write there, or set `spark.yarn.stagingDir`"
    ),
    re.compile(r"Name node is in safe mode"): "the name node has just started; try again when it takes changes",
    re.compile(r"Received 403 on websocket|is forbidden: User"): (
        "give Spark's service account the rights in conf/kubernetes/rights.yaml (docs/kubernetes.md)"
    ),
    re.compile(r"KubernetesClientException[\s\S]*(?:ConnectException|UnknownHostException|NoRouteToHostException)"): (
        "start Kubernetes' API server, or correct its address in spark-submit's --master"
    ),
    re.compile(r"ConnectException|UnknownHostException|NoRouteToHostException"): (
        "start what should listen there, or correct its address in the files of HADOOP_CONF_DIR"
    ),
}
"""The advice for errors of Spark, YARN, HDFS and Kubernetes, by their texts."""


def start_error(error: Exception) -> ClusterError:
    """The error to raise if Spark's context did not start."""
    text = str(error)
    found = _EXCEPTION.search(text)
    said = text[found.end() if found else 0 :].partition("\n")[0]
    said = _MORE.split(said)[0].strip().rstrip(".")
    advice = next((advice for pattern, advice in _ADVICE.items() if pattern.search(text)), "")
    return ClusterError(f"Spark did not start: {said}{advice and f'; {advice}'}")
