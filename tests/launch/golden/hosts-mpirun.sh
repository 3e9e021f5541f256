#!/usr/bin/env bash

# digits: 4 ranks on 2 nodes of laptop. Submitted by:
# bash /shared/runs/digits-1/job.sh
set -euo pipefail

readonly python=/shared/resnet-records/.venv/bin/python folder=/shared/runs/digits-1 num_hosts=2
readonly runs=(
  /shared/runs/digits-1
)
# mpirun refuses to run as root without these.
[[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export HOROVOD_CONTROLLER=mpi
export HOROVOD_CPU_OPERATIONS=mpi
export HOROVOD_CYCLE_TIME=1
export HOROVOD_FUSION_THRESHOLD=262144
export HOROVOD_GLOO_TIMEOUT_SECONDS=300
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=4
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=4
export MXNET_UPDATE_ON_KVSTORE=0
export OMPI_MCA_memory='^patcher'
export OMPI_MCA_oob_tcp_keepalive_intvl=5
export OMPI_MCA_oob_tcp_keepalive_probes=4
export OMPI_MCA_oob_tcp_keepalive_time=10
export OMP_NUM_THREADS=1
export RANK_DEVICE=cpu
export RANK_LOCAL_SIZE=2
export RANK_WORLD_SIZE=4
export UCX_MEM_MMAP_HOOK_MODE=none

mapfile -t hosts < <("$python" -I -m launch.submit.reach "$folder" alpha beta)
if [[ ${#hosts[@]} -ne $num_hosts ]]; then
  printf 'error: the job got %s hosts (%s) and needs %s\n' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' $$ "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort

printf '%s slots=2\n' "${hosts[@]}" >"$folder/hosts"
# These variables choose libraries and kernels, and mpirun passes on only what it is told to.
inherited=()
for name in "${!LD_LIBRARY_PATH@}" "${!DNNL_@}" "${!KMP_@}" "${!MKL_@}" "${!OMP_@}" "${!ONEDNN_@}" "${!OPENBLAS_@}"; do
  inherited+=(-x "$name")
done
readonly launcher=(
  mpirun -np 4 -bind-to none -map-by ppr:2:node -mca pml ob1 -mca btl
  '^openib' -x PATH -x MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD -x MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD
  -x MXNET_UPDATE_ON_KVSTORE -x HOROVOD_CYCLE_TIME -x HOROVOD_GLOO_TIMEOUT_SECONDS
  -x HOROVOD_FUSION_THRESHOLD -x HOROVOD_CONTROLLER -x HOROVOD_CPU_OPERATIONS
  -x OMPI_MCA_memory -x UCX_MEM_MMAP_HOOK_MODE -x OMPI_MCA_oob_tcp_keepalive_time
  -x OMPI_MCA_oob_tcp_keepalive_intvl -x OMPI_MCA_oob_tcp_keepalive_probes -x RANK_WORLD_SIZE
  -x RANK_LOCAL_SIZE -x RANK_DEVICE -hostfile "$folder/hosts"
  "${inherited[@]}"
)
readonly rank=(
  /shared/resnet-records/launch/rank.sh
  /shared/resnet-records/.venv/bin/python -I -u -m train
)

# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The
# ranks save their state and end.
signals=0 launched=
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' USR1
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' TERM INT HUP

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
    "$python" -I -m launch.submit.job end "$run" --status "$status" --signals "$signals" ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
      exit 75
    fi
  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
