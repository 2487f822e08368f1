"""Dashboard and alert rules name only metrics and labels that exist."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml

from tools import cli_docs
from trex_client.model import BOXES, REASONS, InstanceStats
from trex_client.telemetry import COUNTERS, PARKED_STATES, Alert, Telemetry

pytestmark = pytest.mark.criterion("ac-0051")

ROOT = Path(__file__).parents[3]
OPS = ROOT / "ops"
COMMANDS = dict(cli_docs.commands())
GROUPS = [[name.split()[0]] for name in COMMANDS]
_WORDS = re.compile(r"trex_[a-z_]+")
_LABELS = {"trex_instance", "box", "topic", "reason", "state", "alert", "le"}
_OF_A_BOX = "due|oldest_due_seconds|parked|blocked_keys|connected"
_OF_THE_DATABASE = f"{_OF_A_BOX}|pending_cash_entries"


STATS = {
    box: InstanceStats(
        box, ready=1, due=1, deferred=1, waiting=1, leased=1, lease_ended=1, dead_letter=1,
        permanent=1, conflict=1, unknown=1, abandoned=1, blocked_keys=1, oldest_due_at=None,
        oldest_parked_at=None, capped=False,
    )
    for box in BOXES
}  # fmt: skip


def metrics():
    telemetry = Telemetry("inst", stream=io.StringIO())
    for name in COUNTERS:
        telemetry.count(name, None)
    names = set()
    for metric in telemetry.registry.collect():
        if metric.type == "counter":
            names.add(f"{metric.name}_total")
        elif metric.type == "histogram":
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(metric.name)
    return names


def daemon(box):
    """The telemetry of an instance's daemon that has said all it can about its box."""
    telemetry = Telemetry("inst", stream=io.StringIO())
    telemetry.is_connected(box, connected=True)
    telemetry.stats(STATS[box], 1, 1.0)
    return telemetry


def series(telemetry):
    return {
        (sample.name, *sorted(sample.labels.items()))
        for metric in telemetry.registry.collect()
        for sample in metric.samples
        if re.fullmatch(f"trex_({_OF_A_BOX})", sample.name)
    }


def rules():
    (group,) = yaml.safe_load((OPS / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def dashboard_expressions():
    board = json.loads((OPS / "grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [item["query"] for item in board["templating"]["list"]]
    return found


def named(expression):
    alternatives = re.search(r"trex_\(([a-z_|]+)\)(_[a-z]+)", expression)
    if alternatives:
        expression = " ".join(
            f"trex_{name}{alternatives[2]}" for name in alternatives[1].split("|")
        )
    return set(_WORDS.findall(expression)) - {"trex_instance"}


def expressions():
    return [*(rule["expr"] for rule in rules()), *dashboard_expressions()]


def commands_in(text):
    """Commands named in backticks or at the start of a code block's line, as far as words go."""
    found = re.findall(r"`trex ((?:[a-z][a-z-]*[ `\n])+)", text)
    blocks = "\n".join(re.findall(r"```.*?\n(.*?)```", text, re.DOTALL))
    found += re.findall(r"^(?:\$ )?trex ((?:[a-z][a-z-]*(?:[ \n]|$))+)", blocks, re.MULTILINE)
    return [name.replace("`", " ").split() for name in found]


def is_command(words):
    return " ".join(words[:2]) in COMMANDS or words[0] in COMMANDS or words in GROUPS


def test_the_dashboard_names_only_metrics_that_exist():
    used = set().union(*map(named, dashboard_expressions()))
    assert used <= metrics()
    # And every counter, gauge and histogram is shown.
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in used}
    there = {re.sub("_(bucket|sum|count)$", "", name) for name in metrics()}
    assert there - shown == set()


def test_the_panels_do_not_overlap():
    board = json.loads((OPS / "grafana.json").read_text())
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_rules_name_only_metrics_and_labels_that_exist():
    names = metrics()
    for rule in rules():
        assert named(rule["expr"]) <= names, rule["alert"]
        for label, value in re.findall(r'(\w+)=~?"([^"]+)"', rule["expr"]):
            known = {
                "job": {"trex"},
                "state": set(PARKED_STATES),
                "alert": {alert.value for alert in Alert},
                "reason": REASONS,
            }[label]
            assert set(value.split("|")) <= known, rule["alert"]


def test_labels_are_ours_and_none_is_prometheuss():
    telemetry = daemon("outbox")
    for name in COUNTERS:
        telemetry.count(name, None)
    labels = {
        label
        for metric in telemetry.registry.collect()
        for sample in metric.samples
        for label in sample.labels
    }
    assert labels <= _LABELS
    for expression in expressions():
        for inside in re.findall(r"by \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", inside)) <= _LABELS, expression
        for inside in re.findall(r"\{([^}]*)\}", expression):
            names = set(re.findall(r'(\w+)[=!]~?"', inside))
            assert names <= _LABELS | {"job", "__name__"}, expression


def test_what_every_daemon_reads_from_the_database_is_not_summed():
    for expression in expressions():
        summed = rf"sum(?: by \([^)]*\))? ?\(trex_(?:{_OF_THE_DATABASE})\b"
        assert not re.search(summed, expression), expression


def test_daemons_of_two_boxes_do_not_hide_each_others_numbers():
    outbox, inbox = series(daemon("outbox")), series(daemon("inbox"))
    assert {name for name, *_ in outbox} == {f"trex_{name}" for name in _OF_A_BOX.split("|")}
    assert len(outbox) == len(inbox) > len(PARKED_STATES)
    assert not outbox & inbox
    found = 0
    for expression in expressions():
        if expression.startswith("label_values("):
            continue
        taken = re.findall(rf"trex_(?:{_OF_A_BOX})\b", expression)
        grouped = rf"(?:max|min) by \(trex_instance, box(?:, state)?\) \(trex_(?:{_OF_A_BOX})\b"
        assert len(taken) == len(re.findall(grouped, expression)), expression
        found += len(taken)
    assert found >= 14


def test_who_works_on_no_box_says_nothing_about_one():
    assert series(Telemetry("inst", stream=io.StringIO())) == set()


def test_an_increase_is_seen_from_the_first_time():
    telemetry = Telemetry("inst", stream=io.StringIO())
    there = telemetry.render().decode()
    for rule in rules():
        for name, labels in re.findall(r"increase\((\w+)(?:\{(.*?)\})?\[", rule["expr"]):
            born = [line for line in there.splitlines() if re.match(rf"{name}[ {{]", line)]
            assert any(labels in line and line.endswith(" 0.0") for line in born), rule["alert"]


def test_every_command_that_is_named_exists():
    texts = {path: path.read_text() for path in sorted(ROOT.glob("ops/*"))}
    texts |= {path: path.read_text() for path in sorted(ROOT.glob("docs/**/*.md"))}
    texts |= {path: path.read_text() for path in ROOT.glob("*.md")}
    # In messages and hints: `run trex migrate`, `see trex doctor`.
    said = re.compile(r"(?:run|see|findings:) (trex [a-z]+(?: [a-z-]+)?)")
    for path in [*ROOT.glob("trex_client/**/*.py"), *ROOT.glob("sql/**/*.sql")]:
        texts[path] = "\n".join(f"`{name}`" for name in said.findall(path.read_text()))
    named_in = {path: commands_in(text) for path, text in texts.items()}
    assert sum(map(len, named_in.values())) > 50
    for path, found in named_in.items():
        for words in found:
            assert is_command(words), f"{path}: trex {' '.join(words)}"
    for old in ("`trex list-parked` names", "`trex bind` the role"):
        assert not is_command(commands_in(old)[0])


def test_every_rule_says_what_to_do():
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "action"}
        assert re.fullmatch("Trex[A-Za-z]+", rule["alert"])
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_a_metric_that_does_not_exist_would_be_found():
    assert not named("rate(trex_delivery_total[5m])") <= metrics()
