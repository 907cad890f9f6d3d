#!/usr/bin/env bash
# The agent's unit under a real systemd, in a container that boots: it starts and reports that it is ready, trains inside
# of its sandbox, serves a release to a program of its group and to no other, comes back after kill -9 and when it hangs,
# and is gone after --uninstall.
# Needs root, systemd-nspawn (systemd-container), mmdebstrap and a network, or ROOT_TAR and WHEELHOUSE as chroot.sh has them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ "$(id -u)" -eq 0 ] || { echo "run it as root" >&2; exit 1; }
work=$(mktemp -d)
root=$work/root
mkdir "$root"
trap 'rm -rf "$work"' EXIT

tar=${ROOT_TAR:-$work/root.tar}
[ -s "$tar" ] || mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,sudo,systemd,ca-certificates,mosquitto bookworm "$tar"
tar -xf "$tar" -C "$root"
wheels=${WHEELHOUSE:-$work/wheels}
if [ ! -d "$wheels" ]; then
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
    python3 -m pip download --quiet --only-binary=:all: --python-version 3.11 --platform "manylinux_2_28_$(uname -m)" \
        --platform "manylinux_2_27_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" \
        --platform "manylinux2014_$(uname -m)" --dest "$wheels" --require-hashes --no-deps \
        --requirement deploy/device/requirements.txt
fi
cp -r "$wheels" "$root/wheels"
cp -r deploy/device "$root/device"
sojourn=${SOJOURN:-.venv/bin/sojourn}
"$sojourn" fleet init --host broker.example --fleet-folder "$work/fleet" >/dev/null
"$sojourn" fleet add-device pi-1 --fleet-folder "$work/fleet" --output "$root/pi-1.tar.gz" >/dev/null 2>&1
.venv/bin/python - "$root" <<'END'
import sys
from pathlib import Path
import numpy as np
from coordinator.releases.file import write_release
from tests.live.release_goods import digits_release
root = Path(sys.argv[1])
write_release(root / "digits-1.release", digits_release(1))
np.savez(root / "rows.npz", x=np.zeros((2, 64), np.float32))
END
cat >"$root/serve.py" <<'END'
from pathlib import Path
from coordinator.releases.file import read_release
from sojourn.data.source import DataSettings
from edge_agent.releases.installing import Installer
from edge_agent.releases.orders import Install
from sojourn.store.blobs import FolderBlobs
store, release = Path("/var/lib/sojourn-agent"), read_release(Path("/digits-1.release"))
for blob in (release.graph, release.card_bytes):
    FolderBlobs(store / "blobs").put(blob)
print(Installer(store, store / "blobs", DataSettings(path="/nowhere"))(Install("digits", 1, release.goods)))
END

cat >"$root/trial.sh" <<'END'
#!/bin/bash
set -euo pipefail
unit=sojourn-agent.service
pid() { systemctl show --property MainPID --value $unit; }
wait_for() { for _ in $(seq 120); do if "$@"; then return 0; fi; sleep 1; done; echo "timed out: $*"; systemctl status $unit; return 1; }
is_new() { [ "$(systemctl is-active $unit)" = active ] && [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ]; }
restarts() { systemctl show --property NRestarts --value $unit; }

sh /device/install.sh --wheelhouse /wheels --bundle /pi-1.tar.gz
[ "$(systemctl is-active $unit)" = active ]
[ "$(stat --format %U "/proc/$(pid)")" = sojourn-agent ]
journalctl --unit $unit | grep --quiet "; retrying"
echo "PASSED it starts, and reports that it is ready"

first=$(pid)
kill -9 "$first"
wait_for is_new "$first"
echo "PASSED it comes back after kill -9"

mkdir -p /run/systemd/system/$unit.d
printf '[Service]\nWatchdogSec=4\n' >/run/systemd/system/$unit.d/quick.conf
systemctl daemon-reload
systemctl restart $unit
sleep 10
[ "$(restarts)" = 0 ]
second=$(pid)
kill -STOP "$second"
wait_for is_new "$second"
journalctl --unit $unit | grep --quiet -i "watchdog timeout"
echo "PASSED it stays while it is well, and comes back when it hangs"

sed -e 's/^Type=.*/Type=oneshot/' -e '/^\(WatchdogSec\|Restart\|ConditionPathExists\|NotifyAccess\)/d' \
    -e 's|^ExecStart=.*|ExecStart=/opt/sojourn-agent/current/bin/sojourn agent profile --seconds 1 --output /var/lib/sojourn-agent/profile.toml|' \
    /etc/systemd/system/$unit >/run/systemd/system/trial-profile.service
systemctl daemon-reload
systemctl start trial-profile.service || { journalctl --unit trial-profile.service; exit 1; }
grep --quiet flops /var/lib/sojourn-agent/profile.toml
echo "PASSED onnxruntime trains inside of the sandbox"

sed -e 's|^ExecStart=.*|ExecStart=/opt/sojourn-agent/current/bin/python /serve.py|' \
    /run/systemd/system/trial-profile.service >/run/systemd/system/trial-release.service
systemctl daemon-reload
systemctl start trial-release.service || { journalctl --unit trial-release.service; exit 1; }
useradd --groups sojourn-agent app
useradd stranger
predict="/opt/sojourn-agent/current/bin/sojourn agent predict digits /rows.npz --store /var/lib/sojourn-agent"
[ "$(runuser --user app -- $predict | wc --lines)" = 2 ]
if runuser --user stranger -- $predict; then exit 1; fi
[ "$(stat --format '%a %G' /var/lib/sojourn-agent/release/usage.sock)" = "660 sojourn-agent" ]
if runuser --user app -- cat /var/lib/sojourn-agent/journal.db; then exit 1; fi
echo "PASSED a release is tried inside of the sandbox, and programs of its group use it"

third=$(pid)
sh /device/install.sh --wheelhouse /wheels
wait_for is_new "$third"
echo "PASSED installed again, it is restarted"
sh /device/install.sh --uninstall --purge
[ "$(systemctl is-active $unit)" != active ]
if getent passwd sojourn-agent; then exit 1; fi
echo "PASSED uninstalled, it is gone"
END
chmod +x "$root/trial.sh"
cat >"$root/etc/systemd/system/trial.service" <<'END'
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/trial.sh >/trial.log 2>&1 || echo FAILED >>/trial.log; systemctl poweroff --no-block'
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../trial.service "$root/etc/systemd/system/multi-user.target.wants/trial.service"
rm -f "$root/etc/machine-id" && touch "$root/etc/machine-id"
timeout 900 systemd-nspawn --quiet --directory "$root" --register=no --keep-unit --private-network --boot >"$work/console" 2>&1 </dev/null ||
    tail -n 5 "$work/console" >&2
cat "$root/trial.log"
if grep --quiet FAILED "$root/trial.log"; then exit 1; fi
[ "$(grep --count PASSED "$root/trial.log")" -eq 7 ]
