#!/usr/bin/env bash
# Runs one rank's command, passes signals on to it, and writes into the run's folder by which signal it was killed: the
# rank cannot say so itself, and launchers say it each in their own words, or end everybody before anybody says a word.
# usage: keep.sh RANK HOST COMMAND [ARGUMENT ...] RUN_FOLDER
set -euo pipefail

readonly rank=$1 host=$2 folder=${*: -1}
shift 2

# Until the ranks have met, nobody else knows where each of them is.
[[ ! -f $folder/config.yaml ]] || printf '%d %s\n' "$rank" "$host" >>"$folder/ranks.txt" || true

signals=0 child='' early=''
for name in TERM USR1 INT; do
  # shellcheck disable=SC2064
  trap "signals=\$((signals + 1)); [[ -n \$child ]] || early=$name; kill -$name \$child 2>/dev/null || true" "$name"
done
"$@" &
child=$!
[[ -z $early ]] || kill -"$early" "$child" 2>/dev/null || true
while true; do
  before=$signals status=0
  wait "$child" || status=$?
  [[ $status -gt 128 && $signals -ne $before ]] || break
done

readonly said=$folder/failure_$rank.json
note() { # message, status, more
  [[ -f $folder/config.yaml && ! -e $said ]] || return 0
  printf '{"rank": %d, "host": "%s", "step": null, "message": "%s", "second_hand": true, "status": %d,%s "time": %s}\n' \
    "$rank" "$host" "$1" "$2" "${3:-}" "${EPOCHREALTIME/,/.}" >"$said" || true
}
case $status in
  # Told to stop before it could listen: its interpreter was just starting.
  138) note 'stopped by SIGUSR1' 75 && status=75 ;;
  143) note 'stopped by SIGTERM' 75 && status=75 ;;
  *) [[ $status -le 128 || $signals -ne 0 ]] ||
    note "was killed by signal $((status - 128))" "$status" " \"killed_by\": $((status - 128))," ;;
esac
exit "$status"
