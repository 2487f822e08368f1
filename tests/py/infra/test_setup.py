"""The set-up script explains what it lacks, and does nothing when nothing changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.criteria import ROOT

pytestmark = pytest.mark.criterion("ac-0043")


@pytest.fixture
def setup(tmp_path):
    """Return a function that runs the script with these programs as the only ones besides the
    basic ones; programs are shell scripts by name."""
    bindir = tmp_path / "bin"
    bindir.mkdir()
    for name in ("sh", "cat", "cksum", "tr", "rm", "mkdir", "dirname"):
        found = next(p for d in ("/bin", "/usr/bin") if (p := Path(d, name)).exists())
        (bindir / name).symlink_to(found)

    def run(extra: str = "embedded", **programs: str) -> subprocess.CompletedProcess[str]:
        programs.setdefault("id", "echo 1000")
        for name, script in programs.items():
            (bindir / name).write_text(f"#!/bin/sh\n{script}\n")
            (bindir / name).chmod(0o755)
        return subprocess.run(
            [bindir / "sh", ROOT / "tools" / "setup.sh", tmp_path / "env", extra],
            env={"PATH": str(bindir), "LOG": str(tmp_path / "log")},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    return run


# A Python whose venv works: it makes an environment with a Python that only writes down its calls.
MAKES_VENV = """
case "$*" in
    "-m venv "*)
        mkdir -p "$3/bin"
        printf '#!%s/sh\\necho "$@" >>"$LOG"\\n' "${0%/*}" >"$3/bin/python"
        chmod +x "$3/bin/python" ;;
esac
"""


@pytest.mark.parametrize("arguments", [[], ["env"], ["env", "dev", "more"]])
def test_other_arguments_are_told_the_usage(tmp_path, arguments):
    answer = subprocess.run(
        ["sh", ROOT / "tools" / "setup.sh", *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage: setup.sh VENV EXTRA")
    assert answer.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_old_python_is_named(setup):
    answer = setup(python3="exit 1")
    assert (answer.returncode, "Python 3.11" in answer.stderr) == (1, True)


def test_without_venv_and_virtualenv_a_normal_user_is_told_what_to_install(setup):
    answer = setup(python3='[ "$1" = -c ]')
    assert (answer.returncode, "python3-venv" in answer.stderr) == (1, True)


def test_without_venv_virtualenv_is_used(setup, tmp_path):
    works = f'case "$*" in "-m virtualenv --quiet"*) shift ;; esac\n{MAKES_VENV}'
    works = works.replace('"-m venv "*', '"virtualenv --quiet "*')
    setup(
        chmod='/bin/chmod "$@"',
        python3=f'case "$*" in "-m venv"*) exit 1 ;; esac\n{works}',
    )
    assert (tmp_path / "env" / "bin" / "python").exists()


def test_it_installs_once(setup, tmp_path):
    for _ in range(2):
        answer = setup(chmod='/bin/chmod "$@"', python3=MAKES_VENV)
        assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "log").read_text().count("pip install") == 1


def test_the_larger_environment_serves_for_the_smaller_one(setup, tmp_path):
    for extra in ("dev", "embedded"):
        setup(extra, chmod='/bin/chmod "$@"', python3=MAKES_VENV)
    assert (tmp_path / "log").read_text().count("pip install") == 1
