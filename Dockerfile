# The environments as images: --target cpu (MXNet on CPUs), gpu (MXNet on GPUs, the last one), torch (PyTorch, on GPUs
# unless TORCH_VARIANT says otherwise) and site (over a site's own MXNet or PyTorch). Compilers stay in the build stages.
# Tuning belongs into the cluster file, not here.
# The bases are named by tag: their digests are not known here. Pin them when you have pulled them.

ARG CPU_BASE=debian:12-slim
ARG TORCH_BASE=ubuntu:24.04
ARG SITE_BASE=nvcr.io/nvidia/mxnet:24.04-py3
ARG GPU_BUILD_BASE=nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04
ARG GPU_BASE=nvidia/cuda:11.8.0-base-ubuntu22.04
ARG VERSION=0.1.1
# The commit, which every run records in its environment.json: an image holds no git checkout.
ARG REVISION=unknown

# Only the files that set-up reads, so that a change of the program does not compile Horovod again.
FROM scratch AS setup-files
WORKDIR /opt/resnet-records
COPY run.sh pyproject.toml requirements.lock requirements-py312.lock requirements-torch.lock requirements-torch-cuda12.lock ./
COPY configs/__init__.py configs/arguments.py configs/errors.py configs/interrupts.py configs/machine_limits.py configs/reading.py configs/synonyms.py configs/
COPY launch/__init__.py launch/
COPY launch/setup launch/setup

FROM ${CPU_BASE} AS cpu-build
WORKDIR /opt/resnet-records
COPY --from=setup-files /opt/resnet-records ./
RUN launch/setup/image.sh build g++ libopenmpi-dev make
ENV PIP_NO_CACHE_DIR=1
RUN ./run.sh setup --cpu

FROM ${CPU_BASE} AS cpu
WORKDIR /opt/resnet-records
COPY launch/setup/image.sh launch/setup/
RUN launch/setup/image.sh run
COPY --from=cpu-build --chown=trainer:trainer /opt/resnet-records/.venv .venv
COPY --chown=trainer:trainer . .
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target, on CPUs with MXNet, Horovod and DALI" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PROGRAM_REVISION=${REVISION}
USER 1000
# This check finds a library that is missing from the image, apart from the driver's own.
RUN launch/setup/image.sh check
VOLUME ["/opt/resnet-records/runs"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
# Without arguments: train the digits, to their target.
CMD []

# PyTorch's wheels bring all of CUDA, and nothing is compiled, so plain Ubuntu will do.
FROM ${TORCH_BASE} AS torch-build
WORKDIR /opt/resnet-records
COPY --from=setup-files /opt/resnet-records ./
RUN launch/setup/image.sh build
ENV PIP_NO_CACHE_DIR=1
# gpu: CUDA 13, for driver R580 or later. cuda12: for older ones, from R525 on. cpu: for machines without GPUs.
ARG TORCH_VARIANT=gpu
RUN ./run.sh setup --engine torch --${TORCH_VARIANT}

FROM ${TORCH_BASE} AS torch
WORKDIR /opt/resnet-records
COPY launch/setup/image.sh launch/setup/
RUN launch/setup/image.sh run
# What the driver's container runtime adds to the image.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
COPY --from=torch-build --chown=trainer:trainer /opt/resnet-records/.venv .venv
COPY --chown=trainer:trainer . .
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on PyTorch and DALI" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PROGRAM_REVISION=${REVISION}
USER 1000
RUN launch/setup/image.sh check
VOLUME ["/opt/resnet-records/runs"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]

# A base that has MXNet, Horovod and DALI already, or PyTorch: only what is missing there is installed. It runs as root,
# as its base does.
FROM ${SITE_BASE} AS site
WORKDIR /opt/resnet-records
COPY . .
ENV PIP_NO_CACHE_DIR=1
RUN ./run.sh setup --system
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on a site's own MXNet or PyTorch" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PROGRAM_REVISION=${REVISION}
VOLUME ["/opt/resnet-records/runs"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]

FROM ${GPU_BUILD_BASE} AS gpu-build
WORKDIR /opt/resnet-records
COPY --from=setup-files /opt/resnet-records ./
RUN launch/setup/image.sh build g++ libopenmpi-dev make
ENV CUDA_HOME=/usr/local/cuda PIP_NO_CACHE_DIR=1
RUN ./run.sh setup --gpu

# CUDA's libraries come with the wheels, so the base image only adds what the driver's container runtime needs.
FROM ${GPU_BASE} AS gpu
WORKDIR /opt/resnet-records
COPY launch/setup/image.sh launch/setup/
RUN launch/setup/image.sh run
COPY --from=gpu-build --chown=trainer:trainer /opt/resnet-records/.venv .venv
COPY --chown=trainer:trainer . .
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="resnet-records" \
      org.opencontainers.image.description="ResNet-50 to the MLPerf target on MXNet, Horovod and DALI" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PROGRAM_REVISION=${REVISION}
USER 1000
RUN launch/setup/image.sh check
VOLUME ["/opt/resnet-records/runs"]
ENTRYPOINT ["/opt/resnet-records/run.sh"]
CMD ["--help"]
