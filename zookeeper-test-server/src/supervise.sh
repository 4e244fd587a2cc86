#!/usr/bin/env bash
# Runs a command for a test process and kills it when that process ends.
#
# usage: supervise.sh DIR LOG COMMAND...
# Each line on stdin starts the command again; the answer is its pid. When stdin ends, the test process
# no longer needs the command or has itself ended. The command is then killed and DIR is removed.
set -euo pipefail

dir=$1 log=$2
shift 2
exec 2>>"$log" # bash reports here how the command ended

# If the test process dies while the command is stopped, the kernel sends SIGHUP to the whole
# process group.
trap '' HUP

while read -r _; do
  "$@" </dev/null >>"$log" &
  echo "$!"
done

# Bash lists only running processes: the pids of ended processes may have been reused. SIGKILL also ends
# a stopped process.
for pid in $(jobs -pr); do
  kill -KILL "$pid" || true
done
wait
rm -rf -- "$dir"
