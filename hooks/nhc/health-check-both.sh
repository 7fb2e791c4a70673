#!/bin/sh
# The one HealthCheckProgram of a node that has LBNL Node Health Check (NHC): runs gpu-reaper-hc and NHC side by side.
# Install as /usr/sbin/health-check-both.sh, mode 0755: slurmd wants to read it, and passes no arguments. In slurm.conf:
#
#   HealthCheckProgram=/usr/sbin/health-check-both.sh
#   HealthCheckInterval=60
#
# Side by side, since no two times fit one after the other: NHC needs 35 s until its own watchdog (30 s) has ended it,
# and more to tell Slurm; gpu-reaper-hc has 45 s (its `deadline`); at 60 s slurmd kills all. So each has as long as if
# it were alone, and neither waits for the other. What is not over after `seconds` is killed, NHC with its process
# group, and never asked to end: NHC answers SIGTERM by draining the node.
# Exit status, which slurmd logs and no more: NHC's where it is not 0, else gpu-reaper-hc's; 124 for one that was
# killed here, 127 for one that is not there.
reaper=/usr/sbin/gpu-reaper-hc
nhc=/usr/sbin/nhc
seconds=55 # below HealthCheckTimeout (Slurm 26.05), if that is set
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

place=$(mktemp -d /run/health-check.XXXXXX || mktemp -d /tmp/health-check.XXXXXX)
if [ -z "$place" ] || ! mkfifo "$place/answers"; then
    echo "health-check-both.sh: no room for a pipe in /run and /tmp; NHC runs alone" >&2
    exec "$nhc"
fi
# 5: slurmd's pipe, which nobody else may hold: slurmd waits until the last one has let it go. 6 and 7: the two ends of
# the pipe for answers. 8 and 9: what both say, in a file that is gone with this shell.
# shellcheck disable=SC2094
exec 5>&1 6<>"$place/answers" 7<"$place/answers" 8>>"$place/said" 9<"$place/said"
rm -rf "$place"
exec </dev/null >&8 2>&8 8>&-

# side NAME PROGRAM [COMMAND]: runs a program, through the command if there is one, and answers with pid and status.
side() {
    exec 5>&- 7<&- 9<&-
    if [ ! -x "$2" ]; then
        echo "health-check-both.sh: $2 is not there"
        echo "$1_status=127" >&6
        return
    fi
    ${3:+"$3"} "$2" 6>&- &
    echo "$1_pid=$!" >&6
    wait $!
    echo "$1_status=$?" >&6
}
(side reaper "$reaper") &
(side nhc "$nhc" setsid) & # as NHC would do itself where it leads no process group
exec 6>&-

reaper_pid='' reaper_status='' nhc_pid='' nhc_status=''
# Ends with the last answer, or in time: nothing here waits for a process that cannot be killed.
eval "$(timeout "$seconds" cat <&7 5>&- 9<&-)"
if [ -z "$reaper_status" ]; then
    kill -KILL "$reaper_pid"
    reaper_status=124
    echo "health-check-both.sh: $reaper was not over after $seconds s and is killed"
fi
if [ -z "$nhc_status" ]; then
    kill -KILL "-$nhc_pid"
    nhc_status=124
    echo "health-check-both.sh: $nhc was not over after $seconds s and is killed"
fi
head -c 8192 <&9 >&5
[ "$nhc_status" -eq 0 ] || exit "$nhc_status"
exit "$reaper_status"
