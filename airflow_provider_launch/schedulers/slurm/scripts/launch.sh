#!/bin/bash
# The job of an app: claims it, runs its attempts, records its end. Slurm starts it in the directory of the app.
# Argument: the nonce of this submission. The state is in names of files and targets of links, which are atomic.

# Slurm has entered a path that other users may have changed while the job waited.
launch_foreign=$(find . .. ../.. plan -maxdepth 0 \( ! -uid "$EUID" -o -perm /022 \)) && [ ! "$launch_foreign" ] || {
    echo "$PWD or a directory above it is open to other users: nothing in it is run" >&2
    exit 78
}
. ./plan || exit 78
launch_dir=$PWD
signalled='' term='' timers=()

now() { local t=${EPOCHREALTIME:-$(date +%s.%N)}; echo "${t/[!0-9]/.}"; }
# If the directory was removed, the app was deleted. Other errors are temporary, such as those of NFS.
is_removed() { case $(LC_ALL=C stat -- "$PWD/plan" 2>&1) in *'No such file'*) ;; *) return 1 ;; esac; }
note() { until : >"status/$1" || is_removed; do sleep 1; done; } # if the disk is full, retry until there is room
end() { until ln -s "$1,$(now)" end 2>/dev/null || [ -L end ] || is_removed; do sleep 1; done; }
in_background() { set -m; "$@" & set +m; timers+=($!); } # its own process group, so that its sleep ends with it
stop_timers() { local t; for t in "${timers[@]}"; do kill -KILL -- "-$t" 2>/dev/null; done; timers=(); }
signal_replicas() { timeout 20 scancel --signal="$1" "$SLURM_JOB_ID"; } # steps only, of all components

# Repeat, because a step that has just started, or a busy controller, may miss the first signal. Slurm signals all
# processes of a step, so WINCH, which programs without a terminal ignore, stands for the TERM that they get once. By its
# number, because scancel does not know its name.
keep_stopping() {
    local until=$((SECONDS + launch_grace_ms / 1000 + 30))
    while kill -0 $$; do
        if [ "$SECONDS" -lt "$until" ]; then signal_replicas "$(kill -l WINCH)"; else signal_replicas KILL; fi
        sleep 3
    done
}

# Both end with the script: if only the script is killed, they must stop, too.
watch_clock() { # gives signs of life, warns before the time limit, and enforces it
    local warned='' left
    while kill -0 $$; do
        touch alive || ! is_removed || keep_stopping
        ! is_over || kill -TERM $$ # the signal of a cancel may be lost, and other recorded ends send none
        left=15
        if [ "$launch_limit_s" ]; then
            if [ "$launch_warn_s" ] && [ ! "$warned" ]; then
                left=$((launch_limit_s - launch_warn_s - SECONDS))
                [ "$left" -gt 0 ] || { warned=1; left=$((launch_limit_s - SECONDS)); signal_replicas URG; }
            else
                left=$((launch_limit_s - SECONDS))
            fi
            [ "$SECONDS" -lt "$launch_limit_s" ] || { note limit; keep_stopping; }
        fi
        sleep $((left < 15 ? (left > 0 ? left : 0) : 15))
    done
}

# The trap only sets a flag: bash aborts a trap when the timeout of `read -t` expires.
is_stopped() {
    [ ! "$signalled" ] || [ "$term" ] || stop
    [ "$term" ]
}
stop() { # by our cancel, by scancel, or by Slurm itself: the reason is available only now
    term=$(timeout 5 scontrol -o show job "$SLURM_JOB_ID" | sed -n '1s/.* Reason=\([A-Za-z_]*\).*/\1/p')
    term=${term:-None}
    note "term,$term,$(now)"
    touch term
    # Do this even if Slurm itself signals the replicas, because a step that just starts may miss it. But not if the job
    # is put back into the queue: it has the same number, and would be cancelled there.
    [ "$launch_requeue" = 1 ] && ! is_marked cancel || in_background keep_stopping
}
is_marked() { ls >/dev/null; [ -e "$1" ]; } # NFS caches that a file was missing, until the directory is read again
is_over() { is_marked cancel || [ -L end ]; }
is_current() { # whether Slurm still runs this start of the job; true if the controller does not answer
    local found tries=0
    while [ $((tries += 1)) -le 3 ] && ! is_stopped; do
        found=$(LC_ALL=C timeout 5 scontrol -o show job "$SLURM_JOB_ID" 2>&1 | sed -n '/ JobState=\|Invalid job id/{p;q}')
        case $found in
            *" JobState=RUNNING "*" Restarts=${SLURM_RESTART_COUNT:-0} "*) return 0 ;;
            ?*) return 1 ;;
        esac
        sleep 1
    done
    return 0
}
# Slurm has put the job back into its queue while this node was unreachable, and it has started again.
is_replaced() { ls run >/dev/null; [ -e "run/$((attempt + 1))" ]; }

# The last disruption that the roles allow was the one before this start: Slurm must not put the job back once more.
# If that cannot be set, the job ends at its next start. True if this start is one too many.
is_disrupted_too_often() {
    local tries=0
    [ "$launch_requeue" = 1 ] && [ "$launch_max_disruptions" ] || return
    [ "${SLURM_RESTART_COUNT:-0}" -ge "$launch_max_disruptions" ] || return
    while [ $((tries += 1)) -le 3 ]; do
        timeout 5 scontrol update "JobId=$SLURM_JOB_ID" Requeue=0 && { launch_requeue=0; break; }
        sleep 1
    done
    [ "${SLURM_RESTART_COUNT:-0}" -gt "$launch_max_disruptions" ]
}

await_last_attempt() { # its programs may run on a node that Slurm considers lost, until they notice this attempt
    local until=$((SECONDS + launch_check_s + launch_grace_ms / 1000 + 5))
    while [ "$SECONDS" -lt "$until" ] && ! is_stopped; do
        ls status | awk -F, -v a="$1" '
            $1 == "start" && $2 == a { lives[$3 "," $4 "," $5] }
            $1 == "exit" && $2 == a { ended[$3 "," $4 "," $5] }
            END { for (at in lives) if (!(at in ended)) exit 1 }' && return
        sleep 1
    done
}

# A program may have made other entries, whose names bash would evaluate in arithmetic: `08` ends its loop. As bytes: grep
# would stop at a name that is not in its charset.
last_attempt() {
    ls run | LC_ALL=C grep -axE '0|[1-9][0-9]{0,5}' | sort -n | tail -n 1
}

choose_ports() {
    local used name port hex
    used=$(awk 'FNR > 1 { split($2, at, ":"); print at[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
    for name in $launch_ports; do
        port=${name#*=}
        while [ "$port" = 0 ]; do
            port=$((20000 + RANDOM % 12000))
            printf -v hex %04X "$port"
            case $used in *"$hex"*) port=0 ;; esac
            used="$used $hex"
        done
        echo "export ${name%%=*}=$port"
    done
}

# Whether all replicas have succeeded, except those of services, so that these must be stopped.
only_services_run() {
    [ "$launch_services" ] && ls status | awk -F, -v a="$1" -v policies="$launch_policies" -v services=" $launch_services " '
        $1 == "exit" && $2 == a && $6 == 0 && $7 == 0 { succeeded[$3 "," $4] }
        END {
            roles = split(policies, policy, " ")
            for (i = 1; i <= roles; i++) {
                split(policy[i], part, ":")
                if (index(services, " " part[1] " ")) continue
                for (k = 0; k < part[2]; k++) if (!((part[1] "," k) in succeeded)) exit 1
            }
        }'
}

# The outcome of one attempt: SUCCEEDED, STOPPED, or FAILED,<role>,<replica>,<code>,<again> with the first failure; LOST
# instead of FAILED if no replica failed by itself. Services do not matter once all others have succeeded.
outcome() {
    ls status | awk -F, -v a="$1" -v used="$2" -v policies="$launch_policies" -v services=" $launch_services " '
        $1 == "exit" && $2 == a {
            at = $3 "," $4
            if (!(at in last) || $5 + 0 > last[at]) { last[at] = $5 + 0; code[at] = $6; stopped[at] = $7; time[at] = $8 }
        }
        END {
            roles = split(policies, policy, " ")
            again = 1
            for (i = 1; i <= roles; i++) {
                split(policy[i], part, ":") # role:replicas:policy:retries
                for (k = 0; k < part[2]; k++) {
                    at = part[1] "," k
                    if (!index(services, " " part[1] " ") && (!(at in last) || stopped[at] == 1 || code[at] != 0)) waited_for++
                    if (!(at in last)) { if (lost == "") { lost = at; lost_again = part[3] == "APPLICATION" && part[4] > used } }
                    else if (stopped[at] != 1 && code[at] != 0) {
                        if (first == "" || time[at] < time[first]) first = at
                        if (part[3] != "APPLICATION" || part[4] <= used) again = 0
                    }
                }
            }
            if (!waited_for) print "SUCCEEDED"
            else if (first != "") print "FAILED," first "," code[first] "," again
            else if (lost != "") print "LOST," lost ",137," lost_again
            else print "STOPPED"
        }'
}

run_attempt() {
    mkdir "run/$1"
    [ ! "$last" ] || { await_last_attempt "$last"; last=''; ! is_stopped || return; }
    host=${SLURMD_NODENAME:-$HOSTNAME}
    timeout 3 getent hosts "$host" >/dev/null || host=$(hostname)
    { echo "export TORCHX_RANK0_HOST=$host"; choose_ports; } >"run/$1/env"
    # srun writes nothing, but its end closes the pipe. `wait` of bash may miss that when a signal comes at the same time.
    exec 8< <(launch_step "$1")
    stopping=''
    while read -r -t 1 <&8 || [ "$?" -gt 128 ]; do
        is_stopped || [ "$stopping" ] || ! only_services_run "$1" || { stopping=1; in_background keep_stopping; }
    done
    exec 8<&-
}

mkdir -p status run
trap 'signalled=1' TERM
# Job ids are reused after a crash of the controller, a nonce is not. A requeued job finds its own claim.
ln -s "$1" claim 2>/dev/null
[ "$(readlink claim)" = "$1" ] || exit 78
is_disrupted_too_often && end FAILED,disruptions
in_background watch_clock
last=$(last_attempt) # the last attempt before the job was put back into the queue
while :; do
    attempt=$(last_attempt)
    attempt=$((${attempt:--1} + 1))
    used=$(ls status | grep -c '^failed,')
    if is_stopped || is_over; then
        found=STOPPED
    else
        run_attempt "$attempt"
        ! is_removed && ! is_replaced || { stop_timers; exit 78; }
        found=$(outcome "$attempt" "$used")
        # Not stopped by the app: if the whole job is being ended, this script gets a signal, too, maybe later.
        case $found in STOPPED | LOST*) is_stopped || { in_background sleep 5; wait "$!"; } ;; esac
        # Replicas have no recorded end, and Slurm has given up the job: leave the end of the app to Slurm.
        case $found in LOST*) is_stopped || is_current || { stop_timers; exit 78; } ;; esac
    fi
    [ "$found" != SUCCEEDED ] || break
    ! is_over && [ ! -e status/limit ] && ! is_stopped && [ "${found##*,}" = 1 ] || break
    note "failed,$attempt"
done
is_stopped
stop_timers
if is_marked cancel; then
    end CANCELLED,cancel
elif [ -e status/limit ]; then
    end FAILED,limit
elif [ "$found" = SUCCEEDED ]; then
    end SUCCEEDED,exit
elif [ ! "$term" ] && [ "$found" != STOPPED ] && ls status | grep -q "^start,$attempt,"; then
    end FAILED,exit
elif [ ! "$term" ] && [ "$found" != STOPPED ]; then
    end FAILED,nostart
elif [ "$launch_requeue" = 0 ] && { [ "$term" = TimeLimit ] || [ "$term" = NodeDown ]; }; then
    end "FAILED,$term"
fi # else only Slurm knows: preempted, requeued, or cancelled by another user
if is_marked delete && [ -L end ]; then
    dir=$PWD
    cd / && rm -rf "$dir"
fi
[ "$found" = SUCCEEDED ]
