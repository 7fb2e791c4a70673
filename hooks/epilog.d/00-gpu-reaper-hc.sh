#!/bin/sh
# Epilog: clears the job from what gpu-reaper-hc judges, keeps its case file, and looks whether its GPUs are clean.
# Ends with another status than 0, which drains the node, only where the program says so by status 75: under
# `mode: enforce` with `epilog.on_leak: drain`, a process outlived its job and the drain could not be made. No loader,
# shell or signal gives 75 (a library that is too old gives 1): a program that is missing or dies drains nothing.
# Must be the last to run: a drain is released after its job only if this ran, and Slurm starts none after one that
# failed. Of Epilog=/etc/slurm/epilog.d/* it runs the last name first (22.05 to 26.05), hence 00: install as
# /etc/slurm/epilog.d/00-gpu-reaper-hc.sh, before every other name; call it last where one script calls the others.
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
[ $? -ne 75 ] || exit 1
exit 0
