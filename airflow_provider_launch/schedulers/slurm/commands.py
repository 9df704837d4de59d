"""The shell scripts that run on the Slurm host. User input is passed only as arguments or on stdin.

Each script ends with exit code 0, or with one of the codes below and a message on stderr.
"""

from __future__ import annotations

from typing import Final

CONFLICT: Final = 40
"""The id belongs to another app."""
NO_SLURM: Final = 41
"""Slurm does not answer."""
REFUSED: Final = 42
"""Slurm refuses the job."""
UNUSABLE: Final = 43
"""The directory cannot be used."""
GONE: Final = 44
"""The app does not exist."""
NO_ACCOUNTS: Final = 45
"""The cluster has no accounting, or it does not answer."""
FOREIGN: Final = 46
"""Another user owns a directory, or can write to it."""
DAMAGED: Final = 47
"""A file of the app is not the one that the launcher wrote."""

_ENDED = "CANCELLED|COMPLETED|FAILED|TIMEOUT|NODE_FAIL|BOOT_FAIL|DEADLINE|OUT_OF_MEMORY|PREEMPTED|REVOKED"
"""States of an ended job, as a pattern for the shell and grep: the keys of `status.ENDS`."""

_ROOT = r"""
case $1 in '~/'*) root=$HOME/${1#'~/'} ;; *) root=$1 ;; esac
if [ -L "$root" ]; then
    case $(stat -c %u "$root") in 0 | "$(id -u)") ;; *) echo "the link $root is of another user" >&2; exit 46 ;; esac
fi
own() { # other users could change the files that are read here and run as this user
    foreign=$(find "$@" -maxdepth 0 \( ! -type d -o ! -uid "$(id -u)" -o -perm /022 \) \
        -printf '%p (uid %U, mode %m, type %y) ') || exit 43
    [ ! "$foreign" ] || { echo "$foreign" >&2; exit 46; }
}
"""
_ENTER = (
    _ROOT
    + r"""
if ! cd "$root/apps" 2>/dev/null; then
    # No app was launched below it yet, if the nearest existing directory can be entered; else this is an error.
    up=$root
    while [ ! -e "$up" ] && [ ! -L "$up" ]; do up=${up%/*}; [ "$up" ] || up=/; done
    cd "$up" || exit 43
    [ "$up" != "$root" ] || [ ! -e apps ] && [ ! -L apps ] || { cd apps; exit 43; }
    none
fi
own . "$root/." "$root/apps"
top=$(pwd -P)
"""
)

_IDENTITY = r"""
identity() { # an app can replace this file, so nothing in its place may block the shell
    [ -f id ] && [ ! -L id ] && mine=$(dd if=id iflag=nofollow,nonblock bs=200 count=1 2>/dev/null) && [ "$mine" ]
}
"""

_SHOW = r"""
uid=$(id -u)
exec 4>&1
# Writes `kind sent size inode ms path` and bytes. Arguments: path, offset, most bytes, `whole` to skip larger files.
# Programs can replace their files: read only plain files of this user, follow no links, and never block.
show() (
    into=${1%/*} kind=bad
    set -- "$1" "$2" "$3" "$4" - 0 0 0 0
    if ! cd -P "$into" 2>/dev/null; then
        [ -e "$into" ] || [ -L "$into" ] || kind=none
    elif [ "$PWD" = "$top/$into" ]; then
        name=./${1##*/}
        set -- "$1" "$2" "$3" "$4" $(LC_ALL=C stat -c '%f %u %s %i %.3Y' "$name" 2>/dev/null || echo - 0 0 0 0)
        case $5,$6 in "-,"*) kind=none ;; 8???,"$uid") kind=file ;; esac
    fi
    sent=$(($7 - $2))
    [ "$sent" -le "$3" ] || sent=$3
    [ ! "$4" ] || [ "$7" -le "$3" ] || sent=0
    [ "$sent" -gt 0 ] && [ "$kind" = file ] || sent=0
    printf '%s %s %s %s %s %s\n' "$kind" "$sent" "$7" "$8" "${9%.*}${9##*.}" "$1"
    [ "$sent" -gt 0 ] || exit 0
    # If the file was cut meanwhile, fill up with zeros, so that the next header stays at its position.
    got=$(LC_ALL=C dd if="$name" iflag=nofollow,nonblock,skip_bytes,count_bytes,fullblock bs=64K \
        skip="$2" count="$sent" 2>&1 >&4)
    got=${got##*records out?}
    got=${got%% *}
    case $got in "$sent") exit 0 ;; '' | *[!0-9]*) got=0 ;; esac
    head -c "$((sent - got))" /dev/zero
)
"""

OBSERVE = (
    """
none() { echo none; exit 0; }
# All jobs of the user with one request. The comment is the last field, because it can have any text.
export SLURM_TIME_FORMAT=%s
jobs=$(squeue --me -h -t all -o '%A|%i|%T|%r|%S|%e|%N|%k') || exit 41
"""
    + _ENTER
    + r"""
echo "now $(date +%s)"
# Without the rest of the comment, which may be long. As bytes: grep would stop at a text that is not in its charset.
printf '%s\n' "$jobs" | LC_ALL=C grep -aoE '^([^|]*\|){7}launch:[A-Za-z0-9_:]+'
echo files
if [ "$2" = all ]; then ls | LC_ALL=C grep -xE '[A-Za-z0-9][A-Za-z0-9._-]{0,99}'; else cat; fi |
    xargs -r -d '\n' sh -c 'find "$@" -mindepth 1 -maxdepth 1 \( -name id -o -name claim -o -name end -o -name cancel \
        -o -name delete -o -name alive -o -name submitted -o -name term -o -name status \) \
        -printf "%p\t%i\t%T@\t%y\t%l\0" 2>/dev/null' find
exit 0
"""
)
"""`$1` root, `$2` `all` or `some`; ids on stdin. Lists jobs, then files, so that a job ended between has its record.

An app can choose the target of a link, even with line feeds, so each entry ends with a NUL.
"""

STATUS = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
xargs -r -d '\n' sh -c 'find "$@" -mindepth 1 -maxdepth 1 -printf "%p\0" 2>/dev/null' find
exit 0
"""
)
"""`$1` root; directories on stdin. Lists the names in them, each followed by a NUL."""

READ = (
    "none() { exit 0; }"
    + _ENTER
    + _SHOW
    + r"""
while IFS= read -r path; do show "$path" 0 "$2" "$3"; done
exit 0
"""
)
"""`$1` root, `$2` most bytes of each file, `$3` `whole` to skip larger files; paths on stdin."""

LOGS = (
    "none() { exit 44; }"
    + _ENTER
    + _SHOW
    + r"""
[ -e "$2/id" ] || exit 44
[ ! -L "$2/end" ] || echo end
ls -U "$2/status" 2>/dev/null | grep -aE "^(start|exit),[0-9]+,$3,$4," | head -n 100000
echo files
shift 4
while [ "$#" -gt 2 ]; do
    show "$1" "$2" "$3" ""
    shift 3
done
exit 0
"""
)
"""`$1` root, id, role, replica; then path, offset and limit of each file. Lists the attempts and reads the files."""

ACCOUNTS = """
command -v sacct >/dev/null || exit 0
# Without states it omits jobs that never started.
ended=CA,CD,F,TO,NF,OOM,PR,BF,DL
timeout -k 2 10 sacct -X -n -P -D -u "$(id -un)" -S now-30days -E now -s "$ended" --name="$2" \
    -o JobName,State,Comment || { echo "sacct: exit code $?" >&2; exit 45; }
exit 0
"""
"""`$1` root, `$2` ids separated by commas. Shows how their jobs ended; nothing if the cluster has no accounting."""

SUBMIT = (
    _ROOT
    + _IDENTITY
    + f"ended='{_ENDED}'"
    + r"""
umask 077
id=$2 nonce=$3 hash=$4 comment=$5
shift 5
mkdir -p "$root/apps" "$root/building" && cd "$root" || exit 43
own . apps building
if [ -e "apps/$id/id" ]; then
    cat >/dev/null
else
    # Unpack elsewhere, then rename: an app exists completely or not at all, and a second submitter finds the first.
    # `-m`: the time of `id` is the creation time of the app, by the clock of this host.
    new=building/$id.$nonce
    mkdir "$new" && tar -xmf - -C "$new" || { rm -rf "$new"; exit 43; }
    mv -T "$new" "apps/$id" 2>/dev/null
    rm -rf "$new"
fi
cd "apps/$id" 2>/dev/null || exit 44
own .
[ -e id ] || exit 44
identity || exit 47
[ "${mine%%:*}" = "$hash" ] || exit 40
over() { [ -L claim ] || [ -L end ] || [ -e cancel ]; }
live() {
    jobs=$(squeue --me -h -t all --name="$id" -o '%A|%T|%r|%k') || return 41
    found=$(printf '%s\n' "$jobs" | grep -aF "|launch:$mine:" | grep -avE "^[0-9]+\|($ended)\|" | sort -n)
}
! over || exit 0
live || exit 41
if [ ! "$found" ]; then
    ! over || exit 0
    touch submitted
    job=$(sbatch --parsable --hold --dependency=singleton --comment="launch:$mine:$nonce${comment:+ $comment}" \
        --open-mode=append --output=job.log --input=/dev/null --export=ALL --chdir="$PWD" "$@" launch.sh "$nonce") || {
        # Refused, and no other submitter has a job: nothing is left of it.
        if live && [ ! "$found" ] && [ ! -L claim ]; then exit 42; fi
        exit 41
    }
    # Release only a job that squeue lists as ours: the number alone may belong to a job of another cluster.
    for pause in 0 1 2; do
        sleep "$pause"
        live || exit 41
        [ ! "$found" ] || break
    done
    if [ ! "$found" ]; then
        # A wrapper of the site may print a banner in addition to the number.
        number=$(printf '%s\n' "$job" | sed -nE 's/^[[:space:]]*(Submitted batch job )?([0-9]+)[[:space:]]*$/\2/p')
        if [ ! "$number" ]; then
            echo "sbatch answered '$job', and squeue has no such job of this user: it may be held on another" \
                "cluster; use a connection with the slurm_conf or ssh_host of that cluster" >&2
            exit 42
        fi
        echo "squeue does not list job" $number", which sbatch has just made" >&2
        exit 41
    fi
fi
kept=${found%%|*}
for other in $(printf '%s\n' "$found" | tail -n +2 | grep -aF '|JobHeldUser|' | cut -d '|' -f 1); do
    scancel "$other"
done
if [ -e cancel ]; then
    scancel "$kept"
    exit 0
fi
case $(printf '%s\n' "$found" | head -n 1) in *'|JobHeldUser|'*)
    # A job that has ended meanwhile is not an error.
    error=$(scontrol release "$kept" 2>&1) || case $error in
        *'already finished'*) ;;
        # sbatch accepts a held job of any size, so an impossible size is refused only here.
        *'node configuration is not available'* | *'specification invalid'* | *'not permitted'*)
            scancel "$kept"
            echo "$error" >&2
            exit 42 ;;
        *)
            # A job that is too large for its partition also gives an error, but it was released and waits.
            live || exit 41
            reason=$(printf '%s\n' "$found" | sed -n "s/^$kept|[^|]*|\([^|]*\)|.*/\1/p")
            [ "$reason" != JobHeldUser ] || { echo "$error" >&2; exit 41; } ;;
    esac
    ;;
esac
exit 0
"""
)
"""`$1` root, id, nonce, spec hash, comment, options of sbatch; a tar of the app's files on stdin.

Submits only if the app has no job and no claim. If racing submitters hold several jobs, the one with the lowest number
stays; and a job that starts anyway must win the claim.
"""

CANCEL = (
    "none() { exit 44; }"
    + _ENTER
    + _IDENTITY
    + r"""
cd "$2" 2>/dev/null && [ -e id ] || exit 44
for mark in "$3" cancel; do
    [ -L "$mark" ] || touch "$mark" || exit 43
done
[ ! -L end ] || [ "$3" = delete ] || exit 0
ln -sT cancel claim 2>/dev/null
[ -e id ] || exit 44
identity || exit 0 # its script sees the mark
jobs=$(squeue --me -h -t all --name="$2" -o '%A|%T|%k') || exit 41
printf '%s\n' "$jobs" | grep -aF "|launch:$mine:" | while IFS='|' read -r job state comment; do
    case $state in
        # The script of the job stops its replicas with their grace, and records the end.
        RUNNING | RESIZING | SIGNALING) scancel --batch --signal=TERM "$job" ;;
        COMPLETING | STAGE_OUT | """
    + _ENDED
    + r""") ;;
        # It waits or is stopped; or a newer Slurm has a new state.
        *) scancel "$job" ;;
    esac
done
exit 0
"""
)
"""`$1` root, `$2` id, `$3` `cancel` or `delete`. Takes a free claim, so that no job can win it any more."""

DISCARD = """
shift
scancel "$@"
exit 0
"""
"""`$1` root, then ids of jobs to cancel, which can never win the claim of their app."""

MARK_END = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
while IFS='|' read -r id claim end; do
    # Take a claim that was missing, so that no job can win it any more.
    if [ ! "$claim" ] || ln -sT "$claim" "$id/claim" 2>/dev/null; then ln -sT "$end" "$id/end" 2>/dev/null; fi
    printf '%s|%s\0' "$id" "$(readlink "$id/end")"
done
exit 0
"""
)
"""`$1` root; `id|claim or nothing|end` on stdin: ends that an observer found.

Prints the recorded ends. A program can replace the link of its app, and its target may have any characters, so each
entry ends with a NUL.
"""

REMOVE = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
until=$(($(date +%s) + 5))
while IFS= read -r id; do
    gone=../building/$id.$2
    mv -T "$id" "$gone" 2>/dev/null
    # A program may have left millions of files, whose removal must not delay the poll of other apps.
    left=$((until - $(date +%s)))
    [ "$left" -le 0 ] || timeout "$left" rm -rf "$gone"
    [ ! -e "$gone" ] || (rm -rf "$gone" &) </dev/null >/dev/null 2>&1
done
exit 0
"""
)
"""`$1` root, `$2` a unique text; ids on stdin. Removes each app in one step, large ones in the background."""

PROBE = (
    _ROOT
    + r"""
for program in bash sbatch squeue scancel scontrol find xargs tar stat readlink awk dd; do
    command -v "$program" >/dev/null || { echo "there is no $program on the path" >&2; exit 42; }
done
umask 077
mkdir -p "$root/apps" "$root/building" && cd "$root" || exit 43
own . apps building
file=$root/building/probe.$2
echo "$2" >"$file" || exit 43
squeue --version
squeue --me -h -t all -o %A >/dev/null || exit 41
if [ "$3" ]; then
    # A node writes the file, and this host reads it.
    timeout "$4" srun -Q -N 1 -n 1 --time=1 --job-name="launch-probe-$2" sh -c 'cp "$1" "$1.node"' sh "$file" >&2 ||
    {
        scancel --name="launch-probe-$2"
        echo "no node has copied $file within $4 seconds; it may be busy, or not have this directory" >&2
        exit 42
    }
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(cat "$file.node" 2>/dev/null)" != "$2" ] || break
        sleep 1
    done
    [ "$(cat "$file.node")" = "$2" ] || { echo "what a node has written to $file.node is not seen here" >&2; exit 42; }
    rm -f "$file.node"
fi
exit 0
"""
)
"""`$1` root, `$2` a unique text, `$3` whether to test a node, `$4` its time limit in seconds. Reports what is missing.

Leaves `building/probe.<unique>`, with which the worker's mount is checked.
"""
