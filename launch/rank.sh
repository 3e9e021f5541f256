#!/usr/bin/env bash
# Starts one rank: reads the rank's number from the launcher, sets the variables that Horovod over Gloo needs and srun
# does not set, binds the rank to cores, memory, GPU and adapter, and reports the binding in one line. The lists RANK_*,
# with one word for each rank of a node, come from configs/rank_variables.py.
# usage: rank.sh COMMAND [ARGUMENT ...]
set -euo pipefail
trap '' PIPE # A reader of the output that is gone ends no rank; nor does a full disk, see tell.

readonly host=${SLURMD_NODENAME:-$(hostname)} folder=${*: -1}

tell() { printf '%s\n' "$1" 3>&2 2>/dev/null >&3 || true; }

refuse() {
  tell "error: $1"
  # horovodrun makes a 1 of any exit status, and the launcher then looks for the cause in the run folder.
  [[ -z ${rank:-} || ! -f $folder/config.yaml ]] ||
    printf '{"rank": %d, "host": "%s", "step": null, "message": "%s", "second_hand": false, "status": 2, "time": %s}\n' \
      "$rank" "$host" "$1" "${EPOCHREALTIME/,/.}" >"$folder/failure_$rank.json" || true
  exit 2
}

# interface_to ADDRESS: prints the interface that has the address or, on another node, through which it is reached. It
# prints nothing where `ip` is missing.
interface_to() {
  local own route
  own=$(ip -o address show to "$1" 2>/dev/null || true)
  route=$(ip -o route get "$1" 2>/dev/null || true)
  if [[ $own =~ ^[0-9]+:\ ([^ ]+) || $route =~ \ dev\ ([^ ]+) ]]; then printf '%s\n' "${BASH_REMATCH[1]}"; fi
}

# near_gpu: prints this rank's share of the physical cores at its GPU, which the kernel knows. It prints nothing unless
# the ranks of this node have all GPUs that the driver lists.
near_gpu() {
  local gpus=("${RANK_GPUS:=/proc/driver/nvidia/gpus}"/*) sys=${RANK_SYS:-/sys} lists=() own=() number range core first
  local before=0 ranks=0 share last
  [[ ${#gpus[@]} -eq ${RANK_LOCAL_SIZE:-0} && ! ${visible[*]} =~ [^0-9\ ] ]] || return 0
  for number in "${!gpus[@]}"; do
    number=${gpus[${visible[number]:-$number}]:-}
    lists+=("$(cat "$sys/bus/pci/devices/${number##*/}/local_cpulist" 2>/dev/null || true)")
  done
  for number in "${!lists[@]}"; do
    [[ ${lists[number]} == "${lists[local_rank]}" ]] || continue
    [[ $number -ge $local_rank ]] || before=$((before + 1))
    ranks=$((ranks + 1))
  done
  for range in ${lists[local_rank]//,/ }; do
    for ((core = ${range%-*}; core <= ${range#*-}; core++)); do
      read -r first 2>/dev/null <"$sys/devices/system/cpu/cpu$core/topology/thread_siblings_list" || first=$core
      [[ ${first%%[-,]*} -ne $core ]] || own+=("$core")
    done
  done
  share=$((${#own[@]} / ranks))
  [[ $share -gt 0 ]] || return 0
  own=("${own[@]:before*share:share}")
  last=${own[share - 1]}
  if [[ $share -gt 2 && $last -eq $((own[0] + share - 1)) ]]; then own=("${own[0]}-$last"); fi
  (IFS=, && printf '%s\n' "${own[*]}")
}

# mpirun within a Slurm job sets Open MPI's and Slurm's variables, and Slurm's then describe mpirun's own daemon.
if [[ -n ${HOROVOD_RANK:-} ]]; then
  by=Horovod rank=$HOROVOD_RANK size=$HOROVOD_SIZE local_rank=$HOROVOD_LOCAL_RANK
elif [[ -n ${RANK:-} && -n ${WORLD_SIZE:-} && -n ${LOCAL_RANK:-} && -n ${LOCAL_WORLD_SIZE:-} ]]; then
  by=torchrun rank=$RANK size=$WORLD_SIZE local_rank=$LOCAL_RANK
elif [[ -n ${OMPI_COMM_WORLD_RANK:-} ]]; then
  by='Open MPI' rank=$OMPI_COMM_WORLD_RANK size=$OMPI_COMM_WORLD_SIZE local_rank=$OMPI_COMM_WORLD_LOCAL_RANK
elif [[ -n ${SLURM_PROCID:-} ]]; then
  by=Slurm rank=$SLURM_PROCID size=$SLURM_STEP_NUM_TASKS local_rank=$SLURM_LOCALID
else
  refuse 'no launcher says which rank this is; start ranks with srun, mpirun or horovodrun'
fi
[[ $size -eq ${RANK_WORLD_SIZE:-$size} ]] || refuse "$by started $size ranks, the cluster file says $RANK_WORLD_SIZE"

if [[ $by == Slurm && ${HOROVOD_CONTROLLER:-} == gloo ]]; then
  export HOROVOD_RANK=$rank HOROVOD_SIZE=$size HOROVOD_LOCAL_RANK=$local_rank
  export HOROVOD_LOCAL_SIZE=${RANK_LOCAL_SIZE:?} HOROVOD_HOSTNAME=node$SLURM_NODEID
  export HOROVOD_CROSS_RANK=$SLURM_NODEID HOROVOD_CROSS_SIZE=$SLURM_STEP_NUM_NODES
  export HOROVOD_GLOO_RENDEZVOUS_ADDR=$SLURM_LAUNCH_NODE_IPADDR
  socket=${NCCL_SOCKET_IFNAME:-}
  interface=${HOROVOD_GLOO_IFACE:-${socket#=}}
  if [[ $SLURM_STEP_NUM_NODES -gt 1 && -z $interface ]]; then
    interface=$(interface_to "$SLURM_LAUNCH_NODE_IPADDR")
  fi
  [[ -z $interface ]] || export HOROVOD_GLOO_IFACE=$interface
fi

if [[ ${HOROVOD_CONTROLLER:-} == gloo && ${HOROVOD_CROSS_SIZE:-1} -gt 1 && ${HOROVOD_GLOO_IFACE:-} != lo ]]; then
  # Horovod 0.28 opens the connections of its process set at the address of the host's name, whatever interface it is
  # given. With the 127.0.1.1 of Debian's and Ubuntu's /etc/hosts, other nodes wait for it until the time limit; without
  # an address, the rank crashes.
  name=$(hostname) address=
  read -r address _ < <(getent ahosts "$name") || true
  remedy="give $name its network address in /etc/hosts, or set communication.backend: mpi"
  [[ -n $address ]] || refuse "the name of this host, $name, has no address, which ranks over Gloo need; $remedy"
  # With an address that is valid on one link only, Gloo crashes.
  [[ $address != 127.* && $address != ::1 && $address != 169.254.* && $address != fe80:* ]] ||
    refuse "the name of this host, $name, means $address, where ranks of other nodes cannot reach it; $remedy"
fi

# Open MPI would believe that every machine with an address that is valid on one link only is on the same link, and wait
# for ever. Where the site or the user has chosen interfaces, a second choice would make it crash.
if [[ $by == 'Open MPI' || ${HOROVOD_CONTROLLER:-} == mpi ]]; then
  if [[ $(ip -o -4 address show 2>/dev/null) == *' inet 169.254.'* ]]; then
    chosen=$(ompi_info --param btl tcp --level 1 --parsable 2>/dev/null || true)
    [[ $chosen != *if_include:source:default*if_exclude:source:default* ]] ||
      export OMPI_MCA_btl_tcp_if_exclude=127.0.0.0/8,169.254.0.0/16
  fi
fi

report="rank $rank of $size on $host (by $by): local rank $local_rank"
binding=() near=
IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
read -ra cores <<<"${RANK_CORES:-}"
[[ ${RANK_CORES_BY:-} != gpu ]] || near=$(near_gpu)
if [[ -n $near ]] && taskset -c "$near" true 2>/dev/null; then cores[local_rank]=$near; else near=; fi
if [[ ${#cores[@]} -eq 0 ]]; then
  report+=', any core'
elif ! taskset -c "${cores[local_rank]}" true 2>/dev/null; then
  report+=", not on cores ${cores[local_rank]}, which it was not granted"
else
  # The NUMA node is preferred only: with a strict binding to a full node, the kernel kills the rank.
  numa=(/sys/devices/system/cpu/cpu"${cores[local_rank]%%[-,]*}"/node*)
  binding=(taskset -c "${cores[local_rank]}")
  report+=", cores ${cores[local_rank]}${near:+ at its GPU}, memory near ${numa[0]##*/}"
  ! command -v numactl >/dev/null || binding+=(numactl "--preferred=${numa[0]##*node}")
fi
if [[ ${RANK_DEVICE:-cpu} == gpus ]]; then
  report+=', all GPUs'
elif [[ ${RANK_DEVICE:-cpu} == gpu ]]; then
  # All GPUs stay visible, for NCCL's direct copies; training uses the GPU with the number of the local rank.
  [[ ${#visible[@]} -eq 0 || $local_rank -lt ${#visible[@]} ]] ||
    refuse "local rank $local_rank sees GPUs $CUDA_VISIBLE_DEVICES only; ask for GPUs by node, not by task"
  report+=", GPU ${visible[local_rank]:-$local_rank}"
fi
if [[ ${RANK_DEVICE:-cpu} == gpu* ]]; then
  # NVRTC 11.8, with which MXNet fuses pointwise operators, writes PTX 7.8, which drivers below R520 refuse.
  driver=''
  [[ ! -r ${RANK_DRIVER_FILE:=/proc/driver/nvidia/version} ]] || read -r driver <"$RANK_DRIVER_FILE" || true
  if [[ $driver =~ \ ([0-9]{3})\.[0-9] && ${BASH_REMATCH[1]} -lt 520 && -z ${MXNET_USE_FUSION:-} ]]; then
    export MXNET_USE_FUSION=0
    report+=", no fusion (driver R${BASH_REMATCH[1]}, below R520)"
  fi
fi
read -ra hcas <<<"${RANK_HCAS:-}"
if [[ ${#hcas[@]} -gt 0 ]]; then
  export UCX_NET_DEVICES=${hcas[local_rank]}:1
  nccl_hcas=${NCCL_IB_HCA:-} nccl_hcas=${nccl_hcas#=}
  report+=", MPI's adapter ${hcas[local_rank]}, NCCL's ${nccl_hcas:-all}"
fi
tell "$report"
# The local launcher numbers ranks as horovodrun does, and signals them itself.
[[ $by != Horovod || -n ${RANK_GROUP_SIGNALLED:-} ]] || export RANK_LOOKS_FOR=$folder/stop
# The kernel ends the rank when the launcher is killed.
guard=()
! command -v setpriv >/dev/null || guard=(setpriv --pdeathsig TERM)
exec "${guard[@]}" "$(dirname -- "${BASH_SOURCE[0]}")/supervise_rank.sh" "$rank" "$host" "${binding[@]}" "$@"
