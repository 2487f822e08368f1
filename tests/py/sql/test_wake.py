"""Every caller of trex._wake wakes who listens, and nobody whose time is over."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.criteria import ROOT
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.support.databases import Database

FUNCTIONS = ROOT / "sql" / "functions"
CALL = re.compile(r"perform trex\._wake\(.*?\);")
HOUR = timedelta(hours=1)
WHY: dict[str, Any] = {"actor": "me", "reason": "why"}


def deferred(shop: PostgresClient) -> int:
    return shop.enqueue("t", "k", {}, delay=HOUR).message_id


def parked(shop: PostgresClient, how: str) -> int:
    shop.enqueue("t", "k", {}, effect_policy="at_most_once")
    (claim,) = shop.claim("w")
    getattr(shop, how)(claim.message_id, claim.fence)
    return claim.message_id


def received(shop: PostgresClient) -> None:
    shop.receive("psp", "acct", "e", "paid", None, b"raw", {})


def dead_event(shop: PostgresClient) -> None:
    received(shop)
    (claim,) = shop.claim("w", box="inbox")
    shop.dead_letter(claim.message_id, claim.fence)


def quarantined(shop: PostgresClient) -> int:
    row = shop._conn.execute(
        "insert into trex.quarantine (source, source_key, topic, idempotency_key, payload,"
        " imported_at) values ('old', %s, 't', 'k', %s, now()) returning quarantine_id",
        (shop.instance_key, json.dumps({})),
    ).fetchone()
    assert row is not None
    return int(row[0])


def many(shop: PostgresClient) -> None:
    shop._conn.execute(
        "select trex.enqueue_many(%s, '{t}', '{k}', array['{}']::jsonb[])", (shop.instance_key,)
    )


def nothing(_: PostgresClient) -> None:
    return None


# For each file its calls in order: what comes before, and the act that must wake.
CALLERS: dict[str, list[tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "inbox/receive.sql": [
        (nothing, lambda shop, _: received(shop)),
        (dead_event, lambda shop, _: received(shop)),
    ],
    "operator/adopt.sql": [(quarantined, lambda shop, it: shop.adopt(it, evidence="e", **WHY))],
    "operator/expedite.sql": [(deferred, lambda shop, it: shop.expedite([it], **WHY))],
    "operator/redrive.sql": [
        (lambda shop: parked(shop, "dead_letter"), lambda shop, it: shop.redrive([it], **WHY))
    ],
    "operator/resolve.sql": [
        (
            lambda shop: parked(shop, "mark_unknown"),
            lambda shop, it: shop.resolve(it, "resend", evidence="e", **WHY),
        )
    ],
    "operator/resume.sql": [
        (lambda shop: shop.pause(**WHY), lambda shop, _: shop.resume(**WHY)),
    ],
    "outbox/enqueue.sql": [(nothing, lambda shop, _: shop.enqueue("t", "k", {}))],
    "outbox/enqueue_many.sql": [(nothing, lambda shop, _: many(shop))],
}
SITES = [(file, number) for file, calls in CALLERS.items() for number in range(len(calls))]


def open_shop(database: Database, key: str) -> PostgresClient:
    shop = PostgresClient(database.connect(), key)
    shop.register_instance(**WHY)
    shop.bind(database.server.user, **WHY)
    return shop


def woken(database: Database, shop: PostgresClient, file: str, number: int) -> bool:
    """Do what comes before, listen, act: was the listener notified?"""
    before, act = CALLERS[file][number]
    known = before(shop)
    listening = database.connect()
    channel = shop.listen("w", HOUR)
    listening.execute(f"listen {channel}")
    act(shop, known)
    return heard(listening, shop._conn, channel) == [""]


def heard(
    listening: psycopg.Connection[Any], conn: psycopg.Connection[Any], channel: str
) -> list[str]:
    """What has come on the channel so far: up to a mark that is sent now."""
    conn.execute("select pg_notify(%s, 'mark')", (channel,))
    texts: list[str] = []
    for notice in listening.notifies(timeout=30):
        if notice.payload == "mark":
            return texts
        texts.append(notice.payload)
    raise AssertionError("the mark never came")


def test_every_caller_is_here() -> None:
    found = {
        str(path.relative_to(FUNCTIONS)): len(calls)
        for path in FUNCTIONS.rglob("*.sql")
        if (calls := re.findall(r"(?<!function )trex\._wake\(", path.read_text(encoding="utf-8")))
    }
    assert found == {file: len(calls) for file, calls in CALLERS.items()}


@pytest.mark.parametrize(("file", "number"), SITES)
def test_a_listener_is_woken(pg_db: Database, file: str, number: int) -> None:
    assert woken(pg_db, open_shop(pg_db, "a"), file, number)
    # It is this call that does it: without it there is silence.
    text = (FUNCTIONS / file).read_text(encoding="utf-8")
    call = list(CALL.finditer(text))[number]
    without = text[: call.start()] + "null;" + text[call.end() :]
    conn = pg_db.connect()
    conn.execute("set role trex_owner")
    conn.execute(without.encode())
    assert not woken(pg_db, open_shop(pg_db, "b"), file, number)


def test_nobody_is_woken_after_his_time(pg_db: Database) -> None:
    clock = pg_db.clock
    clock.freeze()
    shop = open_shop(pg_db, "a")
    listening = pg_db.connect()
    channel = shop.listen("w", timedelta(seconds=5))
    listening.execute(f"listen {channel}")
    clock.advance(4.999)
    shop.enqueue("t", "k1", {})
    assert heard(listening, shop._conn, channel) == [""]
    clock.advance(0.001)
    shop.enqueue("t", "k2", {})
    assert heard(listening, shop._conn, channel) == []


def test_a_listener_of_another_instance_counts_for_nothing(pg_db: Database) -> None:
    shop, other = open_shop(pg_db, "a"), open_shop(pg_db, "b")
    listening = pg_db.connect()
    channel = shop.listen("w", HOUR)
    listening.execute(f"listen {channel}")
    shop.unlisten("w")
    other.listen("w", HOUR)
    shop.enqueue("t", "k", {})
    assert heard(listening, shop._conn, channel) == []
