"""Why an application does not start is one line, without Java. The texts are those of real clusters."""

import pytest
from py4j.protocol import Py4JError

from sparkdl.cluster.start_errors import start_error

CALL = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
STACK = "\n\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:599)\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit app_1 to YARN : Application"
            " app_1 submitted by user root to unknown queue: nowhere",
            "Spark did not start: Failed to submit app_1 to YARN : Application app_1 submitted"
            " by user root to unknown queue: nowhere; choose a queue that exists and that you may submit to"
            " (spark-submit's --queue)",
        ),
        (
            "java.net.ConnectException: Call From host/10.0.0.1 to name-node:8020 failed on connection exception:"
            " java.net.ConnectException: Connection refused; For more details see:  http://wiki.apache.org/hadoop/Refused",
            "Spark did not start: Call From host/10.0.0.1 to name-node:8020 failed on connection exception:"
            " java.net.ConnectException: Connection refused; start what should listen there, or correct its address in"
            " the files of HADOOP_CONF_DIR",
        ),
        (
            "java.lang.IllegalArgumentException: Required memory (9216 MB) is above the max threshold (4096 MB)"
            " of this cluster! Please increase the value of 'yarn.scheduler.maximum-allocation-mb'.",
            "Spark did not start: Required memory (9216 MB) is above the max threshold (4096 MB) of this"
            " cluster! Please increase the value of 'yarn.scheduler.maximum-allocation-mb'",
        ),
        (
            "io.fabric8.kubernetes.client.KubernetesClientException: Received 403 on websocket. Failure executing: GET"
            " at: https://server:6443/api/v1/namespaces/sparkdl/pods?watch=true. Message: Forbidden",
            "Spark did not start: Received 403 on websocket. Failure executing: GET at:"
            " https://server:6443/api/v1/namespaces/sparkdl/pods?watch=true. Message: Forbidden; give Spark's service"
            " account the rights in conf/kubernetes/rights.yaml (docs/kubernetes.md)",
        ),
        (
            "io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at:"
            " https://server:6443/api/v1/namespaces/sparkdl/configmaps. Message: configmaps is forbidden: User"
            ' "system:serviceaccount:sparkdl:nobody" cannot create resource "configmaps".',
            "Spark did not start: Failure executing: POST at: https://server:6443/api/v1/namespaces/sparkdl/configmaps."
            ' Message: configmaps is forbidden: User "system:serviceaccount:sparkdl:nobody" cannot create resource'
            ' "configmaps"; give Spark\'s service account the rights in'
            " conf/kubernetes/rights.yaml (docs/kubernetes.md)",
        ),
        (
            "io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n\tat"
            " io.fabric8.kubernetes.client.KubernetesClientException.launderThrowable(KubernetesClientException.java)"
            "\nCaused by: java.net.ConnectException: Failed to connect to /127.0.0.1:9\n\t... 4 more"
            "\nCaused by: java.net.ConnectException: Connection refused",
            "Spark did not start: Failed to connect to /127.0.0.1:9; start Kubernetes' API server, or correct its"
            " address in spark-submit's --master",
        ),
    ],
)
def test_the_cause_and_what_to_do_are_told_in_a_line(said: str, told: str) -> None:
    assert str(start_error(Py4JError(f"{CALL}{said}{STACK}"))) == told
