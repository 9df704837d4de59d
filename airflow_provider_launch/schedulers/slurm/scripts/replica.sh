#!/bin/bash
# One replica as srun starts it: its attempts, signals, files and exit codes. Argument: the attempt of the app.
# With `program` first it runs the program of the replica, and writes its exit code to the pipe 8.

if [ "$1" = program ]; then
    launch_k=$2 launch_role_file=$3 launch_env=$4 launch_attempt=$5 launch_at=$6 launch_result=$7
    launch_dir=$PWD
    trap 'echo "$?" >&8' EXIT
    for launch_name in $(compgen -e); do
        case $launch_name in
            PATH | HOME | USER | LOGNAME | SHELL | LANG | LANGUAGE | LC_* | TZ | TMPDIR | XDG_RUNTIME_DIR | KRB5CCNAME) ;;
            SLURM_* | SLURMD_NODENAME | CUDA_* | NVIDIA_* | ROCR_* | HIP_* | ZE_* | GPU_DEVICE_ORDINAL | PMI* | OMPI_*) ;;
            LD_LIBRARY_PATH | MODULE* | LMOD_* | LOADEDMODULES | _LMFILES_ | BASH_ENV | PWD) ;;
            *) unset "$launch_name" ;;
        esac
    done
    launch_setup_failed() { # code, command, depth of the file: a line of the option `setup`
        [ "$3" = 2 ] || return "$1"
        local text="setup: '$2' failed with $1"
        echo "$text" >&2
        text=${text//\\/\\\\}
        text=${text//\"/\\\"}
        printf '{"message": "%s"}\n' "${text//[[:cntrl:]]/ }" >"$TORCHELASTIC_ERROR_FILE"
        exit "$1"
    }
    export LAUNCH_ATTEMPT=$launch_attempt TORCHELASTIC_ERROR_FILE=$launch_at/error.json
    [ ! "$launch_result" ] || export LAUNCH_RESULT_PATH=$launch_at/result
    . "$launch_env"
    . "$launch_role_file"
    exec 9>&2 2>>"${launch_at%/*}/replica.log" # messages of bash about a killed program are not output of the program
    trap : TERM USR1 USR2 INT HUP # the program handles them, and this shell waits for it
    (exec 2>&9 8>&- 9>&-; exec "$@")
    exit
fi

. ./plan || exit 78
app_attempt=$1 k=${SLURM_PROCID:-0}
for r in $launch_order; do
    count=launch_count_$r
    [ "$k" -ge "${!count}" ] || break
    k=$((k - ${!count}))
done
folder=launch_folder_$r policy=launch_policy_$r retries=launch_retries_$r
dir=$PWD/run/$app_attempt/${!folder}/$k
mkdir -p "$dir"
exec </dev/null >/dev/null 2>>"$dir/replica.log"

pid='' signalled='' asked='' warned='' stop='' kill_at='' check_at=$launch_check_s
now() { local t=${EPOCHREALTIME:-$(date +%s.%N)}; echo "${t/[!0-9]/.}"; }
ms() { local t=${EPOCHREALTIME:-$(date +%s.%N)}; t=${t/[!0-9]/}; echo "${t:0:13}"; }
is_removed() { case $(LC_ALL=C stat -- "$PWD/plan" 2>&1) in *'No such file'*) ;; *) return 1 ;; esac; }
note() { until : >"status/$1" || is_removed; do sleep 1; done; }
# Slurm may consider a node lost that still runs. The app then ends or restarts elsewhere, and only this script can stop
# its program. NFS caches that a file was missing until the directory is read again.
is_over() {
    timeout -s KILL 5 ls . run >/dev/null
    [ "$?" != 137 ] || return
    [ -L end ] || [ -e cancel ] || [ -e "run/$((app_attempt + 1))" ] || { [ ! -e plan ] && is_removed; }
}
forward() { [ ! "$pid" ] || kill -s "$1" -- "-$pid"; }
# Traps only set flags: bash aborts a trap when the timeout of `read -t` expires.
# Slurm signals all processes of a step. WINCH and URG, which other processes ignore, stand for TERM and the signal of the
# option. TERM itself comes from Slurm, when it ends the job or another replica has failed.
trap 'signalled=1' TERM
trap 'asked=1' WINCH
trap 'warned=1' URG
trap : USR1 USR2 INT HUP
take_signals() {
    [ ! "$warned" ] || { warned='' && forward "$launch_signal"; }
    [ "$signalled$asked" ] && [ ! "$stop" ] || return
    stop=1 kill_at=$(($(ms) + launch_grace_ms))
    [ ! "$signalled" ] || sleep 0.3
    ! kill -0 "$witness" || forward TERM
}
keep_grace() { [ ! "$stop" ] || [ "$(ms)" -lt "$kill_at" ] || forward KILL; }

# The index of times: `time bytes-of-stdout bytes-of-stderr` while these grow. The kernel's position in an append-only
# file is its size; reading it needs neither a process nor the file server.
note_times() {
    local out err t
    read -r _ out </proc/self/fdinfo/5 && read -r _ err </proc/self/fdinfo/6 || return
    [ "$out $err" != "$noted" ] || return
    noted="$out $err" t=${EPOCHREALTIME:-$(date +%s.%N)}
    t=${t/[!0-9]/.}
    echo "${t:0:13} $noted" >&7
}
# The end of the program comes through a pipe: `wait` of bash may miss it when a signal comes at the same time.
# The index is written ten times in the first second, because lines of short apps are ordered by it, twice a second after
# five seconds, and every 1.4 seconds after a day, so that it has at most a few MB.
await_program() {
    local began=$SECONDS age pause part ended=''
    code='' noted='0 0'
    while [ ! "$ended" ]; do
        kill -0 "$pid" || ended=1 # its shell has written to the pipe
        note_times
        age=$((SECONDS - began))
        pause=$((age < 5 ? 10 + 8 * age : 50 + age / 1000)) # hundredths of a second
        printf -v pause '%d.%02d' $((pause / 100)) $((pause % 100))
        ! read -r -t "$pause" part <&8 || ended=1
        code+=$part # a signal may cut it in two
        if [ "$SECONDS" -ge "$check_at" ]; then
            ! is_over || signalled=1
            check_at=$((SECONDS + launch_check_s))
        fi
        take_signals
        keep_grace
    done
    code=${code:-137} # its shell was killed, too
}

# A process in a group of its own, like the program, that TERM ends: if it has ended, Slurm has signalled the program, too,
# and a second TERM would interrupt its checkpoint. It reads from a pipe to which only this script can write.
exec 4<> <(:)
set -m
(trap '' USR1 USR2 INT HUP; exec cat </dev/fd/4 4>&- >/dev/null) &
witness=$!
set +m
node=${SLURMD_NODENAME:-$HOSTNAME} n=0
result=''
[ "$r" != 0 ] || result=1
take_signals
while [ ! "$stop" ] && ! is_over; do
    at=$dir/$n stopped=0
    mkdir -p "$at"
    exec 5>>"$at/stdout" 6>>"$at/stderr" 7>>"$at/times" 8<> <(:)
    note "start,$app_attempt,$r,$k,$n,${node//[^A-Za-z0-9._-]/_},$(now)"
    # Its own process group: a signal to this script must not end the program directly.
    set -m
    bash $launch_login ./replica.sh program "$k" "./role-$r.sh" "./run/$app_attempt/env" \
        $((app_attempt > n ? app_attempt : n)) "$at" "$result" >&5 2>&6 4>&- 5>&- 6>&- 7>&- &
    pid=$!
    set +m
    await_program
    # Slurm may signal the program before this script, so wait a moment to see whether it was stopped or has failed.
    [ "$code" = 0 ] || [ "$stop" ] || sleep 0.3
    take_signals
    [ ! "$stop" ] || stopped=1
    kill -KILL -- "-$pid" # its background processes
    pid=''
    note_times
    exec 5>&- 6>&- 7>&- 8>&-
    note "exit,$app_attempt,$r,$k,$n,$code,$stopped,$(now)"
    [ "$code" != 0 ] || break
    [ "${!policy}" = REPLICA ] && [ "$n" -lt "${!retries}" ] || break
    n=$((n + 1))
    take_signals
done
kill -KILL "$witness"
# If a stopped replica looked like a failed one, Slurm would signal the others, too.
[ ! "$stop" ] || exit 0
exit "${code:-143}"
