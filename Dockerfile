# The testbed in a container: `docker build -t testbed .`, also with podman or buildah. What it may do depends on the rights
# that it is run with: docs/how-to/containers.md.
ARG BASE=docker.io/library/debian:bookworm-slim
FROM ${BASE}

# What the kernel of the virtual clock is built with stays: `testbed virtual build` may be asked for again.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/testbed
COPY . .
RUN apt-get update && tools/bootstrap system environment \
 && rm -rf /var/lib/apt/lists/* /root/.cache/pip /root/.cache/uv

# VIRTUAL=no leaves the virtual clock's kernel out: five minutes and its compiler less.
ARG VIRTUAL=yes
RUN if [ "$VIRTUAL" = yes ]; then \
        apt-get update && tools/bootstrap kernel && .venv/bin/testbed virtual build \
        && rm -rf /var/lib/apt/lists/*; \
    fi

ENV PATH=/opt/testbed/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["/opt/testbed/tools/container"]
CMD ["doctor"]
