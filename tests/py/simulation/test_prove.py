"""The long proofs: what they read from harnesses, and the report that they write."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tools import prove

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("harness", prove.HARNESSES, ids=lambda harness: harness.name)
def test_the_tests_of_a_harness_exist(harness: prove.Harness) -> None:
    for test in harness.tests:
        path, _, function = test.partition("::")
        assert (prove.ROOT / path).exists()
        if function:
            assert f"def {function}(" in (prove.ROOT / path).read_text(encoding="utf-8")
    for name in {*harness.full, *harness.quick, harness.seed} - {""}:
        found = [
            path
            for path in (prove.ROOT / "tests").rglob("*.py")
            if f'"{name}"' in path.read_text(encoding="utf-8")
            or f'"TREX_{name}"' in path.read_text(encoding="utf-8")
        ]
        assert found, f"nobody reads TREX_{name}"


def test_counts_are_read_from_json_and_from_dicts() -> None:
    counts = prove.read_counts(
        ["seed 1: {'steps': 5, 'claims': 2}", "noise {", "{'a': 'b'}", "kills 3, {'steps': 1} y",
         '{"harness": "h", "counts": {"steps": 10}}'],
        ['{"harness": "h", "counts": {"steps": 10}, "seconds": 1}'],
    )  # fmt: skip
    assert counts == {"steps": 16, "claims": 2, "kills": 3}


def test_the_report_tells_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "OUT", tmp_path)
    one, two = prove.HARNESSES[0], prove.HARNESSES[3]
    text = prove.report(
        [
            prove.Result(one, True, 12.5, Counter(histories=1000, claims=7)),
            prove.Result(two, False, 3.0, Counter(), 2, 1, ["FAILED tests/x.py::test_y"]),
        ],
        command="make prove ARGS=--quick",
        seconds=90.0,
        seed=4711,
        commit="0123abc-dirty",
    )
    assert "NOT every harness passed" in text
    assert "| 1,000 histories |" in text
    assert "| **failed** |" in text
    assert "FAILED tests/x.py::test_y" in text
    assert "claims 7" in text
    assert "`make prove ARGS=--quick`" in text
    assert "seed: 4711" in text
    assert "commit 0123abc-dirty," in text
    for name in ("size", "time", "events"):
        svg = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(svg).tag.endswith("svg")  # our own text
        assert f"{name}.svg" in text


def test_the_docs_speak_of_every_harness() -> None:
    page = (prove.ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    table = page.partition("## The harnesses")[2].partition("## ")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)[1:] == [
        one.name for one in prove.HARNESSES
    ]


def test_a_harness_runs_and_a_failing_one_is_told(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text("def test_a():\n    print('x', {'n': 3})\n\ndef test_b():\n    assert 0\n")
    harness = prove.Harness("x", "x", "n", (str(test),))
    result = prove.pytest(harness, {}, 1, lambda _: None)
    assert not result.good
    assert result.counts["n"] == 3
    assert result.tests == 1
    assert len(result.failures) == 1
    assert result.verdict == "failed"
    assert not prove.pytest(prove.Harness("y", "y", "n", ("nowhere.py",)), {}, 1, print).good


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        prove.main(["--only", "nothing"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "arguments",
    [["--scale", scale] for scale in ("nan", "inf", "0", "-1", "1e308", "much")]
    + [["--jobs", jobs] for jobs in ("-3", "0", "1.5", "all")],
    ids=" ".join,
)
def test_sizes_that_are_none_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        prove.main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: a " in capsys.readouterr().err


PASSES = "def test_a():\n    print({'n': 3})\n"
SKIPS = "import pytest\n\ndef test_s():\n    pytest.skip('no server')\n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (PASSES, "passed"),
        (SKIPS, "skipped 1 of 1"),
        (PASSES + SKIPS, "skipped 1 of 2"),
        (PASSES + SKIPS + "\ndef test_f():\n    assert 0\n", "failed"),
        ("def test_a():\n    print({'n': 0, 'm': 3})\n", "failed"),
        ("def test_a():\n    pass\n", "failed"),
        ("", "failed"),
    ],
)
def test_a_harness_that_shows_nothing_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, verdict: str
) -> None:
    monkeypatch.setattr(prove, "OUT", tmp_path)
    test = tmp_path / "test_x.py"
    test.write_text(text)
    monkeypatch.setattr(prove, "HARNESSES", (prove.Harness("x", "x", "n", (str(test),)),))
    good = verdict == "passed"
    assert prove.main(["--jobs", "1"]) == (0 if good else 1)
    written = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert ("**Every harness passed.**" in written) is good
    assert written.count("| passed |" if good else f"| **{verdict}** |") == 1


HOLDS = """
import fcntl, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", file=file, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("only", [False, True], ids=["all", "only"])
def test_an_interrupted_run_ends_all_and_keeps_what_it_has(tmp_path: Path, only: bool) -> None:
    """The process that ignores the interrupt and holds the lock is a grandchild."""
    lock = tmp_path / "lock"
    first, second = tmp_path / "test_a.py", tmp_path / "test_b.py"
    first.write_text(PASSES)
    command = [sys.executable, "-c", HOLDS, str(lock)]
    second.write_text(
        f"import subprocess\n\ndef test_b():\n    subprocess.Popen({command!r}).wait()\n"
    )
    script = f"""
import sys, pathlib
from tools import prove
prove.OUT = pathlib.Path({str(tmp_path)!r})
prove.HARNESSES = (
    prove.Harness("one", "x", "n", ({str(first)!r},)),
    prove.Harness("two", "x", "n", ({str(second)!r},)),
)
sys.exit(prove.main(["--jobs", "1"] + {["--only", "one", "two"] if only else []}))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=prove.ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not (lock.exists() and lock.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr.count("\n") == 1
    assert "interrupted: 1 of 2 harnesses ran" in stderr
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    report = tmp_path / "report.md"
    assert report.exists() is not only
    if not only:
        text = report.read_text(encoding="utf-8")
        assert "**NOT complete: 1 of 2 harnesses haven't run.**" in text
        assert "| one | x | 3 n | 1 |" in text


@pytest.mark.criterion("ac-0063")
def test_the_published_report_is_of_every_harness_and_all_passed() -> None:
    text = (prove.OUT / "report.md").read_text(encoding="utf-8")
    assert "**Every harness passed.**" in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.endswith("| passed |")]
    assert rows == [one.name for one in prove.HARNESSES]
