#!/bin/sh
# Prolog: registers the job with gpu-reaper-hc, so that health checks know it without asking slurmctld.
# Never fails: a Prolog that ends with another status than 0 drains the node and holds the job.
# Install as /etc/slurm/prolog.d/50-gpu-reaper-hc.sh with Prolog=/etc/slurm/prolog.d/* (slurm.conf(5)).
program=${GPU_REAPER_HC:-/usr/sbin/gpu-reaper-hc}
[ -x "$program" ] || exit 0

# Only what registering takes: the rest holds text that users choose (comments, SPANK variables, paths).
set --
for name in SLURMD_NODENAME SLURM_CONF SLURM_CLUSTER_NAME SLURM_SCRIPT_CONTEXT SLURM_JOB_ID SLURM_JOB_SLUID \
    SLURM_HET_JOB_ID SLURM_JOB_RESTART_COUNT SLURM_JOB_START_TIME SLURM_JOB_END_TIME SLURM_JOB_UID \
    SLURM_JOB_USER SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST \
    SLURM_NODELIST SLURM_JOB_GPUS CUDA_VISIBLE_DEVICES GPU_REAPER_CONFIG; do
    # An unset variable stays unset: a job without SLURM_JOB_GPUS holds no GPU here.
    eval "[ -z \"\${$name+set}\" ] || set -- \"\$@\" \"$name=\$$name\""
done
/usr/bin/env -i "$@" "$program" prolog </dev/null || :
exit 0
