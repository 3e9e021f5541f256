#!/usr/bin/env bash
#SBATCH --job-name=digits
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=8
#SBATCH --time=02:00:00
#SBATCH --output=/shared/runs/digits-1/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --signal=B:USR1@120
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=8
#SBATCH --exclusive

# digits: 24 ranks on 3 nodes (+2 spare) of dgx-a100. Submitted by:
# sbatch --parsable /shared/runs/digits-1/job.sh
set -euo pipefail

readonly python=/shared/resnet-records/.venv/bin/python folder=/shared/runs/digits-1 num_hosts=3
readonly runs=(
  /shared/runs/digits-1
)
export HOROVOD_BATCH_D2D_MEMCOPIES=1
export HOROVOD_CONTROLLER=mpi
export HOROVOD_CPU_OPERATIONS=mpi
export HOROVOD_CYCLE_TIME=0.2
export HOROVOD_FUSION_THRESHOLD=16777216
export HOROVOD_GLOO_TIMEOUT_SECONDS=300
export HOROVOD_TORUS_ALLREDUCE=1
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=25
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999
export MXNET_GPU_COPY_NTHREADS=1
export MXNET_GPU_WORKER_NTHREADS=1
export MXNET_UPDATE_ON_KVSTORE=0
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9'
export NCCL_NET_GDR_READ=1
export OMPI_MCA_memory='^patcher'
export OMP_NUM_THREADS=1
export RANK_CORES='48-55 56-63 16-23 24-31 112-119 120-127 80-87 88-95'
export RANK_DEVICE=gpu
export RANK_HCAS='mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_6 mlx5_7 mlx5_8 mlx5_9'
export RANK_LOCAL_SIZE=8
export RANK_WORLD_SIZE=24
export UCX_MEM_MMAP_HOOK_MODE=none

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [[ ${#hosts[@]} -lt $num_hosts ]]; then
  printf 'error: the job got %s hosts (%s) and needs %s\n' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' "$SLURM_JOB_ID" "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort

readonly granted=("${hosts[@]}")
readonly rank=(
  /shared/resnet-records/launch/rank.sh
  /shared/resnet-records/.venv/bin/python -I -u -m train
)

# Chooses the hosts of the next attempt. Those that failed, or that the check found slow, come last.
choose_hosts() {
  mapfile -t hosts < <(
    "$python" -I -m launch.submit.job choose "$1" --checked "$folder" \
      --hosts "${granted[*]}" --topology "$(scontrol show topology 2>/dev/null || true)"
  )
  [[ ${#hosts[@]} -eq $num_hosts ]] || return 1
  for host in "${hosts[@]}"; do printf '%s\n' "$host" "$host" "$host" "$host" "$host" "$host" "$host" "$host"; done >"$folder/hosts"
  export SLURM_HOSTFILE="$folder/hosts"
  launcher=(
    srun -K1 --export=ALL --nodes=3 --ntasks=24 --ntasks-per-node=8
    --distribution=block --cpu-bind=none --mpi=pmix --cpus-per-task=16
    --distribution=arbitrary
  )
}

# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The
# ranks save their state and end.
signals=0 launched=
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' USR1
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' TERM INT HUP

# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.
launch() {
  choose_hosts "$1" || { status=1 && return; }
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
    "$python" -I -m launch.submit.job end "$run" --status "$status" --signals "$signals" \
      --hosts "${granted[*]}" ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
      exit 75
    fi
  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
