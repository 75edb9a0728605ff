"""Print a summary line of each fault test at the end of the test run.

A line is a property of the test's report, which pytest-xdist sends to the main process.
"""

import pytest

SUMMARY_PROPERTY = "fault_summary"


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines in alphabetical order."""
    lines = {
        line
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, line in report.user_properties
        if name == SUMMARY_PROPERTY
    }
    if lines:
        terminalreporter.section("faults")
        for line in sorted(map(str, lines)):
            terminalreporter.line(line)
