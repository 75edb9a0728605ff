"""examples/kubernetes and examples/systemd: valid files whose commands and names exist."""

import configparser
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.celery_commands import unknown_words
from tests.support.versions import needs_celery

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
PAGES = Path(__file__).parents[2] / "docs" / "how-to"
#: A command of Celery in a script of a probe.
IN_SCRIPT = re.compile(r"celery -A proj ([^|]+)")


def documents():
    return [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())]


def pod_of(document):
    """Return the specification of the pods of a document, None if it has none."""
    spec = document.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return spec.get("template", {}).get("spec")


def containers():
    return {
        document["metadata"]["name"]: container
        for document in documents()
        if pod_of(document)
        for container in pod_of(document)["containers"]
    }


def probes(container):
    return {key: value for key, value in container.items() if key.endswith("Probe")}


def command_lines():
    lines = {name: container["command"] for name, container in containers().items()}
    for name, container in containers().items():
        for probe, given in probes(container).items():
            script = given.get("exec", {}).get("command", [""])[-1]
            for index, words in enumerate(IN_SCRIPT.findall(script)):
                lines[f"{name} {probe} {index}"] = ["celery", "-A", "proj", *shlex.split(words)]
    for unit in UNITS:
        program, *words = shlex.split(read(unit)["Service"]["ExecStart"])
        lines[unit.name] = [Path(program).name, *words]
    return lines


def read(unit):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(unit)
    return parser


COMMANDS = command_lines()


@needs_celery(5, 7, "a name and remote control of beat")
@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_each_command_exists_with_its_options(line):
    assert line[:3] == ["celery", "-A", "proj"]
    assert unknown_words(line[3:]) == []


def test_each_container_reads_the_secret_that_the_application_needs(monkeypatch):
    (secret,) = [each for each in documents() if each["kind"] == "Secret"]
    for name, container in containers().items():
        sources = [each["secretRef"]["name"] for each in container["envFrom"]]
        assert (name, sources) == (name, [secret["metadata"]["name"]])
    for variable, value in secret["stringData"].items():
        monkeypatch.setenv(variable, value)
    monkeypatch.syspath_prepend(EXAMPLES / "kubernetes")
    monkeypatch.delitem(sys.modules, "proj", raising=False)

    proj = importlib.import_module("proj")
    sys.modules.pop("proj")

    settings = proj.dynbeat.context.settings
    beat = containers()["proj-beat"]
    port, address = settings.metrics
    assert beat["ports"] == [{"name": "metrics", "containerPort": port}]
    assert address == "0.0.0.0"  # noqa: S104 - the kubelet probes the port
    (beats,) = [each for each in documents() if each["metadata"]["name"] == "proj-beat"][:1]
    assert beats["spec"]["replicas"] == settings.expected_nodes["beat"]
    proj.dynbeat.context.database.dispose()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit, tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"/srv/proj/.venv/bin/celery", str(sys.executable), unit.read_text())
    copy = tmp_path / unit.name.replace("@.", "@1.")
    copy.write_text(text)

    ended = subprocess.run(
        [program, "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )

    found = [line for line in ended.stderr.splitlines() if unit.name.split(".")[0][:8] in line]
    assert found == []
