#!/usr/bin/env bash
# Runs a command for a test process, and kills it when that process ends.
#
# usage: supervise.sh DIR LOG COMMAND...
# Each line on stdin starts the command once more; the answer is its pid. At the end of stdin the
# test process no longer needs the command, or has ended in some way: then the command is killed
# and DIR removed.
set -euo pipefail

dir=$1 log=$2
shift 2
exec 2>>"$log" # where bash reports how the command ended

# If the test process dies while the command is stopped, the kernel sends SIGHUP to the whole
# process group.
trap '' HUP

while read -r _; do
  "$@" </dev/null >>"$log" &
  echo "$!"
done

# Bash lists only running processes; the pids of ended ones may have been reused. SIGKILL also ends
# a stopped process.
for pid in $(jobs -pr); do
  kill -KILL "$pid" || true
done
wait
rm -rf -- "$dir"
