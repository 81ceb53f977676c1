#!/usr/bin/env bash
# What Kubernetes runs in an executor's container before it ends it, if spark.decommission.enabled is true: the executor
# hears that it shall take no more tasks, and ends by itself when those that it has are done.
set -uo pipefail
kill -PWR 1
# As long as the pod's terminationGracePeriodSeconds.
while kill -0 1 2> /dev/null; do sleep 0.5; done
