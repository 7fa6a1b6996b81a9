"""requirements.lock installs on every Python that the project names."""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def test_every_locked_package_takes_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (oldest,) = [Version(each.version) for each in SpecifierSet(project["requires-python"])]
    locked = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").split())
    looked_at, refusing = 0, {}
    for name, version in locked.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an environment of the user's own
        if found.version.split("+")[0] == version:
            looked_at += 1
            wanted = found.metadata.get("Requires-Python")
            if wanted and oldest not in SpecifierSet(wanted):
                refusing[name] = wanted
    assert looked_at > 100 and not refusing
