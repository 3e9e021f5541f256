#!/usr/bin/env bash
# Starts one rank: reads who it is from the launcher, tells Horovod over Gloo what srun does not, binds the rank to its
# cores, memory, GPU and adapter, and says so in one line. The tables RANK_* are configs/rank_variables.py's, a word a local rank.
# usage: rank.sh COMMAND [ARGUMENT ...]
set -euo pipefail

refuse() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

# mpirun within Slurm sets both, and Slurm then means mpirun's own daemon.
if [[ -n ${HOROVOD_RANK:-} ]]; then
  by=Horovod rank=$HOROVOD_RANK size=$HOROVOD_SIZE local_rank=$HOROVOD_LOCAL_RANK
elif [[ -n ${OMPI_COMM_WORLD_RANK:-} ]]; then
  by='Open MPI' rank=$OMPI_COMM_WORLD_RANK size=$OMPI_COMM_WORLD_SIZE local_rank=$OMPI_COMM_WORLD_LOCAL_RANK
elif [[ -n ${SLURM_PROCID:-} ]]; then
  by=Slurm rank=$SLURM_PROCID size=$SLURM_STEP_NUM_TASKS local_rank=$SLURM_LOCALID
else
  refuse 'no launcher says which rank this is; start ranks by srun, mpirun or horovodrun'
fi
[[ $size -eq ${RANK_WORLD_SIZE:-$size} ]] || refuse "$by started $size ranks, the cluster file says $RANK_WORLD_SIZE"

if [[ $by == Slurm && ${HOROVOD_CONTROLLER:-} == gloo ]]; then
  export HOROVOD_RANK=$rank HOROVOD_SIZE=$size HOROVOD_LOCAL_RANK=$local_rank
  export HOROVOD_LOCAL_SIZE=${RANK_LOCAL_SIZE:?} HOROVOD_HOSTNAME=node$SLURM_NODEID
  export HOROVOD_CROSS_RANK=$SLURM_NODEID HOROVOD_CROSS_SIZE=$SLURM_STEP_NUM_NODES
  export HOROVOD_GLOO_RENDEZVOUS_ADDR=$SLURM_LAUNCH_NODE_IPADDR
fi

host=${SLURMD_NODENAME:-$(hostname)}
did="rank $rank of $size on $host (by $by): local rank $local_rank"
binding=()
read -ra cores <<<"${RANK_CORES:-}"
if [[ ${#cores[@]} -eq 0 ]]; then
  did+=', any core'
elif ! taskset -c "${cores[local_rank]}" true 2>/dev/null; then
  did+=", not on cores ${cores[local_rank]}, which it was not granted"
else
  # Preferred and no more: a strict binding to a full NUMA node ends in the kernel killing the rank.
  numa=(/sys/devices/system/cpu/cpu"${cores[local_rank]%%[-,]*}"/node*)
  binding=(taskset -c "${cores[local_rank]}")
  did+=", cores ${cores[local_rank]}, memory near ${numa[0]##*/}"
  ! command -v numactl >/dev/null || binding+=(numactl "--preferred=${numa[0]##*node}")
fi
if [[ ${RANK_DEVICE:-cpu} == gpu ]]; then
  # All stay visible, for NCCL's direct copies; training takes the one with its local rank's number.
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  [[ ${#visible[@]} -eq 0 || $local_rank -lt ${#visible[@]} ]] ||
    refuse "local rank $local_rank sees GPUs $CUDA_VISIBLE_DEVICES only; ask for GPUs by node, not by task"
  did+=", GPU ${visible[local_rank]:-$local_rank}"
fi
read -ra hcas <<<"${RANK_HCAS:-}"
if [[ ${#hcas[@]} -gt 0 ]]; then
  export UCX_NET_DEVICES=${hcas[local_rank]}:1
  did+=", MPI's adapter ${hcas[local_rank]}, NCCL's ${NCCL_IB_HCA:-all}"
fi
printf '%s\n' "$did" >&2
# A launcher that was killed takes its ranks with it.
guard=()
! command -v setpriv >/dev/null || guard=(setpriv --pdeathsig TERM)
exec "${guard[@]}" "$(dirname -- "${BASH_SOURCE[0]}")/supervise_rank.sh" "$rank" "$host" "${binding[@]}" "$@"
