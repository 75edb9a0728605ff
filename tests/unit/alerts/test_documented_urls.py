"""Apprise understands the URLs of alerts that the pages show."""

import json
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
ALERTS = DOCS / "how-to" / "monitor.md"
#: A URL in quotes. An f-string has placeholders.
URL = re.compile(r'(?<!f)"((?:mailtos|slack|pagerduty)://[^"]+)"')
# Another process, as in beat: the plug-ins of Apprise import deprecated modules of Python.
SCRIPT = """
import json, sys
import apprise
services = [apprise.Apprise.instantiate(url) or 'none' for url in sys.argv[1:]]
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


def test_each_url_has_a_service():
    urls = URL.findall(ALERTS.read_text())

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


#: A placeholder of an f-string that is not quoted. The upper-case names are the operator's own.
UNQUOTED = re.compile(r'f"[a-z]+s?://[^"]*\?[^"]*\{(?!quote\()[a-z_][^}]*\}')


def test_no_page_puts_an_unquoted_text_into_the_options_of_a_url():
    pages = [
        *DOCS.rglob("*.md"),
        *(DOCS.parent / "examples").rglob("*.md"),
        DOCS.parent / "README.md",
    ]

    assert [
        (page.name, found) for page in pages for found in UNQUOTED.findall(page.read_text())
    ] == []
