"""One line of figures for each fault test, shown together at the end of the run.

A line travels with the report of its test, which pytest-xdist brings to the process that prints.
"""

import pytest

SUMMARY_PROPERTY = "fault_summary"


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines in the order of the alphabet."""
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
