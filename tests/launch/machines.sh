#!/usr/bin/env bash
# Becomes one of several machines: a network, a host name, a table of processes, /tmp, /dev/shm and /etc/hosts of its own,
# with an ssh server. Files are shared in the folders that are named, as if by NFS. Needs root. The test adds the network.
# usage: unshare --net --uts --mount --ipc --pid --fork --kill-child machines.sh NAME FOLDER SHARED ...
# FOLDER holds the keys; NAME.hosts in it becomes /etc/hosts; NAME.ready appears when the ssh server listens.
set -euo pipefail

readonly name=$1 folder=$2
shift 2
mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"

mount -t tmpfs tmpfs /mnt
number=0
for shared in "$@"; do
  mkdir "/mnt/$number"
  mount --bind "$shared" "/mnt/$number"
  number=$((number + 1))
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
number=0
for shared in "$@"; do
  mkdir -p "$shared"
  mount --move "/mnt/$number" "$shared"
  number=$((number + 1))
done
mount --bind "$folder/$name.hosts" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
ip link set lo up

# The network comes from outside; the server waits for any address.
mkdir /run/sshd
/usr/sbin/sshd -f "$folder/sshd_config"
touch "$folder/$name.ready"
# The first process of a machine has to reap what others leave.
sleep infinity &
wait
