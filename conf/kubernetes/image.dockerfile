# The image of drivers and executors on Kubernetes, on the current stack (docs/kubernetes.md):
#   docker build --file conf/kubernetes/image.dockerfile --tag registry.example/sparkdl .
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends make openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /sparkdl
COPY . .
RUN make setup-current \
    && .venv-current/bin/python -m compileall -q sparkdl jobs \
    && install conf/kubernetes/entrypoint.sh conf/kubernetes/decom.sh /opt/ \
    && useradd --uid 1000 --create-home spark
ENV SPARK_HOME=/sparkdl/.venv-current/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/sparkdl/.venv-current/bin/python \
    PYTHONPATH=/sparkdl:/sparkdl/jobs
WORKDIR /home/spark
USER 1000
ENTRYPOINT ["/opt/entrypoint.sh"]
