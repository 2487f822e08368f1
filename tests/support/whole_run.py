"""What a run of all tests must show, beyond that each test passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import canaries
from tests.support.criteria import cases, criteria, is_whole_suite, named
from tools import field_cases

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def label(items: Iterable[pytest.Item]) -> None:
    """Write the criteria and field cases that each test names into its reports, which xdist carries
    over."""
    for item in items:
        item.user_properties.extend(("criterion", name) for name in sorted(named(item)))
        item.user_properties.extend(("case", name) for name in sorted(cases(item)))


class WholeRun:
    """A pytest plugin: a complete run fails unless it verified all criteria on enough versions.

    Every active criterion and every field case needs a passing test, no test names an unknown one,
    and tests ran on `versions_needed` PostgreSQL versions. A run of selected tests is not judged.
    Any run fails when the captured output of a test holds a canary.
    """

    def __init__(self, config: pytest.Config, root: Path, *, versions_needed: int) -> None:
        self.root = root
        self.judged = is_whole_suite(config, root) and not config.option.collectonly
        self.versions_needed = versions_needed
        self.versions: set[int] = set()
        self.named: set[str] = set()
        self.verified: set[str] = set()
        self.cases: set[str] = set()
        self.shown: set[str] = set()
        self.complaints: list[str] = []
        self.leaks: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if any(canaries.holds(text) for _, text in report.sections):
            self.leaks.add(report.nodeid)
        properties = dict.fromkeys(report.user_properties)
        ids = {str(value) for name, value in properties if name == "criterion"}
        shown = {str(value) for name, value in properties if name == "case"}
        self.named |= ids
        self.cases |= shown
        if report.when == "call" and report.passed:
            self.verified |= ids
            self.shown |= shown
            self.versions |= {
                value
                for name, value in properties
                if name == "postgresql" and isinstance(value, int)
            }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.complaints = [f"output with a canary: {name}" for name in sorted(self.leaks)]
        if self.judged:
            self._judge()
        if self.complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge(self) -> None:
        active = criteria(self.root, "active")
        known = set(field_cases.ids(self.root))
        self.complaints += [
            *(f"no test of {name} passed" for name in sorted(active - self.verified)),
            *(f"no such criterion: {name}" for name in sorted(self.named - criteria(self.root))),
            *(f"no test of case {name} passed" for name in sorted(known - self.shown)),
            *(f"no such case: {name}" for name in sorted(self.cases - known)),
        ]
        if len(self.versions) < self.versions_needed:
            self.complaints.append(f"fewer than {self.versions_needed} PostgreSQL versions ran")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        ran = ", ".join(str(version) for version in sorted(self.versions)) or "none"
        terminalreporter.write_line(f"PostgreSQL versions that tests ran on: {ran}")
        for complaint in self.complaints:
            terminalreporter.write_line(f"the run as a whole FAILED: {complaint}", red=True)
