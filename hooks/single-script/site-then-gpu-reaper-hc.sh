#!/bin/sh
# For a site whose Prolog and Epilog are one script each: runs the site's, then the hook of gpu-reaper-hc. In slurm.conf
#
#   Prolog=/etc/slurm/site-then-gpu-reaper-hc.sh
#   Epilog=/etc/slurm/site-then-gpu-reaper-hc.sh
#
# or, instead of this file, one line at the very end of each script of the site, where all else went well:
#
#   /etc/slurm/prolog.d/50-gpu-reaper-hc.sh || :
#   /etc/slurm/epilog.d/00-gpu-reaper-hc.sh || exit 1
#
# The site's exit status is passed on as it is, and one that failed ends it: an Epilog of ours that does not come keeps
# our drain in place. Ours adds one failure, status 1 of the Epilog: a leak was found and the node could not be drained.
#
# The scripts of the site, such as /etc/slurm/prolog.sh. Empty: there is none. One that is named and missing fails with
# status 127, as it would in slurm.conf itself.
site_prolog=
site_epilog=
hooks=/etc/slurm

case ${SLURM_SCRIPT_CONTEXT:-} in
    prolog_slurmd) site=$site_prolog ours=$hooks/prolog.d/50-gpu-reaper-hc.sh leak=0 ;;
    epilog_slurmd) site=$site_epilog ours=$hooks/epilog.d/00-gpu-reaper-hc.sh leak=1 ;;
    *) exit 0 ;;
esac
[ -z "$site" ] || "$site" || exit
[ -x "$ours" ] || exit 0
"$ours" || [ $? -ne 1 ] || exit "$leak"
exit 0
