# The GPU environments as images: MXNet's, PyTorch's with --target torch, and one over a site's own MXNet with --target
# site. Compilers stay in the first stages. Tuning belongs into the cluster file, not here.
# The bases are named by tag: their digests are not known here. Pin them when you have pulled them.

ARG SITE_BASE=nvcr.io/nvidia/mxnet:24.04-py3

# Only the files that set-up reads, so that a change of the program does not compile Horovod again.
FROM scratch AS setup-files
WORKDIR /opt/resnet-records
COPY run.sh pyproject.toml requirements.lock requirements-py312.lock requirements-torch.lock ./
COPY configs/__init__.py configs/arguments.py configs/errors.py configs/interrupts.py configs/machine_limits.py configs/synonyms.py configs/
COPY launch/__init__.py launch/
COPY launch/setup launch/setup

# PyTorch's wheels bring all of CUDA, and nothing is compiled, so plain Ubuntu will do.
FROM ubuntu:24.04 AS torch-build
# The packages have no versions here: the base image's release fixes them, and Ubuntu removes superseded ones from its
# index.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/resnet-records
COPY --from=setup-files /opt/resnet-records ./
ENV PIP_NO_CACHE_DIR=1
RUN ./run.sh setup --engine torch --gpu

FROM ubuntu:24.04 AS torch
ARG REVISION=unknown
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on PyTorch and DALI" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="ubuntu:24.04"
# As in the last stage, where the reasons stand.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin openssh-client openssh-server python3 \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && mkdir -p /run/sshd \
 && printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n' > /etc/ssh/ssh_config.d/pods.conf \
 && printf 'StrictModes no\n' > /etc/ssh/sshd_config.d/pods.conf \
 && userdel --remove ubuntu \
 && useradd --create-home --uid 1000 trainer \
 && mkdir -p /opt/resnet-records/runs \
 && chown -R trainer:trainer /opt/resnet-records
WORKDIR /opt/resnet-records
# What the driver's container runtime adds to the image.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
COPY --from=torch-build --chown=trainer:trainer /opt/resnet-records/.venv .venv
COPY --chown=trainer:trainer . .
ENV PROGRAM_REVISION=${REVISION}
USER 1000
RUN .venv/bin/python -m launch.setup.libraries
VOLUME ["/opt/resnet-records/runs"]
HEALTHCHECK --interval=5m --timeout=30s CMD ["nvidia-smi", "--list-gpus"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]

# A base that has MXNet, Horovod and DALI already: only what is missing there is installed. It runs as root, as its base
# does.
FROM ${SITE_BASE} AS site
ARG REVISION=unknown
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on a site's own MXNet" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
WORKDIR /opt/resnet-records
COPY . .
ENV PIP_NO_CACHE_DIR=1 PROGRAM_REVISION=${REVISION}
RUN ./run.sh setup --system
VOLUME ["/opt/resnet-records/runs"]
HEALTHCHECK --interval=5m --timeout=30s CMD ["nvidia-smi", "--list-gpus"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]

FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04 AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libopenmpi-dev make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/resnet-records
COPY --from=setup-files /opt/resnet-records ./
ENV CUDA_HOME=/usr/local/cuda PIP_NO_CACHE_DIR=1
RUN ./run.sh setup --gpu

# CUDA's libraries come with the wheels, so the base image only adds what the driver's container runtime needs.
FROM nvidia/cuda:11.8.0-base-ubuntu22.04
ARG REVISION=unknown
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on MXNet, Horovod and DALI" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="nvidia/cuda:11.8.0-base-ubuntu22.04"
# The ssh server is for Kubernetes, whose pods reach each other by it: every pod makes a host key of its own, so the image
# has none, and no pod can know the others' keys.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin openssh-client openssh-server python3 \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && mkdir -p /run/sshd \
 && printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n' > /etc/ssh/ssh_config.d/pods.conf \
 && printf 'StrictModes no\n' > /etc/ssh/sshd_config.d/pods.conf \
 && useradd --create-home --uid 1000 trainer \
 && mkdir -p /opt/resnet-records/runs \
 && chown -R trainer:trainer /opt/resnet-records
WORKDIR /opt/resnet-records
COPY --from=build --chown=trainer:trainer /opt/resnet-records/.venv .venv
COPY --chown=trainer:trainer . .
# Recorded in the environment.json of every run: an image holds no git checkout.
ENV PROGRAM_REVISION=${REVISION}
USER 1000
# This check needs no GPU: it finds a library that is missing from the image, apart from the driver's own.
RUN .venv/bin/python -m launch.setup.libraries
VOLUME ["/opt/resnet-records/runs"]
HEALTHCHECK --interval=5m --timeout=30s CMD ["nvidia-smi", "--list-gpus"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]
