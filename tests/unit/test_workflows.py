"""The workflows of GitHub pin their actions, and a release publishes what it tried."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: The digest of a commit. Dependabot updates the version behind it.
PINNED = re.compile(r"^ *-? *uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
BY_NAME = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)


def jobs(file):
    return yaml.safe_load(file.read_text())["jobs"]


def release():
    return jobs(next(file for file in WORKFLOWS if file.name == "release.yml"))


@BY_NAME
def test_each_action_is_pinned_by_its_digest(file):
    lines = [line for line in file.read_text().splitlines() if "uses:" in line]

    assert lines
    assert [line for line in lines if not PINNED.match(line)] == []


@BY_NAME
def test_only_a_job_may_write(file):
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}


def test_only_the_job_that_publishes_has_an_identity_and_it_has_no_other_right():
    granted = {name: job.get("permissions", {}) for name, job in release().items()}

    assert granted == {
        "build": {},
        "lowest": {},
        "publish": {"id-token": "write", "attestations": "write"},
        "release": {"contents": "write"},
    }


def test_the_sdist_contains_each_file_of_the_repository():
    """Hatch adds .gitignore and pyproject.toml to the sdist."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = {each.removeprefix("/") for each in settings["targets"]["sdist"]["include"]}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a clone: the sdist has no history")

    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert top - included == {".gitignore", "pyproject.toml"}
