#!/usr/bin/env bash
# Runs the command of one rank, passes signals on to it, and writes a failure report into the run folder if a signal
# killed it or it could not be started. The rank cannot write that report itself. Launchers report the signal in words of
# their own, or they end all ranks before any rank can report.
# usage: supervise_rank.sh RANK HOST COMMAND [ARGUMENT ...] RUN_FOLDER
set -euo pipefail

readonly rank=$1 host=$2 folder=${*: -1}
shift 2

# Until the ranks have met, only this file says on which host each rank is.
[[ ! -f $folder/config.yaml ]] || printf '%d %s\n' "$rank" "$host" >>"$folder/ranks.txt" || true

# The local launcher signals the whole process group, and a rank must not get the same signal twice.
pass_on='kill'
[[ -z ${RANK_GROUP_SIGNALLED:-} ]] || pass_on=:
signals=0 child='' early='' helpers=()
exec {never}<> <(:)
for name in TERM USR1 INT; do
  # shellcheck disable=SC2064
  trap "signals=\$((signals + 1)); [[ -n \$child ]] || early=$name; $pass_on -$name \$child 2>/dev/null || true
    kill_without_launcher" "$name"
done

# Once the launcher is gone, or the ssh server that started this rank for it, nobody else kills a rank that stands still.
# shellcheck disable=SC2329 # The traps call it.
kill_without_launcher() {
  local parent
  read -r _ _ _ parent _ <"/proc/$$/stat"
  [[ $parent -ne $PPID && -n $child ]] || return 0
  {
    read -rt 6 -u "$never" || true
    kill -KILL "$child"
  } 2>/dev/null &
  helpers+=($!)
}

# Sets kills, how many processes of this control group the kernel has killed because memory ran out, and the limit.
count_kills() {
  local controllers path group bytes
  kills=0 limit=''
  while IFS=: read -r _ controllers path; do
    case ,$controllers, in
      ,,) group=/sys/fs/cgroup$path ;;
      *,memory,*) group=/sys/fs/cgroup/memory$path ;;
      *) continue ;;
    esac
    kills=$((kills + $({ cat "$group"/memory.{events,oom_control} 2>/dev/null || true; } | sed -n "s/^oom_kill //p") + 0))
    bytes=$(cat "$group"/memory.{max,limit_in_bytes} 2>/dev/null) || true
    # Without a limit, version 2 says max, and version 1 a number of 19 digits.
    [[ ! $bytes =~ ^[0-9]{1,18}$ ]] || limit="$group, limit $((bytes / 1000000)) MB"
  done </proc/self/cgroup
}
count_kills
readonly kills_before=$kills

# Any library can end a rank with 0: at the end of the run it ends with 76, see configs/errors.py.
[[ ${*: -3:2} != '-m train' ]] || export RANK_ENDS_WITH=76
"$@" &
child=$!
if [[ -n ${RANK_LOOKS_FOR:-} ]]; then
  # horovodrun cannot pass a signal on to other hosts; see launch/start/launcher_signals.py.
  {
    while kill -0 "$child"; do
      [[ ! -e $RANK_LOOKS_FOR ]] || { kill -TERM "$child" && break; }
      read -rt 1 -u "$never" || true
    done
  } 2>/dev/null &
  helpers+=($!)
fi
[[ -z $early ]] || kill -"$early" "$child" 2>/dev/null || true
# A signal ends the wait, not the rank.
while true; do
  before=$signals status=0
  wait "$child" || status=$?
  [[ $status -gt 128 && $signals -ne $before ]] || break
done
[[ -z ${RANK_ENDS_WITH:-} ]] || case $status in 0 | 76) status=$((76 - status)) ;; esac
[[ ${#helpers[@]} -eq 0 ]] || kill "${helpers[@]}" 2>/dev/null || true

readonly report=$folder/failure_$rank.json
write_report() { # message, status, more
  [[ -f $folder/config.yaml && ! -e $report ]] || return 0
  printf '{"rank": %d, "host": "%s", "step": null, "message": "%s", "second_hand": true, "status": %d,%s "time": %s}\n' \
    "$rank" "$host" "$1" "$2" "${3:-}" "${EPOCHREALTIME/,/.}" >"$report" || true
}
case $status in
  # The signal came while the rank's interpreter was starting, before it could handle signals.
  138) write_report 'stopped by SIGUSR1' 75 && status=75 ;;
  143) write_report 'stopped by SIGTERM' 75 && status=75 ;;
  *)
    # A rank reports by itself what it ends with: 1, 2, 75, 130.
    if [[ $status -gt 2 && $status -ne 75 && $status -ne 130 && $signals -eq 0 ]]; then
      killed_by=$((status - 128)) words="was killed by signal $((status - 128))"
      # There are 64 signals. Open MPI ends a rank that has lost its daemon with status 195.
      [[ $killed_by -gt 0 && $killed_by -le 64 ]] || killed_by=null words="ended with status $status"
      [[ $status -ne 76 ]] || words='ended with status 0 before the run was over'
      # The kernel's SIGALRM is the last word of train/rank/watchdog.py.
      [[ $status -ne 142 ]] || words='was ended by SIGALRM, by which its watchdog ends a rank that stands still'
      count_kills
      more=''
      [[ $status -ne 137 || $kills -le $kills_before ]] || more=" \"ran_out_of_memory\": \"${limit:-no limit}\","
      write_report "$words" "$status" " \"killed_by\": $killed_by,$more"
    fi
    ;;
esac
exit "$status"
