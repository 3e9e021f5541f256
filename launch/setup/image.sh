#!/usr/bin/env bash
# Prepares a stage of the Dockerfile: `image.sh build PACKAGE ...` installs what set-up needs there; `image.sh run` installs
# what a run needs, and makes the user and the folders of the program; `image.sh check` fails if a library is missing that
# MXNet, Horovod or PyTorch links, apart from the driver's own. The bases are Debian's or Ubuntu's.
set -euo pipefail

install() {
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/*
}

# Ranks ask `ip` which interface reaches the other nodes. No numactl: Docker forbids its calls by default. The ssh server
# is for Kubernetes, whose pods reach each other by it. Every pod makes a host key of its own, so the image has none, and
# no pod can know the others' keys.
prepare_run() {
  install iproute2 libgomp1 libquadmath0 openmpi-bin openssh-client openssh-server python3
  rm -f /etc/ssh/ssh_host_*
  mkdir -p /run/sshd
  printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n' >/etc/ssh/ssh_config.d/pods.conf
  printf 'StrictModes no\n' >/etc/ssh/sshd_config.d/pods.conf
  ! getent passwd ubuntu >/dev/null || userdel --remove ubuntu # Ubuntu's images have it, with UID 1000.
  useradd --create-home --uid 1000 trainer
  # A container may run as any user, and writes its runs here unless a folder is mounted.
  mkdir -p /opt/resnet-records/runs
  chown -R trainer:trainer /opt/resnet-records
  chmod 1777 /opt/resnet-records/runs
}

# What lies beside libmxnet.so, Horovod finds there, too: both are loaded into one process.
check() {
  shopt -s nullglob
  cd -- .venv/lib/python3*/site-packages
  local linked
  linked=$(LD_LIBRARY_PATH=$PWD/mxnet ldd mxnet/libmxnet.so* horovod/mxnet/mpi_lib*.so torch/lib/libtorch_python.so*)
  ! grep 'not found' <<<"$linked" | grep -v 'libcuda\.so\.1\|libnvidia-ml\.so\.1'
}

readonly stage=${1:?build, run or check}
shift
case $stage in
  build) install ca-certificates python3 python3-venv "$@" ;;
  run) prepare_run ;;
  check) check ;;
esac
