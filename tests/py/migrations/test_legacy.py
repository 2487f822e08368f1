"""10,000 ownerless rows of an older outbox: all land in quarantine, and stay ownerless."""

from __future__ import annotations

import psycopg
import pytest

from trex_client import migrate as m

pytestmark = pytest.mark.criterion("ac-0029", "ac-0035")

LEGACY = m.sql_root() / "legacy"
MAPPING = {
    "source": "legacy.outbox",
    "key": "id",
    "state": "status",
    "topic": "event_type",
    "idempotency_key": "dedup_key",
    "correlation_id": "correlation_id",
    "account": "account",
    "currency": "currency",
    "cash_delta": "amount",
    "payload": "payload",
    "attempts": "attempts",
    "occurred_at": "created_at",
}
DIFFERENCE = """
select count(*)
from legacy.outbox as o
full join trex.quarantine as q on q.source_key = o.id::text and q.source = 'legacy.outbox'
where (
    o.event_type, o.dedup_key, o.correlation_id, o.account, o.currency, o.amount, o.payload,
    o.status, o.attempts, o.created_at, null::text
) is distinct from (
    q.topic, q.idempotency_key, q.correlation_id, q.account, q.currency, q.cash_delta, q.payload,
    q.source_state, q.source_attempts, q.occurred_at, q.instance_key
)
"""


@pytest.fixture
def old_db(pg_db):
    """The newest schema beside an older outbox that is full."""
    conn = pg_db.connect()
    for name in ("ownerless_outbox.sql", "generate.sql"):
        conn.execute((LEGACY / name).read_text())
    return pg_db


def bring_in(database, tools, **changes):
    return tools.psql(database, file=LEGACY / "import.psql", **{**MAPPING, **changes})


def test_all_rows_in_every_state_land_in_quarantine(old_db, tools):
    conn = old_db.connect()
    for _ in range(2):
        done = bring_in(old_db, tools)
        assert done.returncode == 0, done.stderr
        assert conn.execute(DIFFERENCE).fetchone() == (0,)
    by_state = "select source_state, count(*) from trex.quarantine group by 1 order by 1"
    assert len(conn.execute(by_state).fetchall()) == 8
    assert {count for _, count in conn.execute(by_state)} == {1250}
    owned = "select count(*), count(instance_key), count(adopted_at) from trex.quarantine"
    assert conn.execute(owned).fetchone() == (10_000, 0, 0)
    # Nothing became work.
    assert conn.execute(
        "select (select count(*) from trex.message), (select count(*) from trex.delivery)"
    ).fetchone() == (0, 0)


@pytest.mark.case("O1")
def test_a_later_run_adds_only_new_rows(old_db, tools):
    assert bring_in(old_db, tools).returncode == 0
    conn = old_db.connect()
    first = conn.execute("select max(imported_at) from trex.quarantine").fetchone()
    conn.execute("update legacy.outbox set status = 'sent' where id = 1")
    conn.execute("insert into legacy.outbox (event_type) values ('late')")
    assert bring_in(old_db, tools).returncode == 0
    assert conn.execute(
        "select count(*) from trex.quarantine where imported_at > %s", first
    ).fetchone() == (1,)
    kept = "select source_state from trex.quarantine where source_key = '1'"
    assert conn.execute(kept).fetchone() == ("processing",)


@pytest.mark.parametrize(
    "changes", [{"key": "account"}, {"key": "dedup_key"}, {"key": "1"}, {"cash_delta": "'x'"}]
)
def test_a_wrong_mapping_imports_nothing(old_db, tools, changes):
    assert bring_in(old_db, tools, **changes).returncode == 3
    row = old_db.connect().execute("select count(*) from trex.quarantine").fetchone()
    assert row == (0,)


@pytest.mark.parametrize("missing", ["source", "key", "state"])
def test_a_missing_variable_is_named(pg_db, tools, missing):
    given = {name: value for name, value in MAPPING.items() if name != missing}
    done = tools.psql(pg_db, file=LEGACY / "import.psql", **given)
    assert done.returncode == 3
    assert f"-v {missing}=" in done.stderr


def test_two_tables_keep_apart(old_db, tools):
    conn = old_db.connect()
    conn.execute("create table public.jobs (shard text, n int, body text, cents bigint)")
    conn.execute("insert into public.jobs values ('a', 1, '{not json', 12345), ('b', 1, '[]', -1)")
    assert bring_in(old_db, tools).returncode == 0
    done = tools.psql(
        old_db,
        file=LEGACY / "import.psql",
        source="public.jobs",
        label="billing jobs",
        key="o.shard || '/' || o.n",
        state="'unknown'",
        payload="to_jsonb(o.body)",
        cash_delta="o.cents / 100.0",
    )
    assert done.returncode == 0, done.stderr
    rows = conn.execute(
        "select source_key, payload, cash_delta::text, topic from trex.quarantine"
        " where source = 'billing jobs' order by 1"
    ).fetchall()
    assert [(r[0], r[1], r[2][:6], r[3]) for r in rows] == [
        ("a/1", "{not json", "123.45", None),
        ("b/1", "[]", "-0.010", None),
    ]
    assert conn.execute("select count(*) from trex.quarantine").fetchone() == (10_002,)


def test_nobody_gives_a_quarantined_row_an_owner(old_db, tools):
    assert bring_in(old_db, tools).returncode == 0
    conn = old_db.connect()
    for statement in (
        "update trex.quarantine set instance_key = 'ledger-a' where source_key = '7'",
        "insert into trex.quarantine (source, source_key, instance_key) values ('x', 'y', 'a')",
        "delete from trex.quarantine where source_key = '7'",
    ):
        with pytest.raises(psycopg.Error):
            conn.execute(statement)
    assert conn.execute("select count(*), count(instance_key) from trex.quarantine").fetchone() == (
        10_000,
        0,
    )


def test_a_migrate_leaves_quarantine_alone(old_db, tools):
    assert bring_in(old_db, tools).returncode == 0
    m.migrate(old_db.dsn())
    assert old_db.connect().execute(DIFFERENCE).fetchone() == (0,)
