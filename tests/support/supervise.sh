#!/usr/bin/env bash
# Runs a command for a test process, and kills it when that process is gone: no server outlives its test.
#
# usage: supervise.sh DIR LOG COMMAND...
# Each line on stdin starts the command once more; the answer is its pid. The end of stdin says that the test
# process has no more use for it, or is gone, however it went: then the command is killed and DIR removed.
set -euo pipefail

dir=$1 log=$2
shift 2
exec 2>>"$log" # where bash reports how the command ended

# When the test process dies while the command is stopped, the kernel hangs up on the whole process group.
trap '' HUP

while read -r _; do
  "$@" </dev/null >>"$log" &
  echo "$!"
done

# Bash lists what still runs; the pid of what has ended may have been given out again. SIGKILL also ends a
# process that is stopped.
for pid in $(jobs -pr); do
  kill -KILL "$pid" || true
done
wait
rm -rf -- "$dir"
