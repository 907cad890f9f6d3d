#!/bin/sh
# Installs a Sojourn agent on this device, or removes it. Safe to run again: an existing installation is updated.
# Debian 12, Raspberry Pi OS and JetPack, 64 bit, arm64 and x86-64. See also `install.sh --help`.
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

  --join TOKEN       join a fleet with new keys; TOKEN is from `sojourn fleet invite`, or - to read it from stdin
  --bundle FILE      settings and credentials, made with: sojourn fleet add-device NAME
  --wheel FILE       install this wheel of Sojourn (make wheel), and fetch its dependencies
  --wheelhouse DIR   install from the wheels in this folder (make wheelhouse); needs no internet
  --python PATH      a Python 3.11 or newer, if the system's is older; not below /home or /root
  --without-hashes   accept any wheel that pip finds, unchecked, if requirements.txt has no hashes for this machine
  --no-start         do not start the agent now
  --uninstall        remove the program; keep settings and data
  --purge            with --uninstall: also remove settings, credentials, data and the user

Without --wheel and --wheelhouse it installs from the checkout that this script is part of, and fetches its dependencies.
Every wheel must have a SHA-256 in requirements.txt, next to this script, except Sojourn's own wheel.
END
}

info() { printf '%s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
usage_error() {
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
                if [ $# -lt 2 ] || [ -z "$2" ]; then usage_error "$1 needs a value"; fi
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
            *) usage_error "unknown argument: $1" ;;
        esac
    done
    [ -z "$purge" ] || [ -n "$uninstall" ] || usage_error "--purge goes with --uninstall"
    [ -z "$join" ] || [ -z "$bundle" ] || usage_error "--join and --bundle: give one of them"
    [ -z "$wheel" ] || [ -z "$wheelhouse" ] || usage_error "--wheel and --wheelhouse: give one of them"
    [ -z "$uninstall" ] || [ -z "$join$bundle$wheel$wheelhouse$python" ] || usage_error "--uninstall goes with --purge only"
    [ -z "$bundle" ] || [ -r "$bundle" ] || [ "$(id -u)" -ne 0 ] || fail "--bundle: $bundle cannot be read"
    [ -z "$wheel" ] || [ -f "$wheel" ] || fail "--wheel: there is no file $wheel"
    [ -z "$wheelhouse" ] || [ -d "$wheelhouse" ] || fail "--wheelhouse: there is no folder $wheelhouse"
    [ -z "$python" ] || [ -x "$python" ] || fail "--python: $python is not a program"
}

become_root() {
    [ "$(id -u)" -ne 0 ] || return 0
    [ -f "$0" ] || fail "save this script to a file first, then run it with sudo"
    command -v sudo >/dev/null || fail "run this script as root: sudo is not installed"
    info "This needs root: running sudo."
    exec sudo -- sh "$0" "$@"
}

# --- checks: if one of them fails, nothing has been changed

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "this is $(uname -s); the agent's service needs Linux"
    case "$(uname -m)" in
        x86_64 | aarch64 | arm64) ;;
        *) fail "this system is $(uname -m): onnxruntime needs a 64-bit system (arm64 or x86-64); see firmware_notes" ;;
    esac
    command -v useradd >/dev/null || fail "useradd is missing: apt-get install passwd"
    here=$(cd "$(dirname "$0")" && pwd)
    for file in "$UNIT" requirements.txt; do
        [ -f "$here/$file" ] || fail "$file must be next to this script: copy the whole folder deploy/device"
    done
    checkout=''
    if [ -n "$wheel" ]; then
        case "$(basename "$wheel")" in
            sojourn-*.whl) wheel=$(cd "$(dirname "$wheel")" && pwd)/$(basename "$wheel") ;;
            *) fail "--wheel: $wheel is not called sojourn-*.whl, the name that \`make wheel\` gives it" ;;
        esac
    elif [ -z "$wheelhouse" ]; then
        checkout=$(cd "$here/../.." && pwd)
        [ -f "$checkout/pyproject.toml" ] || fail "this is not a checkout of Sojourn: name its wheel with --wheel" \
            "(\`make wheel\` in a checkout makes it), or all wheels with --wheelhouse (\`make wheelhouse\`)"
    else
        wheelhouse=$(cd "$wheelhouse" && pwd)
        set -- "$wheelhouse"/sojourn-*.whl
        [ -f "$1" ] || fail "--wheelhouse: $wheelhouse contains no sojourn-*.whl"
    fi
    parent=$PREFIX
    while [ ! -d "$parent" ]; do parent=$(dirname "$parent"); done
    free=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$ROOM_KB" ] ||
        fail "$parent has $((free / 1000)) MB free, but $((ROOM_KB / 1000)) MB are needed: free some space"
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2**32)' 2>/dev/null; }

find_python() {
    if [ -n "$python" ]; then
        new_enough "$python" || fail "--python: $python is $("$python" --version 2>&1); a 64-bit 3.11 or newer is needed"
        if command -v python3 >/dev/null && ! new_enough python3; then
            info "The system's $(python3 --version 2>&1) is too old; using $python."
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
            fail "the system has $found, but 3.11 or newer is needed: install one and name it with --python"
        fi
    fi
    case "$("$python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix))')/" in
        /home/* | /root/*) fail "$python is in a home folder, which the service cannot see: install one in /opt or /usr/local" ;;
    esac
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        if [ -n "$wheelhouse" ] || ! command -v apt-get >/dev/null; then
            fail "$python cannot make a virtual environment: apt-get install python3-venv"
        fi
        info "Installing the Debian package python3-venv."
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends python3-venv >/dev/null </dev/null ||
            fail "python3-venv could not be installed: apt-get update, and try again"
        "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make a virtual environment"
    fi
}

check_hashes() {
    [ -n "$hashes" ] || { info "Without hashes: the wheels that pip finds are not checked." && return 0; }
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    known=$(sed -n 's/^# pythons: //p' "$here/requirements.txt")
    case " $known " in
        *" $version "*) ;;
        *) fail "requirements.txt has hashes for Python $known, not for $version: name one of these with --python," \
            "or accept unchecked wheels with --without-hashes" ;;
    esac
}

# --- staging: next to the running version

unpack_bundle() {
    [ -n "$bundle" ] || return 0
    [ -r "$bundle" ] || fail "--bundle: $bundle cannot be read"
    names=$(tar -tzf "$bundle" 2>/dev/null) || fail "--bundle: $bundle is not a complete tar.gz"
    for name in $names; do
        case "$name" in
            agent.toml | agent.password | agent.pem | agent.key | agent.ca.pem | agent.release.pub) ;;
            *) fail "--bundle: $bundle is not the bundle of a device: it contains $name" ;;
        esac
    done
    case "$names" in *agent.toml*) ;; *) fail "--bundle: $bundle contains no agent.toml" ;; esac
    mkdir "$staging/config"
    tar -xzf "$bundle" -C "$staging/config" --no-same-owner --no-same-permissions
    [ -z "$(find "$staging/config" -mindepth 1 ! -type f)" ] || fail "--bundle: $bundle contains more than plain files"
}

fingerprint() {
    # Identifies the version to install; only wheels can be identified without a build.
    [ -n "$wheelhouse" ] || return 0
    { "$python" -c 'import sys; print(sys.version, sys.base_prefix)' && cat "$here/requirements.txt" "$wheelhouse"/*.whl; } |
        sha256sum
}

make_venv() {
    wanted=$(fingerprint)
    if [ -n "$wanted" ] && [ "$wanted" = "$(cat "$PREFIX/current/.installed" 2>/dev/null)" ] && works "$PREFIX/current"; then
        info "The program is up to date."
        venv=$(readlink -f "$PREFIX/current")
        return
    fi
    mkdir -p "$PREFIX"
    venv=$(mktemp -d "$PREFIX/venv-XXXXXXXX")
    new_venv=$venv
    chmod 0755 "$PREFIX" "$venv"
    info "Installing into $PREFIX; on a small board this takes a few minutes."
    # Some boards have a small /tmp in memory: wheels are unpacked on the disk.
    mkdir "$venv/tmp"
    "$python" -m venv "$venv" >"$staging/log" 2>&1 || fail_with_log "the virtual environment could not be made"
    build=''
    if [ -n "$wheel" ]; then install_wheel; elif [ -n "$wheelhouse" ]; then install_wheels; else install_checkout; fi
    rm -rf "$venv/tmp"
    keep_metrics
    "$venv/bin/python" -m pip --disable-pip-version-check check >"$staging/log" 2>&1 ||
        fail_with_log "requirements.txt and Sojourn's wheel are of different versions"
    works "$venv" || fail_with_log "the installed program does not run on this machine"
    printf '%s\n' "$wanted" >"$venv/.installed"
}

# Keep the package that an owner added for metrics_port: an agent that has a port does not start without it.
keep_metrics() {
    for each in "$PREFIX"/current/lib/python3*/site-packages/prometheus_client*; do
        [ ! -e "$each" ] || cp -R "$each" "$venv"/lib/python3*/site-packages/
    done
}

install_wheels() {
    set -- --no-index --find-links "$wheelhouse"
    if [ -n "$hashes" ]; then
        pip_install_checked "$@" -r "$here/requirements.txt" || fail_with_log "pip could not install from $wheelhouse"
        set -- --no-deps "$@"
    fi
    pip_install "$@" sojourn || fail_with_log "pip could not install from $wheelhouse"
}

install_wheel() {
    without="pip could not install: without internet, use --wheelhouse"
    if [ -n "$hashes" ]; then
        pip_install_checked -r "$here/requirements.txt" || fail_with_log "$without"
        pip_install --no-deps "$wheel" || fail_with_log "$wheel could not be installed"
    else
        pip_install "$wheel" || fail_with_log "$without"
    fi
}

install_checkout() {
    if [ -n "$hashes" ]; then
        pip_install_checked -r "$here/requirements.txt" || fail_with_log "pip could not install: without internet, use --wheelhouse"
        # The build tools are checked as well, and stay outside of the installation.
        pip_install_checked --target "$venv/tmp/build" -r "$checkout/deploy/build-requirements.txt" ||
            fail_with_log "pip could not install the build tools"
        build=$venv/tmp/build
        pip_install --no-deps --no-build-isolation "$checkout" || fail_with_log "Sojourn could not be built"
    else
        pip_install --constraint "$checkout/constraints.txt" "$checkout" ||
            fail_with_log "pip could not install: without internet, use --wheelhouse"
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

fail_with_log() {
    { grep -A 1 '^ERROR' "$staging/log" || tail -n 6 "$staging/log"; } | sed 's/^/  /' >&2
    fail "$1 (see above); nothing was changed"
}

check_config() {
    [ -n "$bundle" ] || return 0
    "$venv/bin/python" - "$staging/config/agent.toml" >"$staging/log" 2>&1 <<'END' || fail_with_log "the bundle's settings are not valid"
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
        info "The previous settings are kept as $CONFIG/agent.toml.before."
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
        info "This device has joined already."
        return 0
    fi
    [ ! -f "$CONFIG/agent.toml" ] || fail "$CONFIG/agent.toml exists: move it away to join with the device's own keys"
    "$PREFIX/current/bin/sojourn" agent join "$join" --file "$CONFIG/agent.toml" --identity "$STATE/identity" \
        --store "$STATE" || fail "the agent is installed, but has not joined: run this script again with the same token"
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
        info "systemd is not running here: the agent was not started; it starts at the next boot."
    elif [ ! -f "$CONFIG/agent.toml" ]; then
        systemctl daemon-reload
    elif [ -z "$start" ]; then
        systemctl daemon-reload
        info "Start it with: systemctl restart $UNIT"
    else
        systemctl daemon-reload
        systemctl restart "$UNIT" || fail "the agent is installed, but does not start: see journalctl -u $UNIT"
        info "The agent runs. Its log: journalctl -u $UNIT -f"
    fi
    if [ ! -f "$CONFIG/agent.toml" ]; then
        info "The agent has no settings yet: run install.sh --join TOKEN, or sojourn agent init, then systemctl start $UNIT"
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
    info "Installed: $("$PREFIX/current/bin/sojourn" --version)"
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
        info "The agent, its settings and its data are removed."
    else
        info "The agent is removed; its settings ($CONFIG) and data ($STATE) stay. --purge also removes them."
    fi
}

read_arguments "$@"
become_root "$@"
umask 022
exec 9>/run/sojourn-agent-install.lock
flock -n 9 || fail "another installation is running"
if [ -n "$uninstall" ]; then uninstall_all; else install_all; fi
