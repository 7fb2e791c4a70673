# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gpu_reaper_hc_global_optspecs
    string join \n config= node= json explain= h/help V/version
end

function __fish_gpu_reaper_hc_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gpu_reaper_hc_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gpu_reaper_hc_using_subcommand
    set -l cmd (__fish_gpu_reaper_hc_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -l explain -d 'Explain one job, as `explain JOBID` does' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -s V -l version -d 'Print version'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "prolog" -d 'Register the job of Slurm\'s Prolog environment; always exits 0'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "epilog" -d 'Clear the job of Slurm\'s Epilog environment, look at its GPUs'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "explain" -d 'Say why a job is or is not judged, what was done, what comes next'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "keep" -d 'Spare one running job drain and cancel for a time; from any node'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "release" -d 'Lift the drain that we made on this node; nobody else\'s'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "ack" -d 'Take a fault of this node on; without FAULT: list what is open'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "status" -d 'Show this node on one screen: GPUs, jobs, verdicts, hours, drains'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "cases" -d 'List the case files of ended jobs that were found, newest first'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "config" -d 'Check, show or print the configuration'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "doctor" -d 'Look at this node\'s set-up: what is wrong, which line mends it'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "backtest" -d 'Judge what is recorded: what would have been done, and when'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "scenarios" -d 'Play every scenario; print its verdict and the sentence it proves'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_needs_command" -f -a "demo" -d 'Watch two wasted jobs escalate: no cluster, no GPU, no root'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand prolog" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand prolog" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand prolog" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand prolog" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand epilog" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand epilog" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand epilog" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand epilog" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand explain" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand explain" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand explain" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand explain" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l for -d 'For how long from now, 1m to 30d' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l reason -d 'Why, for those who read it later' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l end -d 'End a keep now'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand keep" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand release" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand release" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand release" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand release" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand ack" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand ack" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand ack" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand ack" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand status" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand status" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand status" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand status" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -l since -d 'Only those that ended within this time' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -l csv -d 'Print CSV; with --json: an object a line, not both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand cases" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -f -a "check" -d 'Report every error and note of the file; exits 1 on errors'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -f -a "show" -d 'Print the effective values with their origin'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and not __fish_seen_subcommand_from check show example" -f -a "example" -d 'Print the commented default file'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from check" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from check" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from check" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from show" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from example" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from example" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from example" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand config; and __fish_seen_subcommand_from example" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand doctor" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand doctor" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand doctor" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l trace -d 'Recordings instead of the ledger' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l every -d 'As if a run came this often' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l job-start -d 'The job began so long before' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand backtest" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand scenarios" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand scenarios" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand scenarios" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand scenarios" -s h -l help -d 'Print help'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand demo" -l config -d 'Configuration [/etc/gpu-reaper-hc/config.yaml]' -r -F
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand demo" -l node -d 'Slurm\'s name of this node (SLURMD_NODENAME)' -r
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand demo" -l json -d 'JSON instead of text, where a command has both'
complete -c gpu-reaper-hc -n "__fish_gpu_reaper_hc_using_subcommand demo" -s h -l help -d 'Print help'
