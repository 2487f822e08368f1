"""Every function is a method of both clients and of the simulation, with the same arguments."""

from __future__ import annotations

import inspect

import pytest

from trex_client._calls_reconcile import AllCalls
from trex_client.api import Trex
from trex_client.memory import MemoryClient
from trex_client.postgres import AsyncPostgresClient, PostgresClient

NAMES = [name for name, _ in inspect.getmembers(AllCalls, inspect.isfunction) if name[0] != "_"]


@pytest.mark.parametrize("client", [Trex, MemoryClient, PostgresClient, AsyncPostgresClient])
def test_same_methods_same_arguments(client):
    for name in NAMES:
        theirs = inspect.signature(getattr(client, name)).parameters.values()
        ours = inspect.signature(getattr(AllCalls, name)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in list(theirs)[1:]] == [
            (p.name, p.kind, p.default) for p in list(ours)[1:]
        ], name


def test_the_protocol_promises_nothing_else():
    promised = {name for name, _ in inspect.getmembers(Trex, inspect.isfunction) if name[0] != "_"}
    assert promised == set(NAMES)


def test_every_public_function_has_a_method(new_db):
    conn = new_db().connect()
    rows = conn.execute(
        "select distinct proname from pg_proc where pronamespace = 'trex'::regnamespace"
        " and proname !~ '^_'"
    ).fetchall()
    assert {name for (name,) in rows} - set(NAMES) == {"schema_state"}
