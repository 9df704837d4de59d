"""The scripts that run where Slurm is. Whatever comes from users is an argument, or comes by stdin.

Each ends with `exit`: 0, or one of the codes below with a text on stderr.
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
"""There is no such app."""
NO_ACCOUNTS: Final = 45
"""The cluster keeps no accounts, or they do not answer."""
FOREIGN: Final = 46
"""Another user owns a directory, or may write it."""
DAMAGED: Final = 47
"""A file of the app is not the one that was written."""

_ENDED = "CANCELLED|COMPLETED|FAILED|TIMEOUT|NODE_FAIL|BOOT_FAIL|DEADLINE|OUT_OF_MEMORY|PREEMPTED|REVOKED"
"""States of a job that has ended, as a pattern of the shell and of grep: all of `status.ENDS`."""

_ROOT = r"""
case $1 in '~/'*) root=$HOME/${1#'~/'} ;; *) root=$1 ;; esac
if [ -L "$root" ]; then
    case $(stat -c %u "$root") in 0 | "$(id -u)") ;; *) echo "the link $root is of another user" >&2; exit 46 ;; esac
fi
own() { # others would change what is read here, and what runs as this user
    foreign=$(find "$@" -maxdepth 0 \( ! -type d -o ! -uid "$(id -u)" -o -perm /022 \) \
        -printf '%p (uid %U, mode %m, type %y) ') || exit 43
    [ ! "$foreign" ] || { echo "$foreign" >&2; exit 46; }
}
"""
_ENTER = (
    _ROOT
    + r"""
if ! cd "$root/apps" 2>/dev/null; then
    # Nothing was launched below it yet, which only a directory can show that is there; all else is no answer.
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
identity() { # a file that an app can replace: nothing in its place may stop the shell
    [ -f id ] && [ ! -L id ] && mine=$(dd if=id iflag=nofollow,nonblock bs=200 count=1 2>/dev/null) && [ "$mine" ]
}
"""

_SHOW = r"""
uid=$(id -u)
exec 4>&1
# `kind sent size inode ms path`, and the bytes: path, offset, bytes at most, and `whole` for none of a larger file.
# Programs can replace their files: only a plain file of this user is read, behind no link, and nothing is waited for.
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
    # At most so many, and where the file was cut meanwhile the rest is made up: what follows keeps its place.
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
# Every job of the user: one request, whatever the number of apps. The comment is last, it may hold anything.
export SLURM_TIME_FORMAT=%s
jobs=$(squeue --me -h -t all -o '%A|%i|%T|%r|%S|%e|%N|%k') || exit 41
"""
    + _ENTER
    + r"""
echo "now $(date +%s)"
printf '%s\n' "$jobs" | grep -F '|launch:'
echo files
if [ "$2" = all ]; then ls | LC_ALL=C grep -xE '[A-Za-z0-9][A-Za-z0-9._-]{0,99}'; else cat; fi |
    xargs -r -d '\n' sh -c 'find "$@" -mindepth 1 -maxdepth 1 \( -name id -o -name claim -o -name end -o -name cancel \
        -o -name delete -o -name alive -o -name submitted -o -name term -o -name status \) \
        -printf "%p\t%i\t%T@\t%y\t%l\0" 2>/dev/null' find
exit 0
"""
)
"""`$1` root, `$2` `all` or `some`; ids by stdin. Jobs first, then files: what ended between has its record.

The target of a link is any text that an app likes, with line feeds, too: each file ends with a NUL.
"""

STATUS = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
xargs -r -d '\n' sh -c 'find "$@" -mindepth 1 -maxdepth 1 -printf "%p\0" 2>/dev/null' find
exit 0
"""
)
"""`$1` root; directories by stdin. The names of what is in them, each with a NUL behind it."""

READ = (
    "none() { exit 0; }"
    + _ENTER
    + _SHOW
    + r"""
while IFS= read -r path; do show "$path" 0 "$2" "$3"; done
exit 0
"""
)
"""`$1` root, `$2` bytes of each file at most, `$3` `whole`: none of a larger one; paths by stdin."""

LOGS = (
    "none() { exit 44; }"
    + _ENTER
    + _SHOW
    + r"""
[ -e "$2/id" ] || exit 44
[ ! -L "$2/end" ] || echo end
ls -U "$2/status" 2>/dev/null | grep -E "^(start|exit),[0-9]+,$3,$4," | head -n 100000
echo files
shift 4
while [ "$#" -gt 2 ]; do
    show "$1" "$2" "$3" ""
    shift 3
done
exit 0
"""
)
"""`$1` root, id, role, replica; then path, offset and limit of each file. The attempts, and bytes of these files."""

ACCOUNTS = """
command -v sacct >/dev/null || exit 0
# Without states it leaves out jobs that never began.
ended=CA,CD,F,TO,NF,OOM,PR,BF,DL
timeout -k 2 10 sacct -X -n -P -D -u "$(id -un)" -S now-30days -E now -s "$ended" --name="$2" \
    -o JobName,State,Comment || { echo "sacct: exit code $?" >&2; exit 45; }
exit 0
"""
"""`$1` root, `$2` ids with commas between. How their jobs ended, where the cluster keeps accounts; else nothing."""

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
    # Beside its place, and then renamed: an app exists whole or not at all. Who comes second finds the first.
    # `-m`: the time of `id` is when the app began to be, by the clock of this host.
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
    found=$(printf '%s\n' "$jobs" | grep -F "|launch:$mine:" | grep -vE "^[0-9]+\|($ended)\|" | sort -n)
}
! over || exit 0
live || exit 41
if [ ! "$found" ]; then
    ! over || exit 0
    touch submitted
    job=$(sbatch --parsable --hold --dependency=singleton --comment="launch:$mine:$nonce${comment:+ $comment}" \
        --open-mode=append --output=job.log --input=/dev/null --export=ALL --chdir="$PWD" "$@" launch.sh "$nonce") || {
        # Refused, and nobody else has submitted it: nothing is left of it.
        if live && [ ! "$found" ] && [ ! -L claim ]; then exit 42; fi
        exit 41
    }
    # Only a job of our own list is released: a number alone may be that of another cluster's job.
    for pause in 0 1 2; do
        sleep "$pause"
        live || exit 41
        [ ! "$found" ] || break
    done
    if [ ! "$found" ]; then
        # A wrapper of the site may print a banner beside the number.
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
for other in $(printf '%s\n' "$found" | tail -n +2 | grep -F '|JobHeldUser|' | cut -d '|' -f 1); do
    scancel "$other"
done
if [ -e cancel ]; then
    scancel "$kept"
    exit 0
fi
case $(printf '%s\n' "$found" | head -n 1) in *'|JobHeldUser|'*)
    # One that has ended meanwhile is an app like any other.
    error=$(scontrol release "$kept" 2>&1) || case $error in
        *'already finished'*) ;;
        # sbatch takes a held job of any size.
        *'node configuration is not available'* | *'specification invalid'* | *'not permitted'*)
            scancel "$kept"
            echo "$error" >&2
            exit 42 ;;
        *)
            # So it also answers about a job that is too large for its partition, which waits then.
            live || exit 41
            reason=$(printf '%s\n' "$found" | sed -n "s/^$kept|[^|]*|\([^|]*\)|.*/\1/p")
            [ "$reason" != JobHeldUser ] || { echo "$error" >&2; exit 41; } ;;
    esac
    ;;
esac
exit 0
"""
)
"""`$1` root, id, nonce, spec hash, comment, options of sbatch; a tar of the app's files by stdin.

Submits only if neither Slurm nor the claim knows the app. Of several held jobs of racing submitters the one with the
lowest number stays; whichever job starts in spite of all this has to win the claim.
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
printf '%s\n' "$jobs" | grep -F "|launch:$mine:" | while IFS='|' read -r job state comment; do
    case $state in
        # The script of the job ends its replicas with their grace, and records that.
        RUNNING | RESIZING | SIGNALING) scancel --batch --signal=TERM "$job" ;;
        COMPLETING | STAGE_OUT | """
    + _ENDED
    + r""") ;;
        # It waits, or is stopped; or a newer Slurm has a new word.
        *) scancel "$job" ;;
    esac
done
exit 0
"""
)
"""`$1` root, `$2` id, `$3` `cancel` or `delete`. Without a claim the app is over: no job can win it any more."""

DISCARD = """
shift
scancel "$@"
exit 0
"""
"""`$1` root, then ids of jobs that can never win the claim of their app."""

MARK_END = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
while IFS='|' read -r id claim end; do
    # A claim that was missing: from now on no job can win it.
    if [ ! "$claim" ] || ln -sT "$claim" "$id/claim" 2>/dev/null; then ln -sT "$end" "$id/end" 2>/dev/null; fi
    echo "$id|$(readlink "$id/end" | head -n 1)"
done
exit 0
"""
)
"""`$1` root; `id|claim or nothing|end` by stdin: ends that an observer found. The first one stays, and is written."""

REMOVE = (
    "none() { exit 0; }"
    + _ENTER
    + r"""
while IFS= read -r id; do
    mv -T "$id" "../building/$id.$2" 2>/dev/null
    rm -rf "../building/$id.$2"
done
exit 0
"""
)
"""`$1` root, `$2` something unique; ids by stdin. Each is gone in one step."""

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
    # Written by a node, and read here again.
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
"""`$1` root, `$2` something unique, `$3` whether a node is tried, `$4` for how many seconds. What is missing there.

It leaves `building/probe.<unique>`, by which the worker's mount is checked.
"""
