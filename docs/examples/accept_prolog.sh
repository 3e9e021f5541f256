#!/usr/bin/env bash
# A prolog of Slurm: accepts a node once a day, before the first job that comes to it.
#
#   Prolog=/opt/resnet/docs/examples/accept_prolog.sh    (slurm.conf)
#   PrologEpilogTimeout=600
#
# Where a prolog ends with another status than 0, Slurm drains the node and puts the job back into the queue, held
# unless SchedulerParameters has nohold_on_prolog_fail. CLUSTER is a cluster file with launcher: local, which describes
# one node. The verdict lies in STATE on the node.
set -uo pipefail
readonly CLUSTER=${ACCEPT_CLUSTER:-/etc/slurm/accept-node.yaml} STATE=${ACCEPT_STATE:-/var/spool/accept}
export PATH=/usr/local/bin:/usr/bin:/bin HOME=${HOME:-/root} # slurmd gives a prolog no PATH

root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
out=$STATE/${SLURMD_NODENAME:-$HOSTNAME}
mkdir -p "$out"
[[ -z $(find "$out/passed" -mmin -1440 2>/dev/null) ]] || exit 0
rm -f "$out/passed"

"${ACCEPT_PROGRAM:-$root/run.sh}" accept --cluster "$CLUSTER" --minutes 1 --out "$out" &>"$out/accept.log"
status=$?
# 1 is slow or failed, the node's own fault; a mistake of the installation must not drain all nodes.
case $status in
  0) touch "$out/passed" ;;
  1) exit 1 ;;
  *) logger -t accept "status $status, see $out/accept.log" ;;
esac
