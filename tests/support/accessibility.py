"""Check a page with axe-core, which finds violations of the WCAG rules."""

from collections.abc import Sequence
from typing import Any

from selenium import webdriver

from tests.support.pinned_packages import package_folder

# The package with the newest axe-core for all supported versions of Python. It is not a
# dependency: it requires Playwright, which is 50 MB, and only its file axe.min.js is read.
PACKAGE = ("axe-playwright-python", "0.1.8")
GRAVE = ("serious", "critical")
RUN = """
    const done = arguments[arguments.length - 1];
    axe.run(arguments[0], {resultTypes: ["violations"]}).then(
        result => done(result.violations),
        error => done([{id: "axe", impact: "critical", help: String(error), nodes: []}]));
"""


def grave_violations(driver: webdriver.Chrome, *, within: str = ":root") -> Sequence[str]:
    """Return the serious and critical findings in a part of the page, one text each.

    Raises PackageMissingError if axe-core cannot be installed.
    """
    script = package_folder(*PACKAGE) / "axe_playwright_python" / "axe.min.js"
    driver.execute_script(script.read_text(encoding="utf-8"))
    findings = driver.execute_async_script(RUN, within)
    return [_text(finding) for finding in findings if finding["impact"] in GRAVE]


def _text(finding: dict[str, Any]) -> str:
    places = "; ".join(str(node["html"]) for node in finding["nodes"])
    return f"{finding['id']} ({finding['impact']}): {finding['help']}: {places}"
