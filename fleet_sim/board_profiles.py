"""Profiles of boards and links, by name with a source for each number, or from a TOML file."""

from __future__ import annotations

from pathlib import Path

from sojourn.errors import ConfigError
from sojourn.profile import DeviceProfile, LinkProfile, Profile
from sojourn.settings import nearest, read_file

# Each number has its source; "assumed" marks a number without one, with the reason. The agent trains on the processor
# alone, so a Jetson's GPU does not count here. No board was measured with Sojourn yet: speeds are derived from
# published ones and from one machine on which both could be measured, flops = HPL x 2 x SHARE, where HPL is the float64
# operations per second in High Performance Linpack on all cores, 2 accounts for float32 (twice as many numbers in a
# vector register; 1.8 on the reference), and SHARE is the speed of training relative to a matrix product. A profile
# measured on the board itself (`sojourn agent profile`) is more accurate than any of these.

GIB = 1 << 30
_EPYC = "AMD EPYC (Zen 3), a virtual core, with other load, 2026-11-16, onnxruntime 1.31.1, numpy 2.4.6"
_SGEMM = 59.6e9
"""Float32 operations per second in `a @ a` of numpy, 1024 x 1024, on one core of the reference."""
_SEVEN_ZIP = 4000.0
"""7-zip's single-thread rating of the reference; assumed: that of an N100 (sbc-bench issue 65: 4020)."""

ETHERNET = LinkProfile(up=117.5e6, down=117.5e6, latency=0.0005)
WIFI_24 = LinkProfile(up=5e6, down=5e6, latency=0.003)
_IPERF = "941 Mbit/s by iperf3 on a Raspberry Pi (mpr-projects.com, RPi NAS part 3, 2024)"
_ETHERNET_SOURCES = {
    "up": _IPERF,
    "down": f"{_IPERF}; assumed the same both ways",
    "latency": "assumed: a switch or two and the broker's network stack, half a millisecond",
}
_WIFI_24_SOURCES = {
    "up": "assumed: 40 Mbit/s, a bit more than half of the 72 Mbit/s of 802.11n with one antenna on 20 MHz",
    "down": "assumed: as up; the air is shared both ways",
    "latency": "assumed: 3 ms to an access point in the same house, with some waiting for the air",
}

LINKS: dict[str, tuple[LinkProfile, dict[str, str]]] = {
    "ethernet": (ETHERNET, _ETHERNET_SOURCES),
    "home-wifi": (WIFI_24, _WIFI_24_SOURCES),
    "wifi-5ghz": (
        LinkProfile(up=12.5e6, down=12.5e6, latency=0.002),
        {
            "up": "assumed: 100 Mbit/s, about a quarter of the 433 Mbit/s of 802.11ac with one antenna on 80 MHz",
            "down": "assumed: as up; the air is shared both ways",
            "latency": "assumed: 2 ms to an access point in the same house",
        },
    ),
    "lte": (
        LinkProfile(up=1.25e6, down=3.75e6, latency=0.025),
        {
            "up": "assumed: 10 Mbit/s, a middling cell",
            "down": "assumed: 30 Mbit/s, a middling cell",
            "latency": "assumed: 50 ms there and back",
        },
    ),
}
"""Links by name, with a source for each number."""

REFERENCE = Profile(
    name="reference",
    device=DeviceProfile(flops=20.3e9, step_seconds=0.54e-3, visit_seconds=0.67, memory=25_274_793_984, cores=1),
    link=ETHERNET,
    sources={
        **{
            f"device.{field}": f"measured with `sojourn agent profile --threads 1`: {_EPYC}"
            for field in ("flops", "step_seconds", "visit_seconds", "memory", "cores")
        },
        **{f"link.{field}": source for field, source in _ETHERNET_SOURCES.items()},
    },
)
"""The machine on which both a matrix product and training were measured."""
SHARE = REFERENCE.device.flops / _SGEMM
"""The speed of training relative to a matrix product: 0.34."""


def _board(
    name: str, *, hpl: float, seven_zip: float, memory: int, cores: int, link: str, sources: dict[str, str]
) -> Profile:
    """Return a board; `sources` are those of `hpl`, `seven_zip`, `memory` and `cores`."""
    slower = _SEVEN_ZIP / seven_zip
    device = DeviceProfile(
        flops=2 * hpl * SHARE,
        step_seconds=REFERENCE.device.step_seconds * slower,
        visit_seconds=REFERENCE.device.visit_seconds * slower,
        memory=memory,
        cores=cores,
    )
    ratio = (
        f"assumed: the reference's, slower by the ratio of 7-zip's single-thread ratings, "
        f"{_SEVEN_ZIP:.0f} (assumed) to {seven_zip:.0f} ({sources['seven_zip']})"
    )
    cited = {
        "device.flops": f"2 x {SHARE:.2f} x HPL {hpl / 1e9:.2f} GFLOP/s: {sources['hpl']}",
        "device.step_seconds": ratio,
        "device.visit_seconds": ratio,
        "device.memory": sources["memory"],
        "device.cores": sources["cores"],
    }
    line, where = LINKS[link]
    cited |= {f"link.{field}": text for field, text in where.items()}
    return Profile(name=name, device=device, link=line, sources=cited)


_BOARDS = (
    _board(
        "raspberry-pi-zero-2",
        hpl=11.889e9 * (1.5 / 1.8) * (176.18 / 353.45),
        seven_zip=1007 / 1.2,
        memory=GIB // 2,
        cores=4,
        link="home-wifi",
        sources={
            "hpl": "assumed: the Raspberry Pi 4's at 1.5 GHz, by the ratio of ResNet-18's inference times in float32 "
            "on 4 threads, 176.18 to 353.45 ms (Tencent/ncnn issue 3485); the HPL run that there is, 0.37 GFLOP/s, "
            "used 435 of 512 MB and must have swapped (geerlingguy/top500-benchmark issue 26)",
            "seven_zip": "1007 at 1.2 GHz in sbc-bench's Sorted-Results.md, taken to its 1 GHz",
            "memory": "512 MB: Linux's bcm2837-rpi-zero-2-w.dts",
            "cores": "4 x Cortex-A53 at 1 GHz (Tencent/ncnn issue 3485)",
        },
    ),
    _board(
        "raspberry-pi-4",
        hpl=11.889e9,
        seven_zip=1769,
        memory=4 * GIB,
        cores=4,
        link="ethernet",
        sources={
            "hpl": "measured at 1.8 GHz (geerlingguy/top500-benchmark issue 13)",
            "seven_zip": "at 1.8 GHz, 64 bit, in sbc-bench's Sorted-Results.md",
            "memory": "4 GB, one of 2, 4 and 8: product brief, Raspberry Pi Trading, 2020",
            "cores": "4 x Cortex-A72: product brief, Raspberry Pi Trading, 2020",
        },
    ),
    _board(
        "raspberry-pi-5",
        hpl=30.249e9,
        seven_zip=3146 * 2.4 / 2.35,
        memory=8 * GIB,
        cores=4,
        link="ethernet",
        sources={
            "hpl": "measured at 2.4 GHz (geerlingguy/top500-benchmark issue 18)",
            "seven_zip": "assumed: that of the same core in a ROCK 5B, 3146 at 2.35 GHz in sbc-bench's "
            "Sorted-Results.md, taken to 2.4 GHz",
            "memory": "8 GB, the larger of the two at its launch (circuitdigest.com, pcmasters.de)",
            "cores": "4 x Cortex-A76 at 2.4 GHz (circuitdigest.com)",
        },
    ),
    _board(
        "jetson-nano",
        hpl=11.889e9 * 1.43 / 1.8,
        seven_zip=1473,
        memory=4 * GIB,
        cores=4,
        link="ethernet",
        sources={
            "hpl": "assumed: the Raspberry Pi 4's, taken from 1.8 to 1.43 GHz: Cortex-A57 and A72 do as much in a "
            "cycle and run the same kernels (jfikar/xhpl-aarch64); its memory is faster, so it may be quicker",
            "seven_zip": "at 1.43 GHz in sbc-bench's Sorted-Results.md",
            "memory": "4 GB LPDDR4 (Fastvideo's benchmark of the developer kit)",
            "cores": "4 x Cortex-A57 at 1.43 GHz (Fastvideo's benchmark of the developer kit)",
        },
    ),
    _board(
        "jetson-orin",
        hpl=30.249e9 * (6 * 1.51) / (4 * 2.4),
        seven_zip=2153,
        memory=8 * GIB,
        cores=6,
        link="ethernet",
        sources={
            "hpl": "assumed: the Raspberry Pi 5's by cores and clock, 6 x 1.51 to 4 x 2.4 GHz: Cortex-A76 and A78 do "
            "as much in a cycle (jfikar/xhpl-aarch64)",
            "seven_zip": "Orin Nano at 1.51 GHz, sbc-bench issue 65",
            "memory": "8 GB: Jetson Orin Nano module data sheet, NVIDIA",
            "cores": "6 x Cortex-A78AE: Jetson Orin Nano module data sheet, NVIDIA",
        },
    ),
)
PROFILES: dict[str, Profile] = {board.name: board for board in _BOARDS}
"""Boards by name, each with the link that its connectors suggest."""


CUSTOM = "custom"


def find_profile(name: str) -> Profile:
    """Return a board of the table, or the profile in a TOML file written by `sojourn agent profile --output FILE`."""
    if name in PROFILES:
        return PROFILES[name]
    if name == CUSTOM:
        raise ConfigError(
            f"a {CUSTOM} profile is a file: create one with `sojourn agent profile --output FILE` and use its path"
        )
    if name.endswith(".toml"):
        return read_file(Path(name).expanduser(), Profile)
    raise ConfigError(
        f"unknown profile {name!r}; {nearest(name, [*PROFILES, CUSTOM])}; or use the path of a .toml file"
    )


def find_link(name: str) -> LinkProfile:
    """Return a link of the table, or that of the profile in a TOML file."""
    if name in LINKS:
        return LINKS[name][0]
    if name.endswith(".toml"):
        return find_profile(name).link
    raise ConfigError(f"unknown link {name!r}; {nearest(name, LINKS)}; or use the path of a .toml file")
