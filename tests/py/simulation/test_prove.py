"""The long proofs: what they read from harnesses, and the report that they write."""

from __future__ import annotations

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
    )
    assert "NOT every harness passed" in text
    assert "| 1,000 histories |" in text
    assert "| **failed** |" in text
    assert "FAILED tests/x.py::test_y" in text
    assert "claims 7" in text
    assert "`make prove ARGS=--quick`" in text
    assert "seed: 4711" in text
    for name in ("size", "time", "events"):
        svg = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(svg).tag.endswith("svg")  # our own text
        assert f"{name}.svg" in text


def test_a_harness_runs_and_a_failing_one_is_told(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text("def test_a():\n    print('x', {'n': 3})\n\ndef test_b():\n    assert 0\n")
    harness = prove.Harness("x", "x", "n", (str(test),))
    result = prove.pytest(harness, {}, 1, lambda _: None)
    assert not result.good
    assert result.counts["n"] == 3
    assert result.tests == 1
    assert len(result.failures) == 1
    assert not prove.pytest(prove.Harness("y", "y", "n", ("nowhere.py",)), {}, 1, print).good


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        prove.main(["--only", "nothing"])
    assert ended.value.code == 2


@pytest.mark.criterion("ac-0063")
def test_the_published_report_is_of_every_harness_and_all_passed() -> None:
    text = (prove.OUT / "report.md").read_text(encoding="utf-8")
    assert "**Every harness passed.**" in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.endswith("| passed |")]
    assert rows == [one.name for one in prove.HARNESSES]
