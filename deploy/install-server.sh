#!/bin/sh
# Installs an edge server or a coordinator on a Debian 12 (or newer) machine. Run it again to upgrade.
# The old version runs until the new one is installed; a running job is resumed.
set -eu

usage() {
    cat <<'END'
Usage: install-server.sh edge|coordinator [--wheel FILE | --wheelhouse DIR] [--python PATH] [--without-hashes]

  --wheel FILE       install this wheel of Sojourn (make wheel), and fetch its dependencies
  --wheelhouse DIR   install from the wheels in this folder (make wheelhouse); needs no internet
  --python PATH      a Python 3.11 or newer, if the system's is older
  --without-hashes   accept any wheel that pip finds, unchecked, if there are no hashes for this machine

Without --wheel and --wheelhouse it installs from the checkout that this script is part of, and fetches its dependencies.
Every wheel must have a SHA-256 in the requirements.txt of device/ (edge) or coordinator/, except Sojourn's own wheel.
A coordinator installs torch: about 2 GB. Then: `sojourn fleet init` or `sojourn edge init`, and systemctl start.
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

role='' wheel='' wheelhouse='' python=python3 hashes=yes
while [ $# -gt 0 ]; do
    case "$1" in
        edge | coordinator) role=$1 && shift ;;
        --wheel | --wheelhouse | --python)
            [ $# -ge 2 ] || usage_error "$1 needs a value"
            case "$1" in
                --wheel) wheel=$2 ;;
                --wheelhouse) wheelhouse=$2 ;;
                --python) python=$2 ;;
            esac
            shift 2
            ;;
        --without-hashes) hashes='' && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage_error "unknown argument: $1" ;;
    esac
done
[ -n "$role" ] || usage_error "missing argument: edge or coordinator"
[ -z "$wheel" ] || [ -z "$wheelhouse" ] || usage_error "--wheel and --wheelhouse: give one of them"
[ -z "$wheel" ] || [ -f "$wheel" ] || fail "--wheel: there is no file $wheel"
[ -z "$wheelhouse" ] || [ -d "$wheelhouse" ] || fail "--wheelhouse: there is no folder $wheelhouse"
[ "$(id -u)" -eq 0 ] || fail "run it as root, or with sudo"

here=$(cd "$(dirname "$0")" && pwd)
unit=sojourn-$role.service
units=/etc/systemd/system
prefix=/opt/sojourn
[ -f "$here/$role/$unit" ] || fail "$here/$role/$unit is missing: copy the whole folder deploy"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2**32)' 2>/dev/null ||
    fail "$python is not a 64-bit Python 3.11 or newer: name one with --python"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make a virtual environment: apt-get install python3-venv"
command -v mosquitto >/dev/null || [ -x /usr/sbin/mosquitto ] ||
    info "mosquitto is not installed: for a broker on this machine, apt-get install mosquitto first."

# Both may be on one machine, in one folder: installing an edge server must not remove a coordinator's dependencies.
what='sojourn[cloud]' locked=$here/coordinator/requirements.txt
if [ "$role" = edge ] && [ ! -f "$units/sojourn-coordinator.service" ]; then
    what=sojourn locked=$here/device/requirements.txt
fi
if [ -n "$hashes" ]; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') machine=$(uname -m)
    for each in "machines:$machine" "pythons:$version"; do
        known=$(sed -n "s/^# ${each%%:*}: //p" "$locked")
        case " $known " in
            *" ${each#*:} "*) ;;
            *) fail "$locked has hashes for $known, not for ${each#*:}: use one of these," \
                "or accept unchecked wheels with --without-hashes" ;;
        esac
    done
fi
mkdir -p "$prefix"
venv=$(mktemp -d "$prefix/venv-XXXXXXXX")
done=''
trap '[ -n "$done" ] || rm -rf "$venv"; rmdir "$prefix" 2>/dev/null || true' EXIT
chmod 0755 "$prefix" "$venv"
mkdir "$venv/tmp"
"$python" -m venv "$venv"
build=''
pip() {
    TMPDIR="$venv/tmp" PYTHONPATH="$build" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --no-cache-dir "$@"
}
checked() { pip --require-hashes --no-deps --only-binary :all: "$@"; }
info "Installing $what into $prefix."
cannot="pip could not install; nothing was changed"
if [ -n "$wheelhouse" ]; then
    cannot="pip could not install from $wheelhouse; nothing was changed"
    set -- --no-index --find-links "$wheelhouse"
    if [ -n "$hashes" ]; then
        checked "$@" -r "$locked" || fail "$cannot"
        set -- --no-deps "$@"
    fi
    pip "$@" "$what" || fail "$cannot"
else
    checkout=$(cd "$here/.." && pwd)
    [ -n "$wheel" ] || [ -f "$checkout/pyproject.toml" ] || fail "this is not a checkout of Sojourn: name its wheel with" \
        "--wheel (\`make wheel\` in a checkout makes it), or all wheels with --wheelhouse (\`make wheelhouse\`)"
    # The CPU builds of torch are a tenth of the others; they exist there for both architectures.
    set --
    [ "$what" = sojourn ] || set -- --extra-index-url https://download.pytorch.org/whl/cpu
    if [ -n "$hashes" ]; then
        checked "$@" -r "$locked" || fail "$cannot"
    fi
    if [ -n "$wheel" ]; then
        [ -z "$hashes" ] || set -- --no-deps
        case "$wheel" in /*) ;; *) wheel=$PWD/$wheel ;; esac
        pip "$@" "$wheel${what#sojourn}" || fail "$cannot"
    elif [ -n "$hashes" ]; then
        # The build tools are checked as well, and stay outside of the installation.
        checked --target "$venv/tmp/build" -r "$here/build-requirements.txt" || fail "$cannot"
        build=$venv/tmp/build
        pip --no-deps --no-build-isolation "$checkout" || fail "$cannot"
    else
        info "Without hashes: the wheels that pip finds are not checked."
        pip "$@" --constraint "$checkout/constraints.txt" "$checkout${what#sojourn}" || fail "$cannot"
    fi
fi
rm -rf "$venv/tmp"
# Keep the package that an operator added for metrics_port: a node that has a port does not start without it.
for each in "$prefix"/current/lib/python3*/site-packages/prometheus_client*; do
    [ ! -e "$each" ] || cp -R "$each" "$venv"/lib/python3*/site-packages/
done
unmet=$("$venv/bin/python" -m pip --disable-pip-version-check check 2>&1) ||
    fail "$locked and Sojourn's wheel are of different versions ($unmet); nothing was changed"
"$venv/bin/sojourn" --version >/dev/null || fail "the installed program does not run; nothing was changed"

if ! getent passwd "sojourn-$role" >/dev/null; then
    useradd --system --user-group --home-dir "/var/lib/sojourn-$role" --no-create-home --shell /usr/sbin/nologin "sojourn-$role"
fi
install -d -m 0755 /etc/sojourn
[ "$role" = edge ] || install -d -m 0755 "$prefix/models"
install -d -m 0700 -o "sojourn-$role" -g "sojourn-$role" "/var/lib/sojourn-$role"
install -m 0644 "$here/$role/$unit" "$units/$unit"
if [ "$role" = coordinator ]; then
    # Enable these to let devices join with tokens: systemctl enable --now sojourn-door sojourn-broker-reload.path
    for each in sojourn-door.service sojourn-broker-reload.path sojourn-broker-reload.service; do
        install -m 0644 "$here/coordinator/$each" "$units/$each"
    done
fi
install -d -m 0755 "$units/mosquitto.service.d"
install -m 0644 "$here/edge/mosquitto.service.d/sojourn.conf" "$units/mosquitto.service.d/sojourn.conf"
sync
ln -s "$(basename "$venv")" "$prefix/.current.new"
mv -T "$prefix/.current.new" "$prefix/current"
done=yes
mkdir -p /usr/local/bin
if [ ! -e /usr/local/bin/sojourn ]; then ln -sfn "$prefix/current/bin/sojourn" /usr/local/bin/sojourn; fi

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl --quiet enable "$unit"
    # The old version runs until here; after the restart the new one resumes its work.
    systemctl try-restart "$unit"
else
    mkdir -p "$units/multi-user.target.wants"
    ln -sfn "$units/$unit" "$units/multi-user.target.wants/$unit"
    info "systemd is not running here: $unit was not started."
fi
for old in "$prefix"/venv-*; do
    [ "$old" = "$venv" ] || rm -rf "$old"
done
info "Installed: $("$prefix/current/bin/sojourn" --version)"
