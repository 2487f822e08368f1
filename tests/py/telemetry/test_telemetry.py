"""The one door: what gets through, what doesn't, and that it stays bounded."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys

import pytest

from trex_client.model import REASONS, Report
from trex_client.telemetry import (
    COUNTERS,
    Alert,
    Event,
    Telemetry,
    correlation_identity,
    webhook_poster,
)
from trex_client.testing import make_claim

CANARY = "canary-4111111111111111"


class Text(str):
    """Says whatever a check wants to hear."""

    def __hash__(self):
        return hash("ok")

    def __eq__(self, other):
        return True


class Liar(int):
    def __repr__(self):
        return f'"{CANARY}"'

    __str__ = __repr__


class Raises:
    def __repr__(self):
        raise RuntimeError(CANARY)

    __str__ = __repr__


@pytest.fixture
def log():
    return io.StringIO()


def door(log, **options):
    return Telemetry("inst", topics=["pay.out"], level="debug", stream=log, **options)


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


def dropped(telemetry):
    return telemetry.registry.get_sample_value("trex_telemetry_dropped_total")


def test_what_is_known_gets_through(log):
    telemetry = door(log)
    telemetry.event(
        Event.RETRIED, "warning", result="retry", reason="timeout", topic="pay.out",
        correlation="0192f0c1-2b5e-7c3a-9d1e-aabbccddeeff", message_id=7, fence=9, seconds=0.25,
    )  # fmt: skip
    (line,) = lines(log)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "retried",
        "level": "warning",
        "instance": "inst",
        "result": "retry",
        "reason": "timeout",
        "topic": "pay.out",
        "correlation": "0192f0c1-2b5e-7c3a-9d1e-aabbccddeeff",
        "message_id": 7,
        "fence": 9,
        "seconds": 0.25,
    }
    assert dropped(telemetry) == 0


@pytest.mark.criterion("ac-0052")
@pytest.mark.parametrize(
    "fields",
    [
        {"password": CANARY},
        {"message": CANARY},
        {"exc_info": ValueError(CANARY)},
        {"reason": CANARY},
        {"reason": Text(CANARY)},
        {"reason": ["timeout", CANARY]},
        {"result": Text(CANARY)},
        {"result": {"a": CANARY}},
        {"message_id": CANARY},
        {"message_id": Liar(3)},
        {"message_id": True},
        {"message_id": 10**40},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": CANARY.encode()},
        {"correlation": {"a": CANARY}},
        {"correlation": Raises()},
        {"reason": Raises()},
        {CANARY: 1},
        {"level": CANARY},
        {"event": CANARY},
    ],
    ids=lambda f: repr(sorted(f))[:40],
)
def test_what_is_not_known_is_dropped_and_counted(log, fields):
    telemetry = door(log)
    telemetry._write(Event.UNKNOWN, "info", fields)
    assert CANARY not in log.getvalue()
    assert len(lines(log)) == 1
    assert dropped(telemetry) == 1
    assert CANARY not in telemetry.render().decode()


@pytest.mark.criterion("ac-0052")
@pytest.mark.parametrize(
    "field", ["reason", "result", "topic", "correlation", "seconds", "anything"]
)
@pytest.mark.parametrize(
    "value",
    [
        f"aUtHoRiZaTiOn: Bearer {CANARY}",
        {"apiKey": CANARY},
        {"PASSWORD": 4111111111111111},
        4111111111111111,
        {"a": f'{{"token": "{CANARY}"}}'},
        f"Cookie: a=1; b={CANARY}",
        f'x-api-key: "decoy",{CANARY}',
        [["x-api-key", CANARY]],
        f"https://user:{CANARY}@ledger.example/?api_key={CANARY}",
        CANARY.encode(),
        f"timeout {CANARY}",
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_m3_no_spelling_of_a_secret_gets_through(log, field, value):
    """Nothing is filtered: what isn't on the list isn't said. The rest of the line stays."""
    if (field, value) == ("seconds", 4111111111111111):
        value = [value]  # a number of seconds is what it is
    telemetry = door(log)
    telemetry._write(Event.RETRIED, "warning", {field: value, "message_id": 7})
    (line,) = lines(log)
    assert (line["event"], line["level"], line["message_id"]) == ("retried", "warning", 7)
    for shown in (log.getvalue(), telemetry.render().decode()):
        assert CANARY not in shown
        assert "4111111111111111" not in shown


def test_topics_that_are_not_registered_have_no_name(log):
    telemetry = door(log)
    for topic in (CANARY, "pay.out2", "", None, 7, Text("pay.out")):
        telemetry._write(Event.CLAIMED, "info", {"topic": topic})
    assert {line["topic"] for line in lines(log)} == {"other"}
    telemetry.count("claimed", make_claim(topic="secret.topic"))
    assert "secret.topic" not in telemetry.render().decode()


@pytest.mark.parametrize("key", ["", None, "UPPER", "a b", CANARY + " ", 7, Text("inst")])
def test_a_malformed_instance_key_is_never_shown(log, key):
    telemetry = Telemetry(key, stream=log)
    telemetry.event(Event.STARTED)
    assert lines(log)[0]["instance"] == "-"


@pytest.mark.parametrize(
    ("identity", "kept"),
    [
        ("0192f0c1-2b5e-7c3a-9d1e-aabbccddeeff", True),
        ("0192F0C1-2B5E-7C3A-9D1E-AABBCCDDEEFF", True),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", True),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV\n", False),
        ("0192f0c1-2b5e-7c3a-9d1e-aabbccddeeff canary", False),
        ("order-17", False),
        ("4111111111111111", False),
        ("\ud800", False),
    ],
)
def test_a_correlation_is_a_digest_unless_it_is_an_id(identity, kept):
    shown = correlation_identity(identity)
    assert (shown == identity) == kept
    if not kept:
        assert shown.startswith("sha256:")
        assert len(shown) == 39


@pytest.mark.case("M6")
def test_series_are_bounded_whatever_comes(log):
    telemetry = door(log)
    for number in range(1000):
        claim = make_claim(topic=f"t{number}", key=f"k{number}", correlation_id=f"c{number}")
        report = Report(number + 1, 1, "retry", reason=f"text {number}")
        telemetry.recorded(claim, report, "deferred")
        telemetry.alert(Alert.PARKED, reason=f"text {number}", message_id=number)
    text = telemetry.render().decode()
    assert len(text.splitlines()) < 300
    labels = set(re.findall('topic="([^"]*)"', text))
    assert labels == {"other"}


def test_lines_are_bounded_and_say_how_many_are_missing(log):
    now = [0.0]
    telemetry = door(log, monotonic=lambda: now[0])
    for _ in range(500):
        telemetry.event(Event.RETRIED, "warning", reason="timeout")
    telemetry.event(Event.RETRIED, "warning", reason="tls_failed")
    assert len(lines(log)) == 61
    now[0] = 61.0
    telemetry.event(Event.RETRIED, "warning", reason="timeout")
    assert lines(log)[-1]["dropped"] == 440


def test_levels(log):
    telemetry = Telemetry("inst", level="warning", stream=log)
    telemetry.event(Event.STARTED)
    telemetry.event(Event.CLAIM_LOST, "warning")
    assert [line["event"] for line in lines(log)] == ["claim_lost"]


@pytest.mark.parametrize(
    ("result", "state", "counter"),
    [
        ("completed", "delivered", "delivered"),
        ("duplicate", "delivered", "duplicate"),
        ("retry", "deferred", "retried"),
        ("retry", "dead_letter", "dead_lettered"),
        ("retry", "unknown", "unknown"),
        ("unknown", "deferred", "unknown"),
        ("unknown", "unknown", "unknown"),
        ("conflict", "conflict", "conflict"),
        ("permanent", "permanent", "permanent"),
        ("permanent", "unknown", "unknown"),
        ("released", "ready", "released"),
        ("released", "unknown", "unknown"),
        ("postponed", "deferred", "postponed"),
        ("dead_letter", "dead_letter", "dead_lettered"),
    ],
)
def test_one_counter_for_each_outcome(log, result, state, counter):
    telemetry = door(log)
    report = Report(1, 1, result, reason="timeout")
    assert telemetry.recorded(make_claim(topic="pay.out"), report, state) == counter
    values = {
        sample.name: sample.value
        for metric in telemetry.registry.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels.get("topic")
    }
    assert {name for name, value in values.items() if value} == {f"trex_{counter}_total"}


def test_every_reason_is_a_label(log):
    telemetry = door(log)
    for reason in REASONS:
        telemetry.count("retried", make_claim(), reason)
    for name in COUNTERS:
        telemetry.count(name, None)


# alerts


async def test_an_alert_is_logged_posted_and_not_repeated(log):
    posted = []
    now = [0.0]

    async def webhook(body):
        posted.append(json.loads(body))
        return True

    telemetry = door(log, webhook=webhook, monotonic=lambda: now[0])
    for _ in range(3):
        telemetry.alert(Alert.CONFLICT, reason="key_conflict", message_id=1)
    telemetry.alert(Alert.OUTCOME_UNKNOWN, reason="timeout")
    now[0] = 61.0
    telemetry.alert(Alert.CONFLICT, reason="key_conflict", message_id=2)
    await telemetry.flush()
    assert [alert["result"] for alert in posted] == ["conflict", "outcome_unknown", "conflict"]
    assert set(posted[0]) == {"event", "instance", "result", "reason", "message_id"}
    assert [line["event"] for line in lines(log)] == ["alert"] * 3


async def test_a_webhook_that_fails_is_counted_and_says_nothing(log):
    async def webhook(body):
        raise ValueError(CANARY)

    telemetry = door(log, webhook=webhook)
    telemetry.alert(Alert.CONFLICT, reason="key_conflict")
    await telemetry.flush()
    assert telemetry.registry.get_sample_value("trex_alerts_not_sent_total") == 1
    assert lines(log)[-1]["event"] == "alert_not_sent"
    assert CANARY not in log.getvalue()


def test_an_alert_outside_of_a_loop_is_logged(log):
    async def webhook(body):
        return True

    telemetry = door(log, webhook=webhook)
    telemetry.alert(Alert.CONFLICT)
    assert telemetry.registry.get_sample_value("trex_alerts_not_sent_total") == 1


async def test_the_webhook_posts_json():
    from datetime import timedelta

    from tests.support.http_sink import http_sink, ok
    from trex_client.adapters import ConfigError

    async with http_sink(ok(), ok(status=500), ok(b"", "Location: /x", status=302)) as sink:
        post = webhook_poster(sink.url, timedelta(seconds=2))
        assert [await post(b"{}") for _ in range(3)] == [True, False, False]
    assert sink.requests[0].headers["content-type"] == "application/json"
    with pytest.raises(ConfigError):
        webhook_poster("http://ops.example/hook", timedelta(seconds=1))


# the rest of the process

PROGRAM = f"""
import asyncio, logging, sys, threading, warnings
from trex_client.telemetry import Event, Telemetry

for name in ("httpx", "asyncio", "psycopg", "anything"):
    logging.getLogger(name).addHandler(logging.StreamHandler(sys.stderr))

async def main():
    loop = asyncio.get_running_loop()
    telemetry = Telemetry("inst", level="debug")
    telemetry.own_process(loop)
    for name in ("httpx", "asyncio", "psycopg", "later"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).warning("{CANARY} %s", "x")
        logging.getLogger(name).error("broken %d", "{CANARY}")
    warnings.warn("{CANARY}")
    loop.call_exception_handler({{"message": "{CANARY}"}})

    async def fails():
        raise ValueError("{CANARY}")

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    thread = threading.Thread(target=lambda: [][1] or "{CANARY}")
    thread.start()
    thread.join()

    class Bad:
        def __del__(self):
            raise ValueError("{CANARY}")

    Bad()
    telemetry.event(Event.STOPPED)

asyncio.run(main())
raise ValueError("{CANARY}")
"""


@pytest.mark.criterion("ac-0052")
def test_nothing_else_in_the_process_can_print_text():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert CANARY not in done.stderr + done.stdout
    shown = [json.loads(line) for line in done.stderr.splitlines()]
    events = [line["event"] for line in shown]
    assert events.count("library_log") >= 8
    assert events.count("unhandled") >= 5
    assert "stopped" in events
    assert done.returncode == 1


def test_importing_it_changes_no_logging():
    before = (list(logging.getLogger().handlers), logging.getLogger().level)
    Telemetry("inst", stream=io.StringIO())
    assert before == (list(logging.getLogger().handlers), logging.getLogger().level)
    assert asyncio.get_event_loop_policy() is not None
