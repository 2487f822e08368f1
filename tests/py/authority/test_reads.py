"""Scoped reads: administrators all, sellers their own, others what is stated for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.py.authority.world import ACCOUNT, grant
from trex_client.errors import AccessDenied, InvalidArgument, NotFound, NoViewer
from trex_client.model_authority import Viewer

pytestmark = pytest.mark.criterion("ac-0061")

READS = [
    "list_entitlements", "list_usage", "list_counters", "list_devices", "list_security_events",
]  # fmt: skip
ADMIN = Viewer("admin", ACCOUNT)
SELLERS = [Viewer("seller", ACCOUNT, f"sel_{n}") for n in (1, 2)]


@pytest.fixture
def shop(backend):
    client = backend.register("shop")
    for n in (1, 2):
        licence = grant(backend, client, f"in_{n}", seller=f"sel_{n}", devices_max=1)
        client.bind_device(licence, "t")
        client.issue_capability(f"cap_{n}", licence, "buy_1")
        client.execute_licence(f"cap_{n}", "buy_1", f"use_{n}", thumbprint="t")
        client.execute_licence(f"cap_{n}", "buy_1", f"no_{n}", on_refused="report")
    return client


@pytest.mark.parametrize("read", READS)
def test_each_viewer_sees_what_is_stated(shop, read):
    def seen(viewer, account=ACCOUNT, **given):
        return getattr(shop, read)(viewer, account, **given)

    everything = seen(ADMIN)
    assert {row.seller for row in everything} == {"sel_1", "sel_2"}
    assert {row.account for row in everything} == {ACCOUNT}
    assert [row.id for row in everything] == sorted(row.id for row in everything)
    for viewer in SELLERS:
        own = seen(viewer)
        assert own == [row for row in everything if row.seller == viewer.seller] != []
        assert own == seen(viewer, seller=viewer.seller) == seen(ADMIN, seller=viewer.seller)
    with pytest.raises(NotFound):
        seen(SELLERS[0], seller="sel_2")
    with pytest.raises(NotFound):
        seen(ADMIN, "acct_2")
    with pytest.raises(NotFound):
        seen(Viewer("admin", "acct_2"))
    with pytest.raises(NotFound):
        seen(Viewer("seller", "acct_2", "sel_1"))
    assert seen(Viewer("admin", "acct_2"), "acct_2") == []
    for buyer in (Viewer("buyer", ACCOUNT), Viewer("buyer", ACCOUNT, "sel_1")):
        with pytest.raises(AccessDenied):
            seen(buyer)
    for nobody in (
        Viewer(None), Viewer("anonymous"), Viewer("anonymous", ACCOUNT), Viewer("", ACCOUNT),
        Viewer("Admin", ACCOUNT), Viewer("admin"), Viewer("admin", ""), Viewer("seller", ACCOUNT),
        Viewer("seller", ACCOUNT, ""), Viewer("buyer"),
    ):  # fmt: skip
        with pytest.raises(NoViewer):
            seen(nobody)


@pytest.mark.parametrize("read", READS)
def test_pages(shop, read):
    everything = getattr(shop, read)(ADMIN, ACCOUNT)
    paged: list[Any] = []
    while page := getattr(shop, read)(ADMIN, ACCOUNT, limit=1, after=paged[-1].id if paged else ""):
        paged += page
    assert paged == everything
    for bad in ({"limit": 0}, {"limit": 10_001}, {"after": None}, {"seller": ""}):
        with pytest.raises(InvalidArgument):
            getattr(shop, read)(ADMIN, ACCOUNT, **bad)
    with pytest.raises(InvalidArgument):
        getattr(shop, read)(ADMIN, "")
    with pytest.raises(InvalidArgument):
        getattr(shop, read)("admin", ACCOUNT)


@pytest.mark.parametrize("read", READS)
def test_other_instances_and_strangers(backend, shop, read):
    stranger = backend.client("shop", "stranger")
    with pytest.raises(AccessDenied):
        getattr(stranger, read)(ADMIN, ACCOUNT)
    assert getattr(backend.register("other"), read)(ADMIN, ACCOUNT) == []


def test_only_the_app_role_may_ask(postgres):
    """A reader of the database isn't a verified viewer's service."""
    for read in READS:
        row = postgres.admin.execute(
            "select array_agg(r.rolname::text order by r.rolname) from pg_roles r"
            " cross join pg_proc p where p.proname = %s and p.pronamespace = 'trex'::regnamespace"
            " and r.rolname ~ '^trex_(app|worker|operator|reader|adopter)$'"
            " and has_function_privilege(r.oid, p.oid, 'execute')",
            (read,),
        ).fetchone()
        assert row == (["trex_app"],), read


def test_ids_of_refused_uses_are_unique(backend):
    """A key may hold what stands between the parts of an id."""
    client = backend.register("shop")
    licence = grant(backend, client)
    for number, (capability, usage) in enumerate((("a", "b:consumed:c"), ("a:consumed:b", "c"))):
        client.issue_capability(capability, licence, "buy_1")
        client.execute_licence(capability, "buy_1", f"use_{number}")
        client.execute_licence(capability, "buy_1", usage, on_refused="report")
    first, second = client.list_security_events(ADMIN, ACCOUNT)
    assert first.id != second.id
    assert client.list_security_events(ADMIN, ACCOUNT, after=first.id) == [second]
