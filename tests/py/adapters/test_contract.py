"""The shipped adapters pass the contract that users run against theirs; a bad one doesn't."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any
from unittest import SkipTest

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.processes import proxy
from trex_client import ledger
from trex_client.adapters import BaseAdapter, Delivered, Found, Retryable, build_adapter
from trex_client.adapters.none import NoneAdapter
from trex_client.testing import AdapterContract, Rig


@pytest.fixture
def ledger_db(new_db):
    database = new_db(migrated=False)
    ledger.install(database.dsn())
    return database


pytestmark = pytest.mark.criterion("ac-0050")


def payload(number):
    return f'{{"account": "a", "amount": "{number}.00", "currency": "USD"}}'


def effects_in(database):
    async def effects(wire_key):
        conn = database.connect()
        row = conn.execute(
            "select count(*) from ledger.call where key = %s and result = 'posted'", (wire_key,)
        ).fetchone()
        return row[0]

    return effects


def cash(number):
    return "a", "USD", Decimal(number)


class TestHttpAdapter(AdapterContract):
    @pytest.fixture(autouse=True)
    def _database(self, ledger_db):
        self.database = ledger_db

    @asynccontextmanager
    async def running(self):
        async with ledger.LedgerServer(self.database.dsn()) as server:
            config = server.adapter_config(read_timeout=1.0)

            def fault(**shares):
                async def plant():
                    made = max(server.calls.values(), default=0)
                    server.faults = ledger.Faults(**shares, most_per_key=made + 1)

                return plant

            async def unreachable():
                assert server._server is not None
                server._server.close()

            yield Rig(
                build_adapter(self.instance_key, config),
                effects=effects_in(self.database),
                payload=payload,
                cash=cash,
                faults={
                    "unavailable": fault(unavailable=1.0),
                    "unreachable": unreachable,
                    "lost_answer": fault(cut_after_commit=1.0),
                    "lost_request": fault(cut_before=1.0),
                },
            )


class TestPostgresAdapter(AdapterContract):
    @pytest.fixture(autouse=True)
    def _database(self, ledger_db):
        self.database = ledger_db

    @asynccontextmanager
    async def running(self):
        place: dict[str, Any] = dict(conninfo_to_dict(self.database.dsn(tcp=True)))
        async with proxy(int(place["port"]), str(place["host"])) as between:
            between.marker = b'"post"'
            dsn = {"dsn": make_conninfo(**{**place, "host": "127.0.0.1", "port": between.port})}
            adapter = build_adapter(
                self.instance_key, {"kind": "postgres", "dsn": {"env": "dsn"}}, environ=dsn
            )
            yield self._rig(adapter, between)
        with self.database.server.admin() as conn:
            conn.execute(f"alter database {self.database.dbname} allow_connections true")

    def _rig(self, adapter, between):
        def lose(what):
            async def plant():
                between.lose = what

            return plant

        async def unavailable():
            conn = self.database.connect()
            conn.execute(
                "create rule refuse as on insert to ledger.idempotency_key do instead nothing"
            )
            conn.execute("alter table ledger.idempotency_key rename to gone")

        async def unreachable():
            with self.database.server.admin() as conn:
                conn.execute(f"alter database {self.database.dbname} allow_connections false")

        return Rig(
            adapter,
            effects=effects_in(self.database),
            payload=payload,
            cash=cash,
            faults={
                "unavailable": unavailable,
                "unreachable": unreachable,
                "lost_answer": lose("answer"),
                "lost_request": lose("request"),
            },
        )


class Forgetful(BaseAdapter):
    """Claims to be idempotent and isn't."""

    policy = "idempotent"

    def __init__(self):
        self.effects = {}

    async def deliver(self, claim, context):
        self.effects[context.wire_key] = self.effects.get(context.wire_key, 0) + 1
        return Delivered()


def contract_of(adapter, faults):
    class Contract(AdapterContract):
        @asynccontextmanager
        async def running(self):
            async def effects(wire_key):
                return adapter.effects.get(wire_key, 0)

            yield Rig(adapter, effects=effects, faults=faults)

    return Contract()


def test_the_contract_finds_a_second_effect():
    for name in (
        "test_the_same_key_again_has_no_second_effect",
        "test_the_same_key_at_the_same_time_has_one_effect",
        "test_other_content_under_the_same_key_is_a_conflict",
    ):
        with pytest.raises(AssertionError):
            getattr(contract_of(Forgetful(), {}), name)()


@pytest.mark.criterion("ac-0033")
def test_the_contract_finds_a_look_up_that_lies_about_its_content():
    class Lying(BaseAdapter):
        policy = "lookup"
        can_lookup = True

        def __init__(self, says):
            self.effects = {}
            self.says = says

        async def deliver(self, claim, context):
            self.effects[context.wire_key] = self.effects.get(context.wire_key, 0) + 1
            return Delivered()

        async def lookup(self, wire_key):
            return Found(digest=self.says)

    ours = hashlib.sha256(Rig.payload(1).encode()).hexdigest()
    for says, name in (
        (ours, "test_foreign_content_under_our_key_is_never_our_delivery"),
        ("0" * 64, "test_a_look_up_knows_our_content"),
    ):
        with pytest.raises(AssertionError):
            getattr(contract_of(Lying(says), {}), name)()


def test_the_contract_finds_a_leak_and_skips_what_a_sink_cannot_show():
    class Chatty(Forgetful):
        def __repr__(self):
            return "sent canary-7f3a"

    with pytest.raises(AssertionError):
        contract_of(Chatty(), {}).test_answers_show_neither_payload_nor_account()
    with pytest.raises(SkipTest):
        contract_of(Forgetful(), {}).test_a_lost_answer_is_unknown_and_found_later()


def test_the_contract_wants_retry_for_a_sink_that_cannot_now():
    async def nothing():
        return None

    with pytest.raises(AssertionError):
        contract_of(Forgetful(), {"unavailable": nothing}).test_a_sink_that_cannot_now_is_retried()


def test_without_a_consumer_nothing_is_ever_delivered():
    class Counting(NoneAdapter):
        def __init__(self):
            self.effects = {}

    with pytest.raises(AssertionError):
        contract_of(Counting(), {}).test_delivers_once()

    async def answer():
        from trex_client.adapters.base import context_for
        from trex_client.testing import make_claim

        claim = make_claim()
        context = context_for("inst", claim)
        result = await NoneAdapter().deliver(claim, context)
        return result, context.sent

    assert asyncio.run(answer()) == (Retryable("consumer:none"), False)
