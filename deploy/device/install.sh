#!/bin/sh
# Puts a Sojourn agent on this device, or takes it away again. Safe to run again: what is there is brought up to date.
# Debian 12, Raspberry Pi OS and JetPack, 64 bit, arm64 and x86-64. `install.sh --help` says more.
set -eu

PREFIX=/opt/sojourn-agent
CONFIG=/etc/sojourn
STATE=/var/lib/sojourn-agent
ACCOUNT=sojourn-agent
UNIT=sojourn-agent.service
UNITS=/etc/systemd/system
LINK=/usr/local/bin/sojourn
ROOM_KB=600000

usage() {
    cat <<'END'
Usage: install.sh [--join TOKEN | --bundle FILE] [--wheel FILE | --wheelhouse DIR] [--python PATH] [--without-hashes] [--no-start]
       install.sh --uninstall [--purge]

  --join TOKEN       join a fleet with keys of its own; TOKEN is what `sojourn fleet invite` prints, or - to read it here
  --bundle FILE      settings and credentials, made with: sojourn fleet add-device NAME
  --wheel FILE       install this wheel of Sojourn (make wheel), and fetch what it needs
  --wheelhouse DIR   install from the wheels in this folder (make wheelhouse); needs no internet
  --python PATH      a Python 3.11 or newer, where the system's own is older; not below /home or /root
  --without-hashes   take what pip finds, unchecked, where requirements.txt has no hashes for this machine
  --no-start         do not start the agent now
  --uninstall        remove the program; settings and data stay
  --purge            with --uninstall: remove settings, credentials, data and the user, too

Without either it installs from the checkout that this script is part of, and fetches what that needs.
Every wheel must have a SHA-256 that stands in requirements.txt, beside this script; Sojourn's own has none there.
END
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
misused() {
    printf 'error: %s\n' "$*" >&2
    usage >&2
    exit 2
}

join='' bundle='' wheel='' wheelhouse='' python='' uninstall='' purge='' hashes=yes start=yes
for argument in "$@"; do
    case "$argument" in -h | --help) usage && exit 0 ;; esac
done

read_arguments() {
    while [ $# -gt 0 ]; do
        case "$1" in
            --join | --bundle | --wheel | --wheelhouse | --python)
                if [ $# -lt 2 ] || [ -z "$2" ]; then misused "$1 needs a value"; fi
                case "$1" in
                    --join) join=$2 ;;
                    --bundle) bundle=$2 ;;
                    --wheel) wheel=$2 ;;
                    --wheelhouse) wheelhouse=$2 ;;
                    --python) python=$2 ;;
                esac
                shift 2
                ;;
            --uninstall) uninstall=yes && shift ;;
            --purge) purge=yes && shift ;;
            --without-hashes) hashes='' && shift ;;
            --no-start) start='' && shift ;;
            *) misused "unknown argument: $1" ;;
        esac
    done
    [ -z "$purge" ] || [ -n "$uninstall" ] || misused "--purge goes with --uninstall"
    [ -z "$join" ] || [ -z "$bundle" ] || misused "--join and --bundle: give one of them"
    [ -z "$wheel" ] || [ -z "$wheelhouse" ] || misused "--wheel and --wheelhouse: give one of them"
    [ -z "$uninstall" ] || [ -z "$join$bundle$wheel$wheelhouse$python" ] || misused "--uninstall goes with --purge only"
    [ -z "$bundle" ] || [ -r "$bundle" ] || [ "$(id -u)" -ne 0 ] || fail "--bundle: $bundle cannot be read"
    [ -z "$wheel" ] || [ -f "$wheel" ] || fail "--wheel: there is no file $wheel"
    [ -z "$wheelhouse" ] || [ -d "$wheelhouse" ] || fail "--wheelhouse: there is no folder $wheelhouse"
    [ -z "$python" ] || [ -x "$python" ] || fail "--python: $python is not a program"
}

become_root() {
    [ "$(id -u)" -ne 0 ] || return 0
    [ -f "$0" ] || fail "save this script to a file first, then run it with sudo"
    command -v sudo >/dev/null || fail "run it as root: there is no sudo here"
    say "This needs root: asking sudo."
    exec sudo -- sh "$0" "$@"
}

# --- checks: nothing has changed yet when one of them fails

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "this is $(uname -s); the agent's service needs Linux"
    case "$(uname -m)" in
        x86_64 | aarch64 | arm64) ;;
        *) fail "this system is $(uname -m): onnxruntime needs a 64-bit one (arm64 or x86-64); see firmware_notes" ;;
    esac
    command -v useradd >/dev/null || fail "useradd is missing: apt-get install passwd"
    here=$(cd "$(dirname "$0")" && pwd)
    for file in "$UNIT" requirements.txt; do
        [ -f "$here/$file" ] || fail "$file must lie beside this script: copy the whole folder deploy/device"
    done
    checkout=''
    if [ -n "$wheel" ]; then
        case "$(basename "$wheel")" in
            sojourn-*.whl) wheel=$(cd "$(dirname "$wheel")" && pwd)/$(basename "$wheel") ;;
            *) fail "--wheel: $wheel is not called sojourn-*.whl, as \`make wheel\` in a checkout names it" ;;
        esac
    elif [ -z "$wheelhouse" ]; then
        checkout=$(cd "$here/../.." && pwd)
        [ -f "$checkout/pyproject.toml" ] || fail "this is no checkout of Sojourn: name its wheel with --wheel" \
            "(\`make wheel\` in a checkout makes it), or all wheels with --wheelhouse (\`make wheelhouse\`)"
    else
        wheelhouse=$(cd "$wheelhouse" && pwd)
        set -- "$wheelhouse"/sojourn-*.whl
        [ -f "$1" ] || fail "--wheelhouse: $wheelhouse holds no sojourn-*.whl"
    fi
    parent=$PREFIX
    while [ ! -d "$parent" ]; do parent=$(dirname "$parent"); done
    free=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$ROOM_KB" ] ||
        fail "$parent has $((free / 1000)) MB free, and $((ROOM_KB / 1000)) MB are needed: free some space"
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2**32)' 2>/dev/null; }

find_python() {
    if [ -n "$python" ]; then
        new_enough "$python" || fail "--python: $python is $("$python" --version 2>&1); a 64-bit 3.11 or newer is needed"
        if command -v python3 >/dev/null && ! new_enough python3; then
            say "The system's $(python3 --version 2>&1) is too old; using $python."
        fi
    else
        for each in python3 python3.14 python3.13 python3.12 python3.11; do
            if command -v "$each" >/dev/null && new_enough "$each"; then
                python=$(command -v "$each")
                break
            fi
        done
        if [ -z "$python" ]; then
            found=$(python3 --version 2>&1) || found='no Python'
            fail "the system has $found, and 3.11 or newer is needed: install one beside it and name it with --python"
        fi
    fi
    case "$("$python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix))')/" in
        /home/* | /root/*) fail "$python lives in a home folder, which the service cannot see: install one in /opt or /usr/local" ;;
    esac
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        if [ -n "$wheelhouse" ] || ! command -v apt-get >/dev/null; then
            fail "$python cannot make a virtual environment: apt-get install python3-venv"
        fi
        say "Installing the Debian package python3-venv."
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends python3-venv >/dev/null </dev/null ||
            fail "python3-venv could not be installed: apt-get update, and try again"
        "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make a virtual environment"
    fi
}

check_hashes() {
    [ -n "$hashes" ] || { say "Without hashes: what pip finds is not checked." && return 0; }
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    known=$(sed -n 's/^# pythons: //p' "$here/requirements.txt")
    case " $known " in
        *" $version "*) ;;
        *) fail "requirements.txt has hashes for Python $known, not for $version: name one of these with --python," \
            "or let pip take what it finds with --without-hashes" ;;
    esac
}

# --- staging: beside what runs now

unpack_bundle() {
    [ -n "$bundle" ] || return 0
    [ -r "$bundle" ] || fail "--bundle: $bundle cannot be read"
    names=$(tar -tzf "$bundle" 2>/dev/null) || fail "--bundle: $bundle is not a whole tar.gz"
    for name in $names; do
        case "$name" in
            agent.toml | agent.password | agent.pem | agent.key | agent.ca.pem | agent.release.pub) ;;
            *) fail "--bundle: $bundle is not the bundle of a device: it holds $name" ;;
        esac
    done
    case "$names" in *agent.toml*) ;; *) fail "--bundle: $bundle holds no agent.toml" ;; esac
    mkdir "$staging/config"
    tar -xzf "$bundle" -C "$staging/config" --no-same-owner --no-same-permissions
    [ -z "$(find "$staging/config" -mindepth 1 ! -type f)" ] || fail "--bundle: $bundle holds more than plain files"
}

fingerprint() {
    # What would be installed; only wheels say that without being built.
    [ -n "$wheelhouse" ] || return 0
    { "$python" -c 'import sys; print(sys.version, sys.base_prefix)' && cat "$here/requirements.txt" "$wheelhouse"/*.whl; } |
        sha256sum
}

make_venv() {
    wanted=$(fingerprint)
    if [ -n "$wanted" ] && [ "$wanted" = "$(cat "$PREFIX/current/.installed" 2>/dev/null)" ] && works "$PREFIX/current"; then
        say "The program is up to date."
        venv=$(readlink -f "$PREFIX/current")
        return
    fi
    mkdir -p "$PREFIX"
    venv=$(mktemp -d "$PREFIX/venv-XXXXXXXX")
    new_venv=$venv
    chmod 0755 "$PREFIX" "$venv"
    say "Installing into $PREFIX; on a small board this takes a few minutes."
    # Some boards have a small /tmp in memory: wheels are unpacked on the disk.
    mkdir "$venv/tmp"
    "$python" -m venv "$venv" >"$staging/log" 2>&1 || told "the virtual environment could not be made"
    build=''
    if [ -n "$wheel" ]; then install_wheel; elif [ -n "$wheelhouse" ]; then install_wheels; else install_checkout; fi
    rm -rf "$venv/tmp"
    keep_metrics
    "$venv/bin/python" -m pip --disable-pip-version-check check >"$staging/log" 2>&1 ||
        told "requirements.txt and Sojourn's wheel are of different versions"
    works "$venv" || told "what was installed does not run on this machine"
    printf '%s\n' "$wanted" >"$venv/.installed"
}

# What an owner added for metrics_port stays, as it is: an agent that has a port does not start without it.
keep_metrics() {
    for each in "$PREFIX"/current/lib/python3*/site-packages/prometheus_client*; do
        [ ! -e "$each" ] || cp -R "$each" "$venv"/lib/python3*/site-packages/
    done
}

install_wheels() {
    set -- --no-index --find-links "$wheelhouse"
    if [ -n "$hashes" ]; then
        pip_install_checked "$@" -r "$here/requirements.txt" || told "pip could not install from $wheelhouse"
        set -- --no-deps "$@"
    fi
    pip_install "$@" sojourn || told "pip could not install from $wheelhouse"
}

install_wheel() {
    without="pip could not install: without internet, use --wheelhouse"
    if [ -n "$hashes" ]; then
        pip_install_checked -r "$here/requirements.txt" || told "$without"
        pip_install --no-deps "$wheel" || told "$wheel could not be installed"
    else
        pip_install "$wheel" || told "$without"
    fi
}

install_checkout() {
    if [ -n "$hashes" ]; then
        pip_install_checked -r "$here/requirements.txt" || told "pip could not install: without internet, use --wheelhouse"
        # What builds Sojourn is checked as well, and stays outside of what is installed.
        pip_install_checked --target "$venv/tmp/build" -r "$checkout/deploy/build-requirements.txt" ||
            told "pip could not install what builds Sojourn"
        build=$venv/tmp/build
        pip_install --no-deps --no-build-isolation "$checkout" || told "Sojourn could not be built"
    else
        pip_install --constraint "$checkout/constraints.txt" "$checkout" ||
            told "pip could not install: without internet, use --wheelhouse"
    fi
}

pip_install_checked() { pip_install --require-hashes --no-deps --only-binary :all: "$@"; }

pip_install() {
    TMPDIR="$venv/tmp" PYTHONPATH="$build" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir \
        "$@" >"$staging/log" 2>&1 </dev/null
}

works() {
    "$1/bin/sojourn" --version >"$staging/log" 2>&1 &&
        "$1/bin/python" -c 'import edge_agent.run, numpy, onnxruntime' >>"$staging/log" 2>&1
}

told() {
    { grep -A 1 '^ERROR' "$staging/log" || tail -n 6 "$staging/log"; } | sed 's/^/  /' >&2
    fail "$1 (see above); nothing was changed"
}

check_config() {
    [ -n "$bundle" ] || return 0
    "$venv/bin/python" - "$staging/config/agent.toml" >"$staging/log" 2>&1 <<'END' || told "the bundle's settings are not valid"
import sys
from edge_agent.settings import AgentSettings
from sojourn.errors import SojournError
from sojourn.settings import read_settings
try:
    read_settings(sys.argv[1], {}, AgentSettings)
except SojournError as error:
    sys.exit(str(error))
END
}

# --- the switch

make_account() {
    if ! getent passwd "$ACCOUNT" >/dev/null; then
        useradd --system --user-group --home-dir "$STATE" --no-create-home --shell /usr/sbin/nologin "$ACCOUNT"
    fi
    install -d -m 0755 "$CONFIG"
    install -d -m 0710 -o "$ACCOUNT" -g "$ACCOUNT" "$STATE"
}

put_config() {
    [ -n "$bundle" ] || return 0
    if [ -f "$CONFIG/agent.toml" ] && ! cmp -s "$CONFIG/agent.toml" "$staging/config/agent.toml"; then
        cp -p "$CONFIG/agent.toml" "$CONFIG/agent.toml.before"
        say "The settings that were there are kept as $CONFIG/agent.toml.before."
    fi
    for file in "$staging/config"/*; do
        name=$(basename "$file")
        install -m 0640 -o root -g "$ACCOUNT" "$file" "$CONFIG/.$name.new"
        mv -f "$CONFIG/.$name.new" "$CONFIG/$name"
    done
}

join_fleet() {
    [ -n "$join" ] || return 0
    if [ -f "$STATE/identity/joined.json" ] && [ -f "$CONFIG/agent.toml" ]; then
        say "This device has joined already."
        return 0
    fi
    [ ! -f "$CONFIG/agent.toml" ] || fail "$CONFIG/agent.toml is there: move it away to join with keys of its own"
    "$PREFIX/current/bin/sojourn" agent join "$join" --file "$CONFIG/agent.toml" --identity "$STATE/identity" \
        --store "$STATE" || fail "the agent is installed, and has not joined: run this again with the same token"
    chown -R "$ACCOUNT:$ACCOUNT" "$STATE/identity"
    chown "root:$ACCOUNT" "$CONFIG/agent.toml"
    chmod 0640 "$CONFIG/agent.toml"
}

put_unit() {
    install -d -m 0755 "$UNITS/$UNIT.d"
    cores=$(nproc)
    if [ "$cores" -eq 4 ]; then
        rm -f "$UNITS/$UNIT.d/10-cores.conf"
    else
        printf '[Service]\nCPUQuota=%s%%\n' "$((cores * 75))" >"$UNITS/$UNIT.d/10-cores.conf"
    fi
    rmdir "$UNITS/$UNIT.d" 2>/dev/null || true
    install -m 0644 "$here/$UNIT" "$UNITS/.$UNIT.new"
    mv -f "$UNITS/.$UNIT.new" "$UNITS/$UNIT"
}

switch_over() {
    if [ -n "$new_venv" ]; then
        # A power cut must not leave a link to files that never reached the disk.
        sync
        ln -s "$(basename "$venv")" "$PREFIX/.current.new"
        mv -T "$PREFIX/.current.new" "$PREFIX/current"
        new_venv=''
    fi
    for old in "$PREFIX"/venv-*; do
        [ "$old" = "$venv" ] || rm -rf "$old"
    done
    if [ ! -e "$LINK" ] || [ -L "$LINK" ]; then
        mkdir -p "$(dirname "$LINK")"
        case "$(readlink "$LINK" 2>/dev/null)" in
            '' | "$PREFIX"/*) ln -sfn "$PREFIX/current/bin/sojourn" "$LINK" ;;
        esac
    fi
}

start_service() {
    if command -v systemctl >/dev/null; then
        systemctl --quiet enable "$UNIT" 2>/dev/null || fail "systemctl enable $UNIT failed"
    else
        mkdir -p "$UNITS/multi-user.target.wants"
        ln -sfn "$UNITS/$UNIT" "$UNITS/multi-user.target.wants/$UNIT"
    fi
    if [ ! -d /run/systemd/system ]; then
        say "systemd is not running here: the agent was not started; it starts at the next boot."
    elif [ ! -f "$CONFIG/agent.toml" ]; then
        systemctl daemon-reload
    elif [ -z "$start" ]; then
        systemctl daemon-reload
        say "Start it with: systemctl restart $UNIT"
    else
        systemctl daemon-reload
        systemctl restart "$UNIT" || fail "it is installed, but does not start: journalctl -u $UNIT says why"
        say "The agent runs. What it says: journalctl -u $UNIT -f"
    fi
    if [ ! -f "$CONFIG/agent.toml" ]; then
        say "It has no settings yet: run install.sh --join TOKEN, or sojourn agent init, then systemctl start $UNIT"
    fi
}

install_all() {
    check_machine
    find_python
    check_hashes
    staging=$(mktemp -d)
    new_venv=''
    trap 'rm -rf "$staging"; [ -z "$new_venv" ] || rm -rf "$new_venv"; rmdir "$PREFIX" 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    unpack_bundle
    make_venv
    check_config
    make_account
    put_config
    put_unit
    switch_over
    say "Installed: $("$PREFIX/current/bin/sojourn" --version)"
    join_fleet
    start_service
}

uninstall_all() {
    if [ -d /run/systemd/system ]; then
        systemctl --quiet disable --now "$UNIT" 2>/dev/null || true
    fi
    rm -f "$UNITS/multi-user.target.wants/$UNIT" "$UNITS/$UNIT" "$UNITS/$UNIT.d/10-cores.conf"
    rmdir "$UNITS/$UNIT.d" 2>/dev/null || true
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
    case "$(readlink "$LINK" 2>/dev/null)" in "$PREFIX"/*) rm -f "$LINK" ;; esac
    rm -rf "$PREFIX"
    if [ -n "$purge" ]; then
        rm -rf "$STATE" "$UNITS/$UNIT.d"
        rm -f "$CONFIG"/agent.*
        rmdir "$CONFIG" 2>/dev/null || true
        if getent passwd "$ACCOUNT" >/dev/null; then userdel "$ACCOUNT"; fi
        say "The agent, its settings and its data are removed."
    else
        say "The agent is removed; its settings ($CONFIG) and data ($STATE) stay. --purge removes them, too."
    fi
}

read_arguments "$@"
become_root "$@"
umask 022
exec 9>/run/sojourn-agent-install.lock
flock -n 9 || fail "another installation is running"
if [ -n "$uninstall" ]; then uninstall_all; else install_all; fi
