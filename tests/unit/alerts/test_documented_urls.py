"""Apprise understands the URLs of alerts that the pages show."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
ALERTS = DOCS / "reference" / "alerts.md"
PAGES = [ALERTS, DOCS / "how-to" / "monitor.md"]
#: A URL in quotes. An f-string has placeholders.
URL = re.compile(r'(?<!f)"((?:mailtos|slack|pagerduty)://[^"]+)"')
# Another process, as in beat: the plug-ins of Apprise import deprecated modules of Python.
SCRIPT = """
import json, sys
from celery_dynbeat.alerts.deliver import _service
services = [_service(url) for url in sys.argv[1:]]
names = ("integration_key", "apikey", "source", "region_name", "overflow_mode")
print(json.dumps([
    each if isinstance(each, str) else {name: getattr(each, name, None) for name in names}
    for each in services
]))
"""


def services_of(*urls):
    """Return the attributes of Apprise's object for each URL, or the error as a text."""
    command = [sys.executable, "-c", SCRIPT, *urls]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_url_has_a_service(page):
    urls = URL.findall(page.read_text())

    assert urls
    assert [each for each in services_of(*urls) if isinstance(each, str)] == []


def test_the_example_of_pagerduty_names_both_keys_the_source_and_the_region():
    text = ALERTS.read_text()
    (url,) = [each for each in URL.findall(text) if each.startswith("pagerduty:")]
    (region,) = re.findall(r"`(&region=\w+)`", text)
    american, european = services_of(url, f"{url}{region}")

    assert american == {
        "integration_key": "INTEGRATION_KEY",
        "apikey": "API_KEY",
        "source": "celery",
        "region_name": "us",
        "overflow_mode": "truncate",
    }
    assert european == {**american, "region_name": "eu"}
