#!/usr/bin/env bash
# What Spark has a container run: `driver` with the rest of spark-submit's command line, or `executor`.
set -euo pipefail
role=$1
shift
# Where Spark mounts its settings; its own variables come as the pod's environment.
class_path=${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*
case $role in
    driver)
        exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
        ;;
    executor)
        options=()
        for ((number = 0; ; number++)); do
            name=SPARK_JAVA_OPT_$number
            [ -v "$name" ] || break
            options+=("${!name}")
        done
        exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$class_path" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME" "$@"
        ;;
    *) exec "$role" "$@" ;;
esac
