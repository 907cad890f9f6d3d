#!/usr/bin/env bash
# The install script of a device in a clean Debian 12 root: as root and as an ordinary user with sudo, twice in a row,
# with all known failures; then uninstalled. Needs root, mmdebstrap, a network; takes minutes.
#   tests/deploy/chroot.sh [ARCHITECTURE]     amd64, or arm64 under qemu-user-static where binfmt_misc knows it
# ROOT_TAR and WHEELHOUSE, if set, name an existing root and wheels. With COORDINATOR=1 a coordinator is
# installed, too, and a small fleet trains one round with it, which downloads torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
arch=${1:-$(dpkg --print-architecture)}
PATH="$PATH:/usr/sbin:/sbin"

[ "$(id -u)" -eq 0 ] || { echo "run it as root" >&2; exit 1; }
work=$(mktemp -d)
root=$work/root
mkdir "$root"
leave() {
    for each in opt proc dev; do
        ! mountpoint -q "$root/$each" || umount --lazy "$root/$each"
    done
    rm -rf --one-file-system "$work"
}
trap leave EXIT

tar=${ROOT_TAR:-$work/root.tar}
[ -s "$tar" ] || mmdebstrap --quiet --architectures="$arch" --variant=minbase \
    --include=python3,python3-venv,sudo,systemd,ca-certificates,mosquitto bookworm "$tar"
tar -xf "$tar" -C "$root"
mount -t proc proc "$root/proc"

wheels=${WHEELHOUSE:-$work/wheels}
if [ ! -d "$wheels" ]; then
    machine=$([ "$arch" = arm64 ] && echo aarch64 || echo x86_64)
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
    platforms=()
    for each in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${each}_$machine"); done
    locked=deploy/device/requirements.txt
    [ -z "${COORDINATOR:-}" ] || locked=deploy/coordinator/requirements.txt
    python3 -m pip download --quiet --only-binary=:all: "${platforms[@]}" --platform "manylinux2014_$machine" \
        --python-version 3.11 --dest "$wheels" --require-hashes --no-deps --requirement "$locked"
fi
cp -r "$wheels" "$root/wheels"
cp -r deploy/device "$root/device"

# A fleet with one device, made here; its bundle is copied over.
fleet=$work/fleet
sojourn=${SOJOURN:-.venv/bin/sojourn}
"$sojourn" fleet init --host broker.example --fleet-folder "$fleet" >/dev/null
"$sojourn" fleet add-device pi-1 --fleet-folder "$fleet" --output "$root/pi-1.tar.gz" >/dev/null 2>&1
chmod 0644 "$root/pi-1.tar.gz"

run() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"; }
step() { echo "--- $*"; }
wrong() { echo "FAILED: $*" >&2; exit 1; }
expect() { # expect CODE WORDS COMMAND...: the command ends with this code and prints these words
    local code=$1 words=$2 got=0 output
    shift 2
    output=$(run "$@" 2>&1) || got=$?
    if [ "$got" -ne "$code" ] || [[ "$output" != *"$words"* ]]; then
        wrong "$* ended with $got (not $code) and printed: $output"
    fi
}
# All that belongs to the agent, so that two states can be compared.
state() {
    run find /opt /etc/sojourn /etc/systemd/system /usr/local/bin /var/lib/sojourn-agent \
        -path '*/venv-*/*' -prune -o -printf '%p %m %u %g %y\n' 2>/dev/null | sed 's/venv-[^ ]*/venv/' | sort || true
    grep sojourn-agent "$root/etc/passwd" || true
}
install=(sh /device/install.sh --wheelhouse /wheels)

step "bad arguments change nothing"
before=$(state)
expect 2 "unknown argument: --wrong" sh /device/install.sh --wrong
expect 2 "--bundle needs a value" sh /device/install.sh --bundle
expect 2 "--purge goes with --uninstall" sh /device/install.sh --purge
expect 1 "there is no folder /nowhere" sh /device/install.sh --wheelhouse /nowhere
expect 1 "contains no sojourn-*.whl" sh /device/install.sh --wheelhouse /etc
expect 1 "/nowhere cannot be read" "${install[@]}" --bundle /nowhere
expect 1 "is not a complete tar.gz" "${install[@]}" --bundle /etc/passwd
expect 1 "is not a program" "${install[@]}" --python /nowhere
expect 1 "not a checkout of Sojourn: name its wheel with --wheel" sh /device/install.sh
expect 1 "there is no file /nowhere" sh /device/install.sh --wheel /nowhere
expect 1 "is not called sojourn-*.whl" sh /device/install.sh --wheel /etc/passwd
expect 2 "give one of them" sh /device/install.sh --wheel /etc/passwd --wheelhouse /wheels
tar -czf "$root/evil.tar.gz" -C "$root" etc/passwd
expect 1 "is not the bundle of a device: it contains etc/passwd" "${install[@]}" --bundle /evil.tar.gz
printf 'name = "pi-1"\nwrong = 1\n' >"$work/agent.toml"
tar -czf "$root/wrong.tar.gz" -C "$work" agent.toml
expect 1 "unknown key 'wrong'" "${install[@]}" --bundle /wrong.tar.gz
expect 0 "Usage:" sh /device/install.sh --help
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"

step "a Python that is too old, and one that is given"
mkdir "$root/old"
# shellcheck disable=SC2016  # it is the script's own argument
printf '#!/bin/sh\n[ "$1" != --version ] || { echo Python 3.9.2; exit 0; }\nexit 1\n' >"$root/old/python3"
chmod +x "$root/old/python3"
for each in python3.11 python3.12; do cp "$root/old/python3" "$root/old/$each"; done
old=(env PATH=/old:/usr/sbin:/usr/bin:/sbin:/bin)
expect 1 "the system has Python 3.9.2, but 3.11 or newer is needed" "${old[@]}" "${install[@]}"
expect 1 "a 64-bit 3.11 or newer is needed" "${install[@]}" --python /old/python3

step "no room on the disk"
mount -t tmpfs -o size=50m tmpfs "$root/opt"
expect 1 "MB are needed: free some space" "${install[@]}"
umount "$root/opt"
sed 's/^ROOM_KB=.*/ROOM_KB=0/' "$root/device/install.sh" >"$root/device/hopeful.sh"
mount -t tmpfs -o size=50m tmpfs "$root/opt"
expect 1 "nothing was changed" sh /device/hopeful.sh --wheelhouse /wheels
[ -z "$(ls -A "$root/opt")" ] || wrong "left in /opt: $(ls -A "$root/opt")"
umount "$root/opt"

step "a wheelhouse that lacks something"
mkdir "$root/few" && cp "$root"/wheels/sojourn-*.whl "$root/few"
expect 1 "pip could not install from /few" sh /device/install.sh --wheelhouse /few
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"

step "a wheel that is not the one whose hash is known"
cp -r "$root/wheels" "$root/bad"
wheel=$(find "$root/bad" -name 'msgpack-*.whl')
(cd "$work" && mkdir changed && cd changed && python3 -m zipfile -e "$wheel" . && rm "$wheel" &&
    echo '# harm' >>msgpack/__init__.py && python3 -m zipfile -c "$wheel" ./*)
expect 1 "THESE PACKAGES DO NOT MATCH THE HASHES" sh /device/install.sh --wheelhouse /bad
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"

step "a Python for which there are no hashes, and going without"
cp -r "$root/device" "$root/older"
sed -i 's/^# pythons: .*/# pythons: 3.9/' "$root/older/requirements.txt"
expect 1 "has hashes for Python 3.9, not for 3.11" sh /older/install.sh --wheelhouse /wheels
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"
expect 0 "the wheels that pip finds are not checked" sh /older/install.sh --wheelhouse /wheels --without-hashes
expect 0 "are removed" sh /older/install.sh --uninstall --purge

step "from Sojourn's wheel alone: the rest is fetched, here from a folder that stands for the index"
wheel=$(cd "$root/wheels" && echo sojourn-*.whl)
index=(env PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels)
expect 0 "Installed: sojourn" "${index[@]}" sh /device/install.sh --wheel "/wheels/$wheel"
expect 0 "are removed" sh /device/install.sh --uninstall --purge
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"

step "as root, with a bundle"
expect 0 "systemd is not running here: the agent was not started" "${old[@]}" "${install[@]}" \
    --bundle /pi-1.tar.gz --python /usr/bin/python3
first=$(state)
for each in "/etc/sojourn/agent.toml 640 root sojourn-agent f" "/etc/sojourn/agent.key 640 root sojourn-agent f" \
    "/var/lib/sojourn-agent 710 sojourn-agent sojourn-agent d" "/etc/systemd/system/sojourn-agent.service 644 root root f" \
    "/etc/systemd/system/multi-user.target.wants/sojourn-agent.service 777 root root l"; do
    grep -qx "$each" <<<"$first" || wrong "missing: $each in $first"
done

step "again: the same, and quickly"
expect 0 "The program is up to date." "${install[@]}" --bundle /pi-1.tar.gz
[ "$(state)" = "$first" ] || wrong "the second time differs: $(diff <(echo "$first") <(state))"

step "the unit's command runs as the unit's user"
command=$(sed -n 's/^ExecStart=//p' "$root/etc/systemd/system/sojourn-agent.service")
# shellcheck disable=SC2086  # a command with its arguments
output=$(run timeout --preserve-status 30 setpriv --reuid=sojourn-agent --regid=sojourn-agent --clear-groups $command 2>&1) || true
[[ "$output" == *"; retrying"* ]] || wrong "the agent printed: $output"
[ -f "$root/var/lib/sojourn-agent/journal.db" ] || wrong "the agent kept no journal"
run setpriv --reuid=65534 --regid=65534 --clear-groups cat /etc/sojourn/agent.key 2>/dev/null &&
    wrong "anybody can read the key"

step "uninstalled: settings and data stay"
expect 0 "settings (/etc/sojourn) and data (/var/lib/sojourn-agent) stay" sh /device/install.sh --uninstall
for each in opt/sojourn-agent etc/systemd/system/sojourn-agent.service usr/local/bin/sojourn; do
    [ ! -e "$root/$each" ] || wrong "/$each stayed"
done
for each in etc/sojourn/agent.toml var/lib/sojourn-agent/journal.db; do
    [ -e "$root/$each" ] || wrong "/$each is gone"
done

step "as an ordinary user with sudo"
run useradd --create-home person
printf 'person ALL=(ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/person"
as_person=(setpriv --reuid=person --regid=person --init-groups env HOME=/home/person)
expect 0 "running sudo" "${as_person[@]}" "${install[@]}" --bundle /pi-1.tar.gz
[ "$(state | grep -v /var/lib/sojourn-agent/)" = "$first" ] || wrong "it differs: $(diff <(echo "$first") <(state))"
expect 0 "are removed" "${as_person[@]}" sh /device/install.sh --uninstall --purge
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"
expect 0 "are removed" sh /device/install.sh --uninstall --purge
rm "$root/etc/sudoers.d/person"
expect 1 "" "${as_person[@]}" "${install[@]}"
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"

step "without a bundle it prints what is missing"
expect 0 "The agent has no settings yet" "${install[@]}"
expect 0 "are removed" sh /device/install.sh --uninstall --purge

step "an edge server, twice, and its settings"
cp -r deploy "$root/deploy"
"$sojourn" fleet add-edge s1 --fleet-folder "$fleet" --output "$root/s1.tar.gz" >/dev/null 2>&1
server=(sh /deploy/install-server.sh edge --wheelhouse /wheels)
expect 2 "missing argument: edge or coordinator" sh /deploy/install-server.sh
expect 1 "nothing was changed" sh /deploy/install-server.sh edge --wheelhouse /few
sed -i.whole 's/^# machines: .*/# machines: riscv64/' "$root/deploy/device/requirements.txt"
expect 1 "has hashes for riscv64, not for" "${server[@]}"
mv "$root/deploy/device/requirements.txt.whole" "$root/deploy/device/requirements.txt"
[ "$(state)" = "$before" ] || wrong "something was left behind: $(diff <(echo "$before") <(state))"
expect 1 "not a checkout of Sojourn: name its wheel with --wheel" sh /deploy/install-server.sh edge
expect 1 "there is no file /nowhere" sh /deploy/install-server.sh edge --wheel /nowhere
expect 0 "sojourn-edge.service was not started" "${index[@]}" sh /deploy/install-server.sh edge --wheel "/wheels/$wheel"
expect 0 "sojourn-edge.service was not started" "${server[@]}"
expect 0 "sojourn edge run /etc/sojourn/edge.toml" /usr/local/bin/sojourn edge init --bundle /s1.tar.gz --host 192.0.2.1
expect 0 "Installed: sojourn" "${server[@]}"
[ "$(run find /opt/sojourn -mindepth 1 -maxdepth 1 | wc -l)" -eq 2 ] || wrong "left in /opt/sojourn: $(ls -A "$root/opt/sojourn")"
output=$(run timeout --preserve-status 30 setpriv --reuid=sojourn-edge --regid=sojourn-edge --clear-groups \
    /opt/sojourn/current/bin/sojourn edge run /etc/sojourn/edge.toml 2>&1) || true
[[ "$output" == *"; retrying"* ]] || wrong "the edge server printed: $output"

if [ -n "${COORDINATOR:-}" ]; then
    step "a coordinator next to it, which the edge server's next installation leaves whole"
    mount --bind /dev "$root/dev"
    expect 0 "sojourn-coordinator.service was not started" sh /deploy/install-server.sh coordinator --wheelhouse /wheels
    expect 0 "coordinator.toml" /usr/local/bin/sojourn fleet init --host 192.0.2.1 --fleet-folder /etc/sojourn/cloud
    expect 0 "Installed: sojourn" "${server[@]}"
    run /opt/sojourn/current/bin/python -c 'import torch' || wrong "torch is gone"
    output=$(run timeout --preserve-status 30 setpriv --reuid=sojourn-coordinator --regid=sojourn-coordinator --clear-groups \
        /opt/sojourn/current/bin/sojourn coordinator run /etc/sojourn/cloud/coordinator/coordinator.toml 2>&1) || true
    [[ "$output" == *"; retrying"* ]] || wrong "the coordinator printed: $output"
    expect 0 "accuracy" timeout 300 /opt/sojourn/current/bin/sojourn demo --rounds 1
fi
echo "all is well on $arch"
