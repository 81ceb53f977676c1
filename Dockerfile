# The demo in a container, on the current stack, which needs no compiler:
#   docker build -t sparkdl . && docker run --rm sparkdl
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /sparkdl
COPY . .
RUN make setup-current
CMD ["make", "demo-current"]
