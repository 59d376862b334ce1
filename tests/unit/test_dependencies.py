"""The locks have exactly what pyproject.toml asks for, with hashes, and licences that allow shipping it."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {lock.stem: lock.read_text() for lock in (ROOT / "requirements").glob("*.txt")}
EXTRAS = {"run": "", "embedded": "embedded", "dev": "dev"}
"""The extra of pyproject.toml that a lock belongs to."""
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT",
    "PSF-2.0", "Zlib",
    "Apache Software License", "BSD License", "ISC License (ISCL)", "MIT License",
}  # fmt: skip
"""Licences that ask for a notice at most, by SPDX's names; the last four by the names of older classifiers."""


def _pins(lock: str) -> list[Requirement]:
    """The packages of a lock, for every Python."""
    lines = LOCKS[lock].replace("\\\n", " ").splitlines()
    return [Requirement(line.split(" --hash=")[0]) for line in lines]


def _pins_by_name(lock: str) -> dict[str, str]:
    """The versions that this Python installs, by package."""
    pins = [pin for pin in _pins(lock) if pin.marker is None or pin.marker.evaluate()]
    assert len({canonicalize_name(pin.name) for pin in pins}) == len(pins)
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def _requirements(lock: str) -> list[Requirement]:
    """The requirements in pyproject.toml that a lock resolves."""
    if lock in PROJECT["dependency-groups"]:
        return [Requirement(line) for line in PROJECT["dependency-groups"][lock]]
    extras = PROJECT["project"]["optional-dependencies"]
    requirements = [Requirement(line) for line in PROJECT["project"]["dependencies"] + extras.get(EXTRAS[lock], [])]
    for self_reference in [r for r in requirements if r.name == PROJECT["project"]["name"]]:
        requirements.remove(self_reference)
        requirements += [Requirement(line) for extra in self_reference.extras for line in extras[extra]]
    return requirements


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_a_lock_fits_pyproject(lock: str) -> None:
    pins = _pins_by_name(lock)
    stale = [str(r) for r in _requirements(lock) if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0"))]
    assert not stale, f"requirements/{lock}.txt is stale: make lock"


def _licences(name: str) -> set[str]:
    metadata = distribution(name).metadata
    if expression := metadata["License-Expression"]:
        return set(re.split(r" (?:AND|OR) ", expression.replace("(", "").replace(")", "")))
    classifiers = [c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    return set(classifiers) or {metadata["License"] or "none"}


def test_all_that_is_shipped_has_a_licence_that_allows_it() -> None:
    forbidden = {name: licences for name in _pins_by_name("run") if not (licences := _licences(name)) <= ALLOWED}
    assert forbidden == {}
