"""A user's own adapter model and processor are simulated, and their faults are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trex_client.cli import make_app
from trex_client.simulate import PolicyNotFound, Settings, load_policy, run

HERE = "tests.py.simulation.policies"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", [f"{HERE}:Plain", f"{HERE}:made"])
def test_a_good_policy_keeps_every_invariant(name: str) -> None:
    outcome = run(Settings(histories=200, policy=name, jobs=1))
    assert outcome.failure is None
    assert outcome.counts["delivered"] > 500
    assert outcome.counts["pauses"] == 0


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("TimeoutIsFailure", "I14"),
        ("TimeoutIsSuccess", "I3"),
        ("Blind", "I14"),
        ("NewKey", "I3"),
        ("OtherBody", "I14"),
        ("Sleeps", "policy"),
    ],
)
def test_a_bad_policy_is_found(name: str, invariant: str) -> None:
    outcome = run(Settings(histories=2000, policy=f"{HERE}:{name}", jobs=1))
    assert outcome.failure is not None
    assert outcome.failure.invariant == invariant


@pytest.mark.parametrize(
    "name", ["nowhere.at.all:Policy", f"{HERE}:Missing", f"{HERE}:NOT_A_POLICY", HERE, "", ":"]
)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(PolicyNotFound):
        load_policy(name)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from trex_client.cli import main; main()", "simulate", *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=250,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.mark.criterion("ac-0040")
def test_the_command_prints_counts_and_a_result() -> None:
    done = simulate("--histories", "200", "--jobs", "1", "--seed", "9")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[-1]["record"] == "result"
    assert (rows[-1]["good"], rows[-1]["histories"], rows[-1]["steps"]) == (True, 200, 10000)
    counts = {row["name"]: row["count"] for row in rows if row["record"] == "count"}
    assert counts["claims"] > 500


@pytest.mark.criterion("ac-0040")
def test_the_command_shortens_and_says_how_to_play_it_again() -> None:
    bad = f"{HERE}:TimeoutIsFailure"
    done = simulate("--histories", "2000", "--jobs", "2", "--shrink", "--policy", bad)
    assert done.returncode == 12, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    (failure,) = [row for row in rows if row["record"] == "failure"]
    assert failure["invariant"] == "I14"
    assert len(failure["steps"]) < 12
    again = simulate(*failure["replay"].split()[2:])
    assert again.returncode == 12
    assert again.stdout.splitlines() == failure["trace"]


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize(
    "arguments",
    [["--histories", "0"], ["--only", "x"], ["--only", "50"], ["--policy", "no:thing"],
     ["--steps", "0"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(make_app(), ["simulate", *arguments]).exit_code == 2
