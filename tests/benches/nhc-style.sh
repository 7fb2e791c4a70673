#!/bin/bash
# A yardstick: a node health check of the kind that sites write in bash. It reads /proc, df and ps once,
# keeps what it read in arrays, and runs a list of checks against them, each in plain shell. It changes
# nothing, never talks to Slurm, and a failed check only adds a line to its report.
#
# It is here to be measured, not to be used: the budget bench runs it in the same rounds as gpu-reaper-hc.

set -u
shopt -s extglob
LC_ALL=C
PATH=/usr/sbin:/usr/bin:/sbin:/bin

REPORT=()
CHECKS=0
FAILED=0

# ---------------------------------------------------------------- what was read

MOUNT_DEVICE=()
MOUNT_POINT=()
MOUNT_KIND=()
MOUNT_OPTIONS=()

read_mounts() {
  local device point kind options rest
  while read -r device point kind options rest; do
    point=${point//\\040/ }
    MOUNT_DEVICE+=("$device")
    MOUNT_POINT+=("$point")
    MOUNT_KIND+=("$kind")
    MOUNT_OPTIONS+=(",$options,")
  done </proc/mounts
}

DF_POINT=()
DF_SIZE=()
DF_USED=()
DF_FREE=()

read_df() {
  local flag=$1 device size used free share point
  DF_POINT=() DF_SIZE=() DF_USED=() DF_FREE=()
  while read -r device size used free share point; do
    [[ $device == Filesystem ]] && continue
    DF_POINT+=("$point")
    DF_SIZE+=("$size")
    DF_USED+=("$used")
    DF_FREE+=("$free")
  done < <(df "$flag" -P 2>/dev/null)
}

PS_PID=()
PS_PPID=()
PS_USER=()
PS_STATE=()
PS_RSS=()
PS_TIME=()
PS_NAME=()

read_ps() {
  local pid ppid user state rss time name
  while read -r pid ppid user state rss time name; do
    PS_PID+=("$pid")
    PS_PPID+=("$ppid")
    PS_USER+=("$user")
    PS_STATE+=("$state")
    PS_RSS+=("$rss")
    PS_TIME+=("$time")
    PS_NAME+=("$name")
  done < <(ps -e -o pid= -o ppid= -o user= -o stat= -o rss= -o cputimes= -o comm= 2>/dev/null)
}

declare -A MEM=()

read_meminfo() {
  local key value unit
  while read -r key value unit; do
    MEM[${key%:}]=$value
  done </proc/meminfo
}

CPU_SOCKETS=0
CPU_CORES=0
CPU_THREADS=0

read_cpuinfo() {
  local key colon value socket=0
  local -A sockets=() cores=()
  while read -r key colon value; do
    case "$key $colon" in
      "processor :") CPU_THREADS=$((CPU_THREADS + 1)) ;;
      "physical id") socket=${value#: } && sockets[$socket]=1 ;;
      "core id") cores[$socket.${value#: }]=1 ;;
    esac
  done </proc/cpuinfo
  CPU_SOCKETS=${#sockets[@]}
  CPU_CORES=${#cores[@]}
}

IF_NAME=()
IF_RECEIVED=()
IF_ERRORS=()

read_interfaces() {
  local line name rest
  local -a field
  while read -r line; do
    [[ $line == *:* ]] || continue
    name=${line%%:*}
    rest=${line#*:}
    read -r -a field <<<"$rest"
    IF_NAME+=("$name")
    IF_RECEIVED+=("${field[0]}")
    IF_ERRORS+=("${field[2]}")
  done </proc/net/dev
}

# ---------------------------------------------------------------- small words

fail() {
  FAILED=$((FAILED + 1))
  REPORT+=("$1")
}

# matches PATTERN TEXT: a glob, a /regular expression/, or either with ! in front.
matches() {
  local pattern=$1 text=$2 wanted=0
  if [[ $pattern == !* ]]; then
    wanted=1
    pattern=${pattern#!}
  fi
  if [[ $pattern == /*/ ]]; then
    pattern=${pattern#/}
    pattern=${pattern%/}
    [[ $text =~ $pattern ]]
  else
    # The right side is meant to be a glob.
    # shellcheck disable=SC2053
    [[ $text == $pattern ]]
  fi
  [[ $? -eq $wanted ]]
}

# in_kb NUMBER[kKmMgGtT]: sets KB.
in_kb() {
  local number=${1%%[!0-9]*} unit=${1##*[0-9]}
  case $unit in
    "" | k | K | kB) KB=$number ;;
    m | M | MB) KB=$((number * 1024)) ;;
    g | G | GB) KB=$((number * 1048576)) ;;
    t | T | TB) KB=$((number * 1073741824)) ;;
    *) KB=0 ;;
  esac
}

index_of_mount() {
  local i
  for i in "${!MOUNT_POINT[@]}"; do
    if [[ ${MOUNT_POINT[i]} == "$1" ]]; then
      INDEX=$i
      return 0
    fi
  done
  return 1
}

# ---------------------------------------------------------------- checks

check_mount() {
  local point=$1 kind=$2 option=$3
  if ! index_of_mount "$point"; then
    fail "mount: $point is not mounted"
    return
  fi
  matches "$kind" "${MOUNT_KIND[INDEX]}" || fail "mount: $point is ${MOUNT_KIND[INDEX]}, not $kind"
  [[ ${MOUNT_OPTIONS[INDEX]} == *",$option,"* ]] || fail "mount: $point lacks $option"
}

check_space() {
  local pattern=$1 least=$2 i
  in_kb "$least"
  for i in "${!DF_POINT[@]}"; do
    matches "$pattern" "${DF_POINT[i]}" || continue
    ((DF_FREE[i] >= KB)) || fail "space: ${DF_POINT[i]} has ${DF_FREE[i]} kB, wants $KB"
  done
}

check_share() {
  local pattern=$1 most=$2 i
  for i in "${!DF_POINT[@]}"; do
    matches "$pattern" "${DF_POINT[i]}" || continue
    ((DF_SIZE[i] > 0)) || continue
    ((DF_USED[i] * 100 / DF_SIZE[i] <= most)) || fail "share: ${DF_POINT[i]} is over $most %"
  done
}

check_memory() {
  local key=$1 least=$2
  in_kb "$least"
  ((${MEM[$key]:-0} >= KB)) || fail "memory: $key is ${MEM[$key]:-absent}, wants $KB kB"
}

check_cpus() {
  local least=$1
  ((CPU_THREADS >= least)) || fail "cpus: $CPU_THREADS threads, $CPU_CORES cores, $CPU_SOCKETS sockets"
}

check_load() {
  local most=$1 one five fifteen rest
  read -r one five fifteen rest </proc/loadavg
  ((${fifteen%.*} <= most)) || fail "load: $one $five $fifteen, at most $most"
}

check_daemon() {
  local name=$1 user=$2 i
  for i in "${!PS_NAME[@]}"; do
    [[ ${PS_NAME[i]} == "$name" && ${PS_USER[i]} == "$user" ]] && return
  done
  fail "daemon: $name of $user does not run"
}

check_strays() {
  local pattern=$1 seconds=$2 i
  for i in "${!PS_USER[@]}"; do
    matches "$pattern" "${PS_USER[i]}" || continue
    ((PS_TIME[i] <= seconds)) || fail "stray: ${PS_NAME[i]} (${PS_PID[i]}) of ${PS_USER[i]}: ${PS_TIME[i]} s"
  done
}

check_states() {
  local bad=$1 most=$2 i count=0
  for i in "${!PS_STATE[@]}"; do
    [[ ${PS_STATE[i]} == "$bad"* ]] && count=$((count + 1))
  done
  ((count <= most)) || fail "states: $count processes in state $bad"
}

check_resident() {
  local most=$1 i sum=0
  in_kb "$most"
  for i in "${!PS_RSS[@]}"; do
    sum=$((sum + PS_RSS[i]))
  done
  ((sum <= KB)) || fail "resident: $sum kB in all, at most $KB"
}

check_orphans() {
  local most=$1 i count=0
  for i in "${!PS_PPID[@]}"; do
    [[ ${PS_PPID[i]} == 1 && ${PS_USER[i]} != root ]] && count=$((count + 1))
  done
  ((count <= most)) || fail "orphans: $count"
}

check_interface() {
  local name=$1 i
  for i in "${!IF_NAME[@]}"; do
    [[ ${IF_NAME[i]} == "$name" ]] || continue
    ((IF_ERRORS[i] == 0)) || fail "interface: $name has ${IF_ERRORS[i]} errors after ${IF_RECEIVED[i]} bytes"
    return
  done
  fail "interface: $name is not there"
}

check_file() {
  local path=$1 test=$2
  test "-$test" "$path" || fail "file: $path fails -$test"
}

check_text() {
  local path=$1 pattern=$2 line
  while read -r line; do
    matches "$pattern" "$line" && return
  done <"$path"
  fail "text: $path has no line like $pattern"
}

check_users() {
  local name password id rest seen=0
  while IFS=: read -r name password id rest; do
    ((id == 0)) && seen=$((seen + 1))
  done </etc/passwd
  ((seen == 1)) || fail "users: $seen with id 0"
}

check_kernel() {
  local release
  read -r release </proc/sys/kernel/osrelease
  matches "$1" "$release" || fail "kernel: $release is not $1"
}

check_clock() {
  local now
  now=$(date +%s)
  ((now > $1)) || fail "clock: $now lies before $1"
}

check_gpu_devices() {
  local wanted=$1 found=0 device
  for device in /dev/nvidia+([0-9]); do
    [[ -c $device ]] && found=$((found + 1))
  done
  ((found >= wanted)) || fail "gpus: $found device files, wants $wanted"
}

# ---------------------------------------------------------------- the list

# Each line: which nodes, then the check with its arguments; read anew by every run, as such lists are.
LIST='
*        check_mount / * rw
*        check_mount /proc proc rw
*        check_mount /sys sysfs rw
*        check_space / 100M
*        check_space /tmp 100M
*        check_share / 99
*        check_memory MemTotal 256M
*        check_memory MemFree 1M
*        check_memory SwapTotal 0
*        check_cpus 1
*        check_load 500
gpu*     check_daemon slurmd root
!/^n0$/  check_strays /^(nobody|games)$/ 600
*        check_states D 64
*        check_states Z 256
*        check_resident 4T
*        check_orphans 4096
*        check_interface lo
*        check_file /etc/passwd r
*        check_file /tmp w
*        check_file /etc/hosts s
*        check_text /etc/passwd root:*
*        check_text /proc/mounts /^proc/
*        check_users
*        check_kernel /^[0-9]+\.[0-9]+/
*        check_clock 1700000000
*        check_gpu_devices 0
'

run_list() {
  local nodes check
  local -a words
  set -f
  while read -r nodes check; do
    [[ -n $nodes && $nodes != \#* ]] || continue
    matches "$nodes" "$NODE" || continue
    read -r -a words <<<"$check"
    CHECKS=$((CHECKS + 1))
    set +f
    "${words[@]}"
    set -f
  done <<<"$LIST"
  set +f
}

main() {
  NODE=${SLURMD_NODENAME:-$(hostname -s 2>/dev/null || echo n1)}
  read_mounts
  read_df -i
  check_share / 99
  read_df -k
  read_ps
  read_meminfo
  read_cpuinfo
  read_interfaces
  run_list
  if ((FAILED > 0)); then
    printf '%s: %d of %d checks failed: %s\n' "$NODE" "$FAILED" "$CHECKS" "${REPORT[*]}"
    return 1
  fi
  printf '%s: %d checks, all well\n' "$NODE" "$CHECKS"
}

main "$@"
