"""Dashboard and alert rules name only metrics and labels that exist."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml

from trex_client.model import REASONS
from trex_client.telemetry import COUNTERS, PARKED_STATES, Alert, Telemetry

pytestmark = pytest.mark.criterion("ac-0051")

OPS = Path(__file__).parents[3] / "ops"
_WORDS = re.compile(r"trex_[a-z_]+")


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
    return set(_WORDS.findall(expression))


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
                "state": set(PARKED_STATES),
                "alert": {alert.value for alert in Alert},
                "reason": REASONS,
            }[label]
            assert set(value.split("|")) <= known, rule["alert"]


def test_every_rule_says_what_to_do():
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "action"}
        assert re.fullmatch("Trex[A-Za-z]+", rule["alert"])
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_a_metric_that_does_not_exist_would_be_found():
    assert not named("rate(trex_delivery_total[5m])") <= metrics()
