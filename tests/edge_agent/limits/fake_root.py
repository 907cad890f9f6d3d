"""A fake machine for tests: /proc and /sys in a folder."""

from __future__ import annotations

from pathlib import Path

ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


class FakeRoot:
    """Files as the kernel provides them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "root"
        self.path.mkdir()

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".temporary")
        temporary.write_text(text)
        temporary.replace(path)

    def heat(self, celsius: float, zone: int = 0, kind: str = "cpu-thermal") -> None:
        self.write(f"sys/class/thermal/thermal_zone{zone}/type", f"{kind}\n")
        self.write(f"sys/class/thermal/thermal_zone{zone}/temp", f"{int(celsius * 1000)}\n")

    def memory(self, megabytes: int) -> None:
        self.write("proc/meminfo", f"MemTotal: 999999 kB\nMemFree: 1 kB\nMemAvailable: {megabytes * 1024} kB\n")

    def routes(self, *ways: tuple[str, int]) -> None:
        """Return default routes over these interfaces with these metrics, and one other route."""
        lines = [f"{name}\t00000000\t010200C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0\n" for name, metric in ways]
        self.write("proc/net/route", ROUTES + "".join(lines) + "usb9\t000200C0\t0\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")

    def supply(self, name: str, kind: str, **facts: object) -> None:
        self.write(f"sys/class/power_supply/{name}/type", f"{kind}\n")
        for fact, value in facts.items():
            self.write(f"sys/class/power_supply/{name}/{fact}", f"{value}\n")
