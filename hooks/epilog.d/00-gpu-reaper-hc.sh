#!/bin/sh
# Epilog: clears the job from what gpu-reaper-hc judges, and keeps its case file.
# Ends with another status than 0, which drains the node, only where the program says so by status 1
# (kept for leaks that could not be drained; this version never does): a program that is missing or dies drains
# nothing.
# Install as /etc/slurm/epilog.d/00-gpu-reaper-hc.sh with Epilog=/etc/slurm/epilog.d/* (slurm.conf(5)).
# The name matters: slurmd runs them in reversed byte order, and a script that fails keeps those after it from running
# (measured with 22.05, 24.11 and 26.05). The first name runs last: that this hook came says that all others ended well.
program=${GPU_REAPER_HC:-/usr/sbin/gpu-reaper-hc}
[ -x "$program" ] || exit 0

# Only what clearing takes: the rest holds text that users choose (comments, SPANK variables, paths).
set --
for name in SLURMD_NODENAME SLURM_CONF SLURM_CLUSTER_NAME SLURM_SCRIPT_CONTEXT SLURM_JOB_ID SLURM_JOB_SLUID \
    SLURM_HET_JOB_ID SLURM_JOB_RESTART_COUNT SLURM_JOB_START_TIME SLURM_JOB_END_TIME SLURM_JOB_UID \
    SLURM_JOB_USER SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST \
    SLURM_NODELIST SLURM_JOB_GPUS CUDA_VISIBLE_DEVICES SLURM_JOB_EXIT_CODE SLURM_JOB_EXIT_CODE2 \
    SLURM_JOB_DERIVED_EC GPU_REAPER_CONFIG; do
    # An unset variable stays unset: a job without SLURM_JOB_GPUS held no GPU here.
    eval "[ -z \"\${$name+set}\" ] || set -- \"\$@\" \"$name=\$$name\""
done
/usr/bin/env -i "$@" "$program" epilog </dev/null
[ $? -ne 1 ] || exit 1
exit 0
