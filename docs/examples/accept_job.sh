#!/usr/bin/env bash
#SBATCH --job-name=accept --exclusive --output=accept-%j.out
# Accepts the nodes of a Slurm job; submitted from the folder of the program:
#
#   sbatch --nodes=8 docs/examples/accept_job.sh my-cluster.yaml [OPTIONS OF ./run.sh accept]
#
# The job ends as COMPLETED for pass, as FAILED for slow and failed (exit code 1:0) and if it was refused (2:0). With
# DRAIN=yes in its environment, and an operator's rights, it drains the nodes that are not as they should be.
set -uo pipefail
out=$PWD/runs/accept-job-$SLURM_JOB_ID

"${ACCEPT_PROGRAM:-./run.sh}" accept --cluster "$@" --out "$out"
status=$?
if [[ $status -eq 1 && ${DRAIN-} == yes ]]; then
  jq -r '.nodes[] | select(.verdict == "slow" or .verdict == "failed") | .host + " " + .words[0]' "$out/accept.json" |
    while read -r host words; do
      scontrol update nodename="$host" state=drain reason="accept: $words"
    done
fi
exit "$status"
