#!/usr/bin/env bash
#$ -S /bin/bash
#$ -N digits
#$ -o /shared/runs/digits-1/job.log
#$ -j y
#$ -l h_rt=01:00:00
#$ -r y
#$ -l rt_F=512

# digits: 2048 ranks on 512 nodes of abci-v100. Submitted by:
# qsub -terse /shared/runs/digits-1/job.sh
set -euo pipefail

readonly python=/shared/resnet-records/.venv/bin/python folder=/shared/runs/digits-1 num_hosts=512
readonly runs=(
  /shared/runs/digits-1
  /shared/runs/digits-2
  /shared/runs/digits-3
  /shared/runs/digits-4
  /shared/runs/digits-5
)
# mpirun refuses to run as root without these.
[[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
module load openmpi
export HOROVOD_BATCH_D2D_MEMCOPIES=1
export HOROVOD_CONTROLLER=mpi
export HOROVOD_CPU_OPERATIONS=mpi
export HOROVOD_CYCLE_TIME=0.2
export HOROVOD_FUSION_THRESHOLD=16777216
export HOROVOD_GLOO_TIMEOUT_SECONDS=600
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=25
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999
export MXNET_GPU_COPY_NTHREADS=1
export MXNET_GPU_WORKER_NTHREADS=1
export MXNET_UPDATE_ON_KVSTORE=0
export NCCL_BUFFSIZE=2097152
export NCCL_IB_HCA='=mlx5_0,mlx5_1'
export NCCL_MAX_NCHANNELS=16
export NCCL_MIN_NCHANNELS=4
export NCCL_NET_GDR_READ=1
export OMPI_MCA_memory='^patcher'
export OMPI_MCA_oob_tcp_keepalive_intvl=5
export OMPI_MCA_oob_tcp_keepalive_probes=4
export OMPI_MCA_oob_tcp_keepalive_time=10
export OMP_NUM_THREADS=1
export RANK_CORES='0-9 10-19 20-29 30-39'
export RANK_DEVICE=gpu
export RANK_HCAS='mlx5_0 mlx5_0 mlx5_1 mlx5_1'
export RANK_LOCAL_SIZE=4
export RANK_WORLD_SIZE=2048
export UCX_MEM_MMAP_HOOK_MODE=none

mapfile -t hosts < <(awk '!seen[$1]++ { print $1 }' "${SGE_JOB_HOSTLIST:-${PE_HOSTFILE:?the job has no -pe}}")
if [[ ${#hosts[@]} -ne $num_hosts ]]; then
  printf 'error: the job got %s hosts (%s) and needs %s\n' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' "$JOB_ID" "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort

printf '%s slots=4\n' "${hosts[@]}" >"$folder/hosts"
# These variables choose libraries and kernels, and mpirun passes on only what it is told to.
inherited=()
for name in "${!LD_LIBRARY_PATH@}" "${!DNNL_@}" "${!KMP_@}" "${!MKL_@}" "${!OMP_@}" "${!ONEDNN_@}" "${!OPENBLAS_@}"; do
  inherited+=(-x "$name")
done
readonly launcher=(
  mpirun -np 2048 -bind-to none -map-by ppr:4:node -mca btl '^openib' -x PATH
  -x MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD -x MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD
  -x MXNET_UPDATE_ON_KVSTORE -x HOROVOD_CYCLE_TIME -x HOROVOD_GLOO_TIMEOUT_SECONDS
  -x HOROVOD_FUSION_THRESHOLD -x HOROVOD_CONTROLLER -x HOROVOD_CPU_OPERATIONS
  -x OMPI_MCA_memory -x UCX_MEM_MMAP_HOOK_MODE -x OMPI_MCA_oob_tcp_keepalive_time
  -x OMPI_MCA_oob_tcp_keepalive_intvl -x OMPI_MCA_oob_tcp_keepalive_probes -x NCCL_IB_HCA
  -x MXNET_GPU_WORKER_NTHREADS -x MXNET_GPU_COPY_NTHREADS -x HOROVOD_BATCH_D2D_MEMCOPIES
  -x NCCL_BUFFSIZE -x NCCL_MIN_NCHANNELS -x NCCL_MAX_NCHANNELS -x NCCL_NET_GDR_READ
  -x RANK_WORLD_SIZE -x RANK_LOCAL_SIZE -x RANK_DEVICE -x RANK_CORES -x RANK_HCAS
  -hostfile "$folder/hosts" "${inherited[@]}"
)
readonly rank=(
  /shared/resnet-records/launch/rank.sh
  /shared/resnet-records/.venv/bin/python -I -u -m train
)

# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The
# ranks save their state and end.
signals=0 limit_is_near=0 launched=
trap 'limit_is_near=1 signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' USR1
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' TERM INT HUP
{
  trap 'kill $!' TERM
  sleep 3480 &
  wait $! && kill -USR1 $$
} &
readonly timer=$!
trap 'kill "$timer" 2>/dev/null || true' EXIT

# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.
launch() {
  # The kernel ends the launcher, and the launcher its ranks, if this script is killed.
  local guard=()
  ! command -v setpriv >/dev/null || guard=(setpriv --pdeathsig TERM)
  "${guard[@]}" "${launcher[@]}" "${rank[@]}" "$1" </dev/null &
  launched=$!
  while true; do
    local before=$signals
    status=0
    wait "$launched" || status=$?
    [[ $status -gt 128 && $signals -ne $before ]] || break
  done
  launched=
}

# The nodes are examined first; --set cluster.scheduler.check_first=false switches this off.
printf -v listed ',%s' "${hosts[@]}"
if ! "$python" -I -m launch.doctor doctor --recipe "$folder/config.yaml" --step \
  --run "$folder" --hosts "${listed#,}"; then
  printf 'error: the nodes failed a check, see above; nothing was trained\n' >&2
  exit 1
fi

worst=0
for run in "${runs[@]}"; do
  result=79
  # 79: the ranks failed, and are started again from the last checkpoint.
  while [[ $result -eq 79 ]]; do
    status=0 began=1 result=0
    if [[ $signals -eq 0 ]]; then
      began=0
      "$python" -I -m launch.submit.job begin "$run" || began=$?
    fi
    if [[ $began -eq 0 ]]; then
      # Gives signs of life for the claim on the run folder, until this script and the launcher are gone.
      exec {claim}> >(exec "$python" -I -m launch.submit.job hold "$run")
      launch "$run"
      exec {claim}>&-
    elif [[ $began -ne 1 ]]; then
      result=2 # The folder is somebody else's.
      break
    fi
    "$python" -I -m launch.submit.job end "$run" --status "$status" --signals "$signals" --near-limit "$limit_is_near" \
      --hosts any ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
      [[ $limit_is_near -eq 0 ]] || exit 99
      exit 75
    fi
    # 80: a host failed twice, and the run goes on without it.
    if [[ $result -eq 80 ]]; then
      without=$("$python" -I -m launch.submit.job left-out "${runs[@]}" | sed 's/^/!/' | paste -sd '&')
      qalter -l h_rt=01:00:00,rt_F=512,"hostname=$without" "$JOB_ID" && exit 99
      exit 75
    fi
  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
