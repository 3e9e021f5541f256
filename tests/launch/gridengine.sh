#!/usr/bin/env bash
# A Grid Engine of this one machine, as root, apart from any other: gridengine.sh start DIR | stop DIR
# TEST_PORTS holds the ports of the master and of the node's daemon. Clients need SGE_ROOT=DIR and the ports as below.
set -euo pipefail

readonly action=$1 folder=$2
read -r SGE_QMASTER_PORT SGE_EXECD_PORT <<<"$TEST_PORTS"
export SGE_ROOT=$folder SGE_CELL=default SGE_QMASTER_PORT SGE_EXECD_PORT
readonly common=$folder/default/common

write_cell() {
  mkdir -p "$common" "$folder"/{spooldb,qmaster,execd}
  ln -s /var/lib/gridengine/{bin,lib,util,utilbin} "$folder"
  sed -e 's/^admin_user .*/admin_user root/' -e "s,/var/spool/gridengine,$folder," \
    /usr/share/gridengine/default-bootstrap >"$common/bootstrap"
  /usr/share/gridengine/scripts/init_cluster "$SGE_ROOT" "$SGE_CELL" "$folder/spooldb" root >/dev/null
  echo localhost >"$common/act_qmaster"
  # Both names are this machine, or its daemon is refused under the other one.
  echo "localhost $(hostname)" >"$common/host_aliases"
}

# Files, since these commands read no standard input; the first has to be called global. By default a job's end is
# accounted for up to 15 s later.
configure() {
  cd "$folder"
  qconf -sconf | sed -e '/^min_[ug]id/d' -e "s,^execd_spool_dir .*,execd_spool_dir $folder/execd," \
    -e 's/flush_time=[0-9:]*/flush_time=00:00:01 accounting_flush_time=00:00:00/' >global
  printf 'min_uid 0\nmin_gid 0\n' >>global
  qconf -Mconf global
  qconf -ssconf | sed -e 's/^schedule_interval .*/schedule_interval 0:0:1/' \
    -e 's/^\(flush_submit_sec\|flush_finish_sec\) .*/\1 1/' >scheduler
  qconf -Msconf scheduler
  printf '%s\n' 'pe_name mpi' 'slots 999' 'user_lists NONE' 'xuser_lists NONE' 'start_proc_args NONE' \
    'stop_proc_args NONE' "allocation_rule \$fill_up" 'control_slaves TRUE' 'job_is_first_task FALSE' \
    'urgency_slots min' 'accounting_summary TRUE' 'qsort_args NONE' >pe
  qconf -Ap pe
  printf '%s\n' 'group_name @allhosts' 'hostlist localhost' >group
  qconf -Ahgrp group
  qconf -sq | sed -e 's/^qname .*/qname main.q/' -e 's/^hostlist .*/hostlist @allhosts/' -e 's/^pe_list .*/pe_list mpi/' \
    -e 's/^slots .*/slots 4/' -e 's,^shell .*,shell /bin/bash,' -e 's/^load_thresholds .*/load_thresholds NONE/' >queue
  qconf -Aq queue
}

start() {
  write_cell
  sge_qmaster
  for _ in {1..50}; do
    qconf -sm &>/dev/null && break
    sleep 0.2
  done
  qconf -as localhost
  configure
  sge_execd
  for _ in {1..100}; do
    # A host that reports its memory has taken its settings.
    ! qhost 2>/dev/null | grep -q '^localhost .*[0-9]G' || return 0
    sleep 0.2
  done
  qhost >&2
  return 1
}

case $action in
  start) start >&2 ;;
  stop) qconf -ke all && qconf -km ;;
  *) exit 2 ;;
esac
