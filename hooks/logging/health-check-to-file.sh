#!/bin/sh
# The HealthCheckProgram of a node without journald. There a run writes to standard error, which slurmd puts into its
# own log only where the run fails, or at SlurmdDebug=debug2: this appends it to a file, which gpu-reaper-hc.logrotate
# keeps small. Where that cannot be written the run goes on as without this script.
log=/var/log/gpu-reaper-hc.log
program=/usr/sbin/gpu-reaper-hc
if (: >>"$log") 2>/dev/null; then
    exec "$program" 2>>"$log"
fi
exec "$program"
