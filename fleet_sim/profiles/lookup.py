"""Profiles of boards and links: by name from the table, or from a TOML file."""

from __future__ import annotations

from pathlib import Path

from fleet_sim.profiles.boards import LINKS, PROFILES
from sojourn.errors import ConfigError
from sojourn.profile import LinkProfile, Profile
from sojourn.settings import nearest, read_file

CUSTOM = "custom"


def find_profile(name: str) -> Profile:
    """A board of the table, or the profile in a TOML file, as `sojourn agent profile --output FILE` writes it."""
    if name in PROFILES:
        return PROFILES[name]
    if name == CUSTOM:
        raise ConfigError(f"a {CUSTOM} profile is a file: make one with `sojourn agent profile --output FILE`, name it")
    if name.endswith(".toml"):
        return read_file(Path(name).expanduser(), Profile)
    raise ConfigError(f"unknown profile {name!r}; {nearest(name, [*PROFILES, CUSTOM])}; or name a .toml file")


def find_link(name: str) -> LinkProfile:
    """A link of the table, or that of the profile in a TOML file."""
    if name in LINKS:
        return LINKS[name][0]
    if name.endswith(".toml"):
        return find_profile(name).link
    raise ConfigError(f"unknown link {name!r}; {nearest(name, LINKS)}; or name a .toml file")
