# shellcheck shell=bash
# Sourced by the scripts here that need containers: podman with its images and settings in a temporary folder, and bare
# images of Debian and Ubuntu from their packages. Only the packages of podman stay on the machine.

# Ends the script, successfully, because this machine cannot do what it checks.
skip() {
  printf '%s skipped: %s\n' "$(basename -- "$0")" "$*"
  exit 0
}

# Installs podman and gives it a folder; `podman run` and `podman build` then need no more options on a machine without
# systemd, without the right to raise limits, and with a certificate of its own. Skips the script where this cannot be.
open_podman() {
  [[ $EUID -eq 0 ]] || skip 'podman and its images are installed as root'
  command -v apt-get >/dev/null || skip 'podman is installed by apt-get, which is not on this machine'
  local packages=(podman buildah runc mmdebstrap uidmap containernetworking-plugins iptables)
  if ! dpkg --status "${packages[@]}" &>/dev/null; then
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"; } \
      >/dev/null || skip "apt-get cannot install ${packages[*]}"
  fi
  unshare --mount --pid --fork true 2>/dev/null || skip 'this machine allows no namespaces'
  podman_folder=$(mktemp -d)
  readonly podman_folder
  trap close_podman EXIT
  export CONTAINERS_CONF=$podman_folder/containers.conf CONTAINERS_STORAGE_CONF=$podman_folder/storage.conf
  write_podman_settings
}

write_podman_settings() {
  local folder=$podman_folder certificate=${PIP_CERT:-${SSL_CERT_FILE:-}} volumes='' variables='' files processes
  if [[ -n $certificate ]]; then
    # The steps of a build get the volumes but not the variables.
    printf '[global]\ncert = /machine.crt\n' >"$folder/pip.conf"
    volumes="\"$certificate:/machine.crt:ro\", \"$folder/pip.conf:/etc/pip.conf:ro\""
    variables=', "PIP_CERT=/machine.crt", "SSL_CERT_FILE=/machine.crt"'
  fi
  # podman's own limits may be above what this machine allows, and crun refuses the hybrid of both cgroups.
  files=$(at_most "$(ulimit -Hn)" 20000) processes=$(at_most "$(ulimit -Hu)" 20000)
  cat >"$CONTAINERS_CONF" <<EOT
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"$variables]
netns = "host"
shm_size = "1g"
volumes = [$volumes]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "runc"
tmp_dir = "$folder/tmp"
[network]
network_config_dir = "$folder/networks"
EOT
  cat >"$CONTAINERS_STORAGE_CONF" <<EOT
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "$folder/run"
EOT
}

# at_most LIMIT NUMBER: the smaller one; LIMIT may be "unlimited".
at_most() {
  [[ $1 != unlimited && $1 -lt $2 ]] && printf '%s' "$1" || printf '%s' "$2"
}

# make_bare SUITE: makes localhost/bare:SUITE of Debian, or of Ubuntu for jammy and noble, as bare as it gets: no Python,
# no git, no compiler.
make_bare() {
  local components=main options=()
  case $1 in
    sid) options+=('--aptopt=Acquire::Check-Valid-Until "false"') ;;
    jammy | noble)
      components=main,universe options+=(--include=apt)
      # Debian has no key of Ubuntu's archive unless the package ubuntu-keyring is installed.
      [[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]] ||
        options+=('--aptopt=Acquire::AllowInsecureRepositories "true"' '--aptopt=APT::Get::AllowUnauthenticated "true"')
      ;;
  esac
  mmdebstrap --quiet --variant=minbase "--components=$components" --aptopt='Acquire::Languages "none"' "${options[@]}" "$1" - |
    podman import --quiet - "localhost/bare:$1" >/dev/null
  podman run --rm "localhost/bare:$1" true
}

# Makes the network that "--network=$podman_network" names, for containers that only reach each other.
make_network() {
  podman_network=${podman_folder##*/}
  podman network create --internal "$podman_network" >/dev/null
}

# Removes all containers, images and networks of this script.
close_podman() {
  podman rm --all --force --time 0 &>/dev/null || true
  if [[ -n ${podman_network:-} ]]; then
    podman network rm "$podman_network" &>/dev/null || true
    rm -rf -- "/var/lib/cni/networks/$podman_network"
  fi
  umount --recursive "$podman_folder/storage/overlay" 2>/dev/null || true
  rm -rf -- "$podman_folder"
}
