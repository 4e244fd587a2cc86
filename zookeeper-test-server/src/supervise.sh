#!/usr/bin/env bash
# Runs a command for a test process and kills it when that process ends.
#
# usage: supervise.sh DIR LOG COMMAND...
# Each line on stdin starts the command, whose pid is then printed. When stdin ends, the test process has
# ended or no longer needs the command. The command is then killed and DIR is removed.
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

# Kill only the processes that bash lists as running, because the pids of others may have been reused. SIGKILL
# also ends a stopped process.
for pid in $(jobs -pr); do
  kill -KILL "$pid" || true
done
wait
rm -rf -- "$dir"
