"""One valid call of every public function, as text that depends on no search path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg.pq import DiagnosticField, ExecStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.support.databases import Database

OWN, OTHER, UNKNOWN = "own", "other", "unknown"

READERS = ("app", "worker", "operator", "reader")

GRANTS: dict[tuple[str, ...], str] = {
    ("app",): """
        enqueue enqueue_many receive bind_device execute_licence issue_capability list_counters
        list_devices list_entitlements list_security_events list_usage
    """,
    ("worker",): """
        claim complete complete_duplicate conflict dead_letter exchange extend fail hold listen
        mark_sent mark_unknown postpone record release report_stale retry unlisten finalize_paid
        apply_provider_cancel apply_refund update_subscription
    """,
    ("operator",): """
        bind unbind bump_epoch expedite machine_load pause purge reconcile reconcile_findings
        reconcile_reports redrive register_currency register_instance resolve resume
    """,
    ("adopter",): "adopt",
    ("app", "worker"): "register_order",
    ("operator", "worker"): "correct expire_entitlements inbox_event record_payment",
    ("app", "operator", "worker"): "transition",
    READERS: """
        effect_states entity_history entity_status inbox_status list_parked list_pending
        machine_show operation_history overdue pending_cash_delta policy schema_state stats status
    """,
}
"""Which roles may execute which functions: all others are refused."""

MAY: dict[str, frozenset[str]] = {
    name: frozenset(roles) for roles, names in GRANTS.items() for name in names.split()
}

LABELS = ("app", "worker", "operator", "reader", "adopter", "nobody")

NO_INSTANCE = frozenset({"bump_epoch", "register_currency", "schema_state"})
"""Functions that aren't about one instance."""

UNBOUND = frozenset({"register_instance", "bind", "unbind"})
"""Functions of operators that need no binding: they make instances and bindings."""

VALUES: dict[str, str] = {
    "p_account": "'acme'",
    "p_actor": "'me'",
    "p_adjustment_id": "'adj-1'",
    "p_amount": "1",
    "p_asked_at": "'2020-01-01 00:00:00+00'::pg_catalog.timestamptz",
    "p_buyer": "'buyer'",
    "p_capability_id": "'cap-1'",
    "p_cause": "'cancelled'",
    "p_currency": "'EUR'",
    "p_definition": "'{}'::pg_catalog.jsonb",
    "p_delay": "'1 s'::pg_catalog.interval",
    "p_duration": "'1 s'::pg_catalog.interval",
    "p_entity": "'entity'",
    "p_event": "'event'",
    "p_event_id": "'evt-1'",
    "p_event_type": "'paid'",
    "p_evidence": "'seen'",
    "p_expected_version": "1",
    "p_exponent": "2",
    "p_fence": "{fence}",
    "p_fences": "array[{fence}]",
    "p_idempotency_key": "'new-key'",
    "p_idempotency_keys": "array['new-1', 'new-2']",
    "p_invoice_id": "'inv-1'",
    "p_item": "'item'",
    "p_kind": "'refund'",
    "p_licence_id": "'lic-1'",
    "p_machine": "'machine'",
    "p_message_id": "{leased}",
    "p_message_ids": "array[{leased}]",
    "p_object_id": "'obj-1'",
    "p_older_than": "'0 s'::pg_catalog.interval",
    "p_operation_id": "'op-1'",
    "p_order_id": "'ord-1'",
    "p_payload": "'{{}}'::pg_catalog.jsonb",
    "p_payloads": "array['{{}}', '[]']::pg_catalog.jsonb[]",
    "p_period_end": "'2031-01-01 00:00:00+00'::pg_catalog.timestamptz",
    "p_provider": "'psp'",
    "p_quarantine_id": "{quarantined}",
    "p_raw": "'raw'::pg_catalog.bytea",
    "p_reason": "'why'",
    "p_refund_id": "'re-1'",
    "p_resolution": "'resend'",
    "p_result": "'completed'",
    "p_results": "array['completed']",
    "p_role": "'operator'",
    "p_role_name": "'somebody'",
    "p_seller": "'seller'",
    "p_status": "'paid'",
    "p_subject": "'subject'",
    "p_subscription_id": "'sub-1'",
    "p_thumbprint": "'thumb'",
    "p_topic": "'topic'",
    "p_topics": "array['topic', 'topic']",
    "p_usage_id": "'use-1'",
    "p_viewer_kind": "'admin'",
    "p_viewer_seller": "null",
    "p_viewer_tenant": "'acme'",
    "p_worker": "'w'",
}
"""A valid value for each required parameter."""

SPECIAL: dict[tuple[str, str], str] = {
    ("claim", "p_limit"): "100",
    ("exchange", "p_limit"): "100",
    ("fail", "p_reason"): "'rejected'",
    ("retry", "p_reason"): "'timeout'",
    ("redrive", "p_message_ids"): "array[{dead}]",
    ("expedite", "p_message_ids"): "array[{deferred}]",
    ("resolve", "p_message_id"): "{unknown}",
    ("status", "p_message_id"): "{leased}",
    ("machine_load", "p_definition"): (
        """'{{"states": {{"a": {{"final": true}}}},"""
        """ "transitions": [{{"event": "e", "to": "a"}}]}}'::pg_catalog.jsonb"""
    ),
    ("register_currency", "p_currency"): "'XTREX'",
    ("report_stale", "p_fence"): "{lost_fence}",
    ("report_stale", "p_message_id"): "{lost}",
    ("inbox_event", "p_message_id"): "{received}",
    ("inbox_status", "p_message_id"): "{received}",
    ("update_subscription", "p_status"): "'active'",
}
"""Values of parameters that differ for one function."""


@dataclass
class House:
    """A database with two instances in the same state: messages in every state."""

    database: Database
    admin: psycopg.Connection[Any]
    values: dict[str, dict[str, int]] = field(default_factory=dict)

    def connect(self, label: str) -> psycopg.Connection[Any]:
        """A session of a probe role. It logs in as nobody else could: through the superuser's
        connection, which then is an ordinary session of that role."""
        conn = self.database.connect(autocommit=True)
        conn.execute(f"set session authorization {probe(label)}".encode())
        return conn

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.admin.execute(text.encode(), values).fetchall()

    def fingerprint(self, key: str) -> dict[str, Any]:
        """Everything that one instance owns, as text."""
        prints = {}
        for table in tables(self.admin):
            columns = self.sql(
                "select 1 from information_schema.columns where table_schema = 'trex'"
                " and table_name = %s and column_name = 'instance_key'",
                table,
            )
            if columns:
                rows = self.sql(f"select t::text from trex.{table} t where instance_key = %s", key)
                prints[table] = sorted(row[0] for row in rows)
        return prints


def probe(label: str) -> str:
    """The login role of a label."""
    return f"trex_probe_{label}"


def make_house(database: Database) -> House:
    """Make the probe roles and the two instances; all probes are bound to `own`, none to
    `other`."""
    admin = database.connect()
    house = House(database, admin)
    for label in (*LABELS, "all"):
        admin.execute(
            f"""
            do $$
            begin
                create role {probe(label)} login;
            exception when duplicate_object or unique_violation then null;
            end
            $$
            """.encode()
        )
    for label in ("app", "worker", "operator", "reader", "adopter"):
        for member in (label, "all"):
            admin.execute(f"grant trex_{label} to {probe(member)}".encode())
    for key in (OWN, OTHER):
        house.values[key] = fill(house, key)
        admin.execute(
            "delete from trex.binding where role_name = session_user and instance_key = %s", (key,)
        )
    for label in (*LABELS, "all"):
        admin.execute("insert into trex.binding values (%s, %s, now())", (OWN, probe(label)))
    house.values[UNKNOWN] = house.values[OTHER]
    return house


def fill(house: House, key: str) -> dict[str, int]:
    """Messages in every state; their ids by name."""
    admin = house.admin
    admin.execute(
        "insert into trex.instance (instance_key, lease_default, registered_at)"
        " values (%s, '15 min', now())",
        (key,),
    )
    admin.execute("insert into trex.binding values (%s, session_user, now())", (key,))
    cash = ", p_account => 'acme', p_currency => 'EUR', p_cash_delta => 5"
    ids: dict[str, int] = {}
    fences: dict[str, int] = {}
    for name in ("dead", "unknown", "deferred", "delivered", "lost", "leased"):
        policy = "at_most_once" if name == "unknown" else "idempotent"
        row = admin.execute(
            f"select (trex.enqueue(%s, 'topic', %s, '{{}}', p_effect_policy => %s"
            f"{cash})).message_id".encode(),
            (key, name, policy),
        ).fetchone()
        assert row is not None
        ids[name] = row[0]
        row = admin.execute("select fence from trex.claim(%s, 'w')", (key,)).fetchone()
        assert row is not None
        fences[name] = row[0]
        end = {
            "dead": "dead_letter",
            "unknown": "mark_unknown",
            "deferred": "retry",
            "delivered": "complete",
        }.get(name)
        delay = ", p_delay => '1 day'" if name == "deferred" else ""
        if end:
            admin.execute(
                f"select trex.{end}(%s, %s, %s{delay})".encode(), (key, ids[name], fences[name])
            )
        if name == "lost":
            admin.execute(
                "update trex.delivery set lease_until = now() - interval '1 s'"
                " where message_id = %s",
                (ids[name],),
            )
            admin.execute("select from trex.claim(%s, 'w2')", (key,))
    admin.execute("select trex.enqueue(%s, 'topic', 'ready', '{}')", (key,))
    row = admin.execute(
        "select (trex.receive(%s, 'psp', 'acme', 'evt-0', 'paid', null, 'raw', '{}')).message_id",
        (key,),
    ).fetchone()
    assert row is not None
    quarantined = admin.execute(
        "insert into trex.quarantine (source, source_key, topic, idempotency_key, payload)"
        " values ('old', %s, 'topic', 'adopted', '{}') returning quarantine_id",
        (key,),
    ).fetchone()
    assert quarantined is not None
    return {
        **ids,
        "fence": fences["leased"],
        "lost_fence": fences["lost"],
        "received": row[0],
        "quarantined": quarantined[0],
    }


def tables(conn: psycopg.Connection[Any]) -> list[str]:
    """All tables of the schema."""
    rows = conn.execute(
        "select relname from pg_class where relnamespace = 'trex'::regnamespace"
        " and relkind in ('r', 'p', 'v', 'm', 'f') order by relname"
    ).fetchall()
    return [row[0] for row in rows]


def functions(conn: psycopg.Connection[Any]) -> Iterator[tuple[str, list[str]]]:
    """Public functions, with the names of their required parameters."""
    rows = conn.execute(
        """
        select p.proname, coalesce(p.proargnames[1:p.pronargs - p.pronargdefaults], '{}')
        from pg_proc p
        where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_'
            and p.prorettype <> 'trigger'::regtype
        order by p.proname
        """
    ).fetchall()
    for name, parameters in rows:
        yield name, list(parameters)


def call_text(
    function: str, parameters: list[str], key: str, values: dict[str, int], **more: str
) -> str:
    """The call as SQL, with named arguments."""
    given = {}
    for parameter in [*parameters, *(name for call, name in SPECIAL if call == function)]:
        if parameter == "p_instance_key":
            given[parameter] = f"'{key}'"
        else:
            text = SPECIAL.get((function, parameter)) or VALUES[parameter]
            given[parameter] = text.format(**values)
    given.update(more)
    named = ", ".join(f"{name} => {value}" for name, value in given.items())
    return f"select * from trex.{function}({named})"


@dataclass(frozen=True)
class Said:
    """The answer to a call: SQLSTATE, constant text, hint and detail of a refusal, or the rows'
    texts."""

    code: str | None
    text: str | None = None
    hint: str | None = None
    detail: str | None = None
    rows: tuple[tuple[bytes | None, ...], ...] = ()


def ask(conn: psycopg.Connection[Any], text: str) -> Said:
    """Make a call in a transaction of its own that is rolled back. Only words and truth values are
    compared, as the server wrote them: no setting of the session can stand in between."""
    conn.pgconn.exec_(b"begin")
    result = conn.pgconn.exec_(text.encode())
    conn.pgconn.exec_(b"rollback")
    if result.status == ExecStatus.FATAL_ERROR:
        fields = ("SQLSTATE", "MESSAGE_PRIMARY", "MESSAGE_HINT", "MESSAGE_DETAIL")
        values = [result.error_field(DiagnosticField[name]) for name in fields]
        code, message, hint, detail = [v.decode(errors="replace") if v else None for v in values]
        return Said(code, message, hint, detail)
    words = [n for n in range(result.nfields) if result.ftype(n) in (16, 25)]
    return Said(
        None,
        rows=tuple(
            tuple(result.get_value(row, column) for column in words)
            for row in range(result.ntuples)
        ),
    )
