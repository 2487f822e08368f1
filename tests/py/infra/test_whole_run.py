"""A run of all tests fails when a criterion has no passing test or too few servers ran."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.canaries import CANARY
from tests.support.criteria import ROOT, criteria, is_whole_suite

pytestmark = pytest.mark.criterion("ac-0044")

CONFTEST = """
from pathlib import Path
from tests.support.whole_run import WholeRun, label

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        plugin = WholeRun(config, Path(__file__).parent, versions_needed=int({versions}))
        config.pluginmanager.register(plugin)

def pytest_collection_modifyitems(items):
    label(items)
"""
TESTS = """
import pytest

@pytest.mark.criterion("ac-0001")
def test_first():
    pass

@pytest.mark.criterion("ac-0002")
def test_second(request):
    request.node.user_properties.append(("postgresql", 18))

def test_third(request):
    request.node.user_properties.append(("postgresql", 15))
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that runs pytest on a small project and returns exit code and output."""
    folder = tmp_path / ".proofline" / "criteria"
    folder.mkdir(parents=True)
    for name, status in (("ac-0001", "active"), ("ac-0002", "active"), ("ac-0003", "draft")):
        (folder / f"{name}.md").write_text(f"---\nid: {name}\nstatus: {status}\n---\n")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    criterion(id): one\n    case(id): one\nfilterwarnings = ignore\n"
    )

    def run(tests: str = TESTS, *arguments: str, versions: int = 2) -> tuple[int, str]:
        (tmp_path / "conftest.py").write_text(CONFTEST.format(versions=versions))
        (tmp_path / "test_it.py").write_text(tests)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        answer = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.returncode, answer.stdout

    return run


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_a_complete_run_passes(project, arguments):
    code, output = project(TESTS, *arguments)
    assert (code, "ran on: 15, 18" in output) == (0, True), output


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_it_fails_when_no_test_names_a_criterion(project, arguments):
    code, output = project(TESTS.replace("ac-0002", "ac-0001"), *arguments)
    assert (code, "no test of ac-0002 passed" in output) == (1, True), output


def test_it_fails_when_the_only_test_of_a_criterion_is_skipped(project):
    skipped = TESTS.replace("def test_first():", "@pytest.mark.skip\ndef test_first():")
    code, output = project(skipped)
    assert (code, "no test of ac-0001 passed" in output) == (1, True), output


def test_it_fails_when_a_test_names_an_unknown_criterion(project):
    more = TESTS + '\n@pytest.mark.criterion("ac-0009")\ndef test_more(): pass\n'
    code, output = project(more)
    assert (code, "no such criterion: ac-0009" in output) == (1, True), output


@pytest.mark.criterion("ac-0066")
def test_it_fails_when_a_field_case_has_no_passing_test(project, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "field-cases.md").write_text("| A1 | x | y | - |\n| B2 | x | y | - |\n")
    marked = TESTS.replace("def test_third", '@pytest.mark.case("B2")\ndef test_third')
    code, output = project(marked.replace("test_first", "test_a1_first"))
    assert code == 0, output
    code, output = project(TESTS.replace("test_first", "test_c3_first"))
    assert code == 1, output
    for complaint in ("no test of case A1 passed", "of case B2 passed", "no such case: C3"):
        assert complaint in output


@pytest.mark.criterion("ac-0052")
@pytest.mark.parametrize(
    ("stream", "arguments"), [("stdout", ["-k", "third"]), ("stderr", ["-n", "2"])]
)
def test_it_fails_when_a_test_prints_a_canary(project, stream, arguments):
    """Also when only some tests run; the name of the test is told, not what it printed."""
    leaking = TESTS.replace(
        "def test_third(request):",
        f"def test_third(request):\n    print({CANARY!r}, file=sys.{stream})",
    )
    code, output = project("import sys\n" + leaking, *arguments)
    assert (code, "output with a canary: test_it.py::test_third" in output) == (1, True), output
    assert CANARY not in output


def test_it_fails_when_too_few_versions_ran(project):
    code, output = project(versions=3)
    assert (code, "fewer than 3 PostgreSQL versions ran" in output) == (1, True), output


def test_a_selection_is_not_judged(project):
    assert project(TESTS, "-k", "third")[0] == 0
    assert project(TESTS, "test_it.py", versions=3)[0] == 0


def test_the_projects_criteria_are_read():
    active = criteria(ROOT, "active")
    assert "ac-0029" in active
    assert active <= criteria(ROOT)


def test_every_active_criterion_is_named_here(request):
    if not is_whole_suite(request.config, ROOT):
        pytest.skip("only some tests were collected")
    names = {
        str(name)
        for item in request.session.items
        for mark in item.iter_markers("criterion")
        for name in mark.args
    }
    assert criteria(ROOT, "active") - names == set()
