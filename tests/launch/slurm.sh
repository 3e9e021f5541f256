#!/usr/bin/env bash
# A Slurm of virtual nodes on this machine, as root, apart from any other: slurm.sh start DIR | stop DIR
# TEST_PORTS holds the ports of the controller and of each node. Nodes with odd and with even numbers are at different
# switches. Clients need SLURM_CONF=DIR/slurm.conf.
set -euo pipefail

readonly action=$1 folder=$2
read -r port node_ports <<<"$TEST_PORTS"
read -ra nodes <<<"$node_ports"
readonly port node_ports nodes
export SLURM_CONF=$folder/slurm.conf

write_settings() {
  mkdir -p "$folder"/{state,log}
  for number in $(seq "${#nodes[@]}"); do
    mkdir "$folder"/{spool,tmp}.node"$number"
  done
  # No munge, no cgroups: neither is there on a bare machine. TmpFS keeps virtual nodes' PMIx folders apart.
  # By default Slurm starts a batch job up to 3 s late, and a requeued one when its credential has expired, after 120 s
  # (5 s is the least), at the next of the scheduler's rounds, one a minute.
  cat >"$SLURM_CONF" <<EOF
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmctldPort=$port
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
NodeName=node[1-${#nodes[@]}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[${node_ports// /,}] CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
  cat >"$folder/topology.conf" <<EOF
SwitchName=odd Nodes=$(seq -s, -f node%.0f 1 2 "${#nodes[@]}")
SwitchName=even Nodes=$(seq -s, -f node%.0f 2 2 "${#nodes[@]}")
SwitchName=top Switches=odd,even
EOF
}

start() {
  write_settings
  slurmctld
  for number in $(seq "${#nodes[@]}"); do
    slurmd -N "node$number"
  done
  for _ in {1..100}; do
    [[ $(sinfo -h -N -o %T 2>/dev/null | grep -c idle) -ne ${#nodes[@]} ]] || return 0
    sleep 0.1
  done
  sinfo -N >&2
  return 1
}

# The daemons write their state as they go, so they have to be gone before their folder is. To end by themselves takes
# them two seconds.
stop() {
  local pids
  mapfile -t pids < <(cat "$folder"/*.pid)
  kill -KILL "${pids[@]}"
}

case $action in
  start) start ;;
  stop) stop ;;
  *) exit 2 ;;
esac
