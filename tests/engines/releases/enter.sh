#!/bin/sh
# Runs a command in the root directory of a Debian release, next to the engines of the host: ROOT COMMAND...
# It is started with namespaces of its own for mounts, processes, network, IPC and host name, so nothing has to be removed.
# ENTER_BIND: folders of the host, separated by ":", which the command sees under the same path.
set -eu
root=$1
shift
here=$PWD
mount --make-rprivate /
# A mount, because dockerd changes the flags of the root when it imports an image.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
# New, because that of the host shows the network of the host.
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts | grep '^/sys/fs/cgroup/' |
        while read -r group; do
            mkdir -p "$root$group"
            mount --bind "$group" "$root$group"
        done
fi
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock"
for dir in /tmp /var/tmp; do
    mkdir -p "$root$dir"
    mount -t tmpfs -o mode=1777 tmpfs "$root$dir"
done
# After those, because a checkout may be below one of them.
old=$IFS
IFS=:
for path in ${ENTER_BIND-}; do
    mkdir -p "$root$path"
    mount --rbind "$path" "$root$path"
done
IFS=$old
# Slurm's controller finds no address of its own if there is only `lo`.
chroot "$root" sh -ec 'ip link set lo up; ip link add launch0 type bridge; ip address add 10.213.99.1/24 dev launch0
    ip link set launch0 up'
printf '127.0.0.1 localhost\n10.213.99.1 %s\n' "$(hostname)" >"$root/etc/hosts"
# A name server that refuses at once, because one that does not answer delays each search for a name by 10 s.
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
unset ENTER_BIND
# "exec" is for the shell in the root, so that the command gets its signals.
exec chroot "$root" sh -c 'cd "$1"; shift; exec "$@"' sh "$here" "$@"
