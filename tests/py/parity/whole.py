"""The same for the whole API: inbox, operations, rights, reconciliation and scoped reads beside the
outbox, one state for all of them.

A step is sometimes twisted: one argument is replaced by something odd, the instance by one that the
caller isn't bound to, or the server is read-only. What a call must be seen to answer is read from
the functions' own comments; see `test_whole_api.py`.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.py.parity.machine import Machine, Worlds, _at, _bound, _parts
from tests.support.backends import START, WHO
from trex_client._calls_reconcile import AllCalls
from trex_client._memory_authority import EntitlementRow, UsageCounterRow
from trex_client.errors import DatabaseError, InvalidArgument, TrexError
from trex_client.memory import MemoryClient
from trex_client.model_authority import Viewer
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trex_client.memory import MemoryKernel

    Rule = Callable[["WholeMachine", random.Random], None]

ACCOUNTS = ("acct_1", "acct_1", "acct_2")
INVOICES = ("in_1", "in_2", "in_3", "in_4")
SELLERS = ("s1", "s2")
SUBJECTS = ("b1", "b1", "b1", "b2")

M: dict[str, Any] = {
    "states": {
        "open": {"owner": "shop", "longest_stay": 60, "next_action": "close", "alert": "open"},
        "held": {"longest_stay": 5},
        "closed": {"final": True},
    },
    "transitions": [
        {"event": "open", "to": "open", "roles": ["buyer", "clerk"]},
        {"from": "open", "event": "hold", "to": "held", "roles": ["clerk"]},
        {"from": "held", "event": "go_on", "to": "open", "topic": "told"},
        {
            "from": "open", "event": "pay", "to": "open", "amount_min": "1.50", "amount_max": 100,
            "topic": "paid", "effect_policy": "at_most_once",
        },
        {"from": "open", "event": "close", "to": "closed"},
    ],
}  # fmt: skip
WIDER = {**M, "states": {**M["states"], "lost": {"alert": "lost"}}}
DEFINITIONS: tuple[Any, ...] = (
    *[M] * 4, WIDER, WIDER, {**M, "states": {"open": {}, "held": {}}}, {**M, "more": 1},
    {"states": {"a": {}}, "transitions": []},
    {"states": {"a": {"final": "yes"}}, "transitions": [{"event": "e", "to": "a"}]},
    {"states": {"a": {"longest_stay": Decimal("1.0")}}, "transitions": [{"event": "e", "to": "a"}]},
    {"states": {"a": {}}, "transitions": [{"event": "e", "to": "a"}, {"event": "e", "to": "a"}]},
    {"states": {"a": {}}, "transitions": [{"event": "e", "to": "b"}]},
    {"states": {"a": {"final": True}}, "transitions": [{"from": "a", "event": "e", "to": "a"}]},
    {"states": {"a": {}}, "transitions": [{"event": "e", "to": "a", "roles": "clerk"}]},
    {"states": {"a": {}}, "transitions": [{"event": "e", "to": "a", "roles": [["clerk"]]}]},
    {"states": {"a": {}}, "transitions": [{"event": "e", "to": "a", "amount_min": Decimal("1e3")}]},
    {
        "states": {"a": {}},
        "transitions": [{"event": "e", "to": "a", "amount_min": 2, "amount_max": Decimal("1.99")}],
    },
    {"states": {"": {}}, "transitions": [{"event": "e", "to": ""}]},
    {"states": [], "transitions": {}}, [], "x", 7,
)  # fmt: skip
AMOUNTS = (
    *[None] * 3, 2, Decimal("1.5"), Decimal("1.50"), Decimal("-3"), 0, Decimal("0.00"), 50, 100,
    Decimal("100.000000000000000001"), Decimal(10) ** 19, Decimal(10) ** 20,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, "", " x", "x ", "x\n", "X Y", "\0", "\ud800", "é" * 255, "é" * 256, "a" * 64, "report",
    "raise", 0, 1, -1, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), True, 1.5, Decimal("NaN"),
    Decimal("Infinity"), Decimal("1e-20"), Decimal("1.000"), Decimal("1e40"), Decimal(-1), b"",
    b"x", [], [None], [1, 1], {}, {"a": 1}, timedelta(-1), timedelta(0), timedelta(microseconds=1),
    timedelta(days=400), timedelta(days=40_000), timedelta.max, START, START.replace(tzinfo=None),
    datetime.max.replace(tzinfo=UTC), Viewer(None), Viewer("admin", "acct_1"),
)  # fmt: skip
_NAMED = re.compile(": [a-z_]+$")
REPORTS = {
    "record", "exchange", "complete", "complete_duplicate", "retry", "mark_unknown", "conflict",
    "fail", "dead_letter", "release", "postpone", "mark_sent", "hold", "report_stale",
}  # fmt: skip
"""Their hints speak of several arguments of a report together."""
UNSCOPED = ("bump_epoch", "register_currency", "register_instance", "bind", "unbind")
"""Acts that need no binding."""


def answer(call: Callable[[], object]) -> object:
    """The result of a call, or its error's SQLSTATE."""
    try:
        return call()
    except DatabaseError as error:
        return Refusal(error.code)
    except TrexError as error:
        return Refusal(error.sqlstate, str(error))


class Refusal(str):
    """A SQLSTATE, and the error's text: our own, with the name of the argument where it has one."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, code: str, text: str = "") -> Refusal:
        made = super().__new__(cls, code)
        made.text = text
        return made


def words(result: object) -> set[str]:
    """What an answer is counted as."""
    match result:
        case Refusal():
            return {str(result)}
        case bool():
            return {str(result).lower()}
        case str():
            return {result}
        case int():
            return {"some" if result else "none"}
        case list() if not result:
            return {"none"}
        case None:
            return {"done"}
    found = set()
    for part in _parts(result):
        found |= {
            str(value)
            for name in ("status", "state", "effect", "source", "type")
            if isinstance(value := getattr(part, name, None), str)
        } or {"some"}
    return found


class WholeWorlds(Worlds):
    """Two more instances: `foreign`, whose operators bound somebody else, and `nowhere`, which
    nobody registered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        role = self.houses[0].database.server.user
        for name in ("foreign", "nowhere"):
            self.keys[name] = f"{name}-p{Worlds.number}"
            self.sides[0][name] = MemoryClient(self.memory, self.keys[name], role)
            for side, house in zip(self.sides[1:], self.houses, strict=True):
                side[name] = PostgresClient(house.admin, self.keys[name])
        self.call("foreign", "register_instance", **WHO)

    def call(self, instance: str, name: str, *args: Any, **kwargs: Any) -> object:
        results = [answer(_bound(side[instance], name, args, kwargs)) for side in self.sides]
        first = results[0]
        self.log.append(f"{self.clock()} {instance}.{name}{args} {kwargs} -> {first}")
        for word in words(first):
            self.counts[f"{name} {word}"] += 1
        for house, result in zip(self.houses, results[1:], strict=True):
            # Two times in different zones are equal, and so are 1 and True.
            same = (result, repr(result)) == (first, repr(first))
            named = same and self._names(first, result, name, args, kwargs)
            assert named, (
                f"{self.history()}\nsimulation: {first!r} {getattr(first, 'text', '')}\n"
                f"PostgreSQL {house.database.server.full}: {result!r} {getattr(result, 'text', '')}"
            )
        return first

    def _names(self, ours: Any, theirs: Any, name: str, args: Any, kwargs: Any) -> bool:
        """Two errors name the same argument, unless the client itself refused: it looks at the
        types of all arguments before the functions look at their values."""
        if not isinstance(theirs, Refusal) or name in REPORTS:
            return True
        try:
            getattr(AllCalls("i"), name)(*args, **kwargs)
        except InvalidArgument:
            return True
        argument = ours.text.rpartition(": ")[2]
        return argument in theirs.text or not _NAMED.search(theirs.text)

    def close(self) -> None:
        super().close()
        for row in self.sides[0]["shop"]._reconcile.reconcile_finding.values():
            self.counts[f"finding {row.type}"] += 1

    def standby(self, on: bool) -> None:
        self.log.append(f"standby {on}")
        self.memory.standby = on
        for house in self.houses:
            house.admin.execute(f"set default_transaction_read_only = {'on' if on else 'off'}")

    def plant(self, table: str, row: Any) -> None:
        """A row that no function would write."""
        self.log.append(f"plant {row}")
        columns = {name: getattr(row, name) for name in row.__slots__}
        for house in self.houses:
            house.admin.execute(
                f"insert into trex.{table} ({', '.join(columns)})"
                f" values ({', '.join(['%s'] * len(columns))})",
                list(columns.values()),
            )
        ours = getattr(self.sides[0]["shop"]._authority, table)
        key = tuple(columns.values())[: 3 if table == "usage_counter" else 2]
        self.memory.put(ours, key, row)


class WholeMachine(Machine):
    """Calls of everything that there is."""

    worlds = WholeWorlds
    w: WholeWorlds

    @initialize()
    def begin_history(self) -> None:
        self.twist = ""
        self.r = random.Random(0)
        self.repeatable: list[tuple[str, Any, Any]] = []
        super().begin_history()
        self.lived_in()

    def lived_in(self) -> None:
        """Something of everything, so that later steps find what they are about."""
        self.step(0, "machine_load", "m", M, **WHO)
        limits: tuple[dict[str, Any], ...] = (
            {}, {"uses_max": 2}, {"devices_max": 1}, {"valid_for": timedelta(days=1)},
        )  # fmt: skip
        for number, more in enumerate(limits, 1):
            self.step(
                0, "register_order", "acct_1", f"in_{number}", f"ord_{number}", **self.sold(number),
                **more,
            )  # fmt: skip
            self.step(
                0, "receive", "stripe", "acct_1", f"E{number}", "paid", f"in_{number}", b"raw",
                {"n": number},
            )  # fmt: skip
        claims = self.step(0, "claim", "w0", 10, box="inbox")
        for number, claim in enumerate(claims[:3], 1):  # type: ignore[index]
            self.step(
                0, "finalize_paid", claim.message_id, claim.fence, account="acct_1",
                invoice_id=f"in_{number}", order_id=f"ord_{number}", status="paid",
            )  # fmt: skip
        self.step(
            0, "transition", "m", "e1", "open", 0, "op0", actor="a", role="buyer", reason="r",
            amount=9,
        )  # fmt: skip

    def sold(self, number: int) -> dict[str, Any]:
        return {
            "seller": SELLERS[number % 2], "buyer": "b1", "item": "plan", "currency": "USD",
            "amount": Decimal("10.00"),
        }  # fmt: skip

    def step(self, n: int, name: str, *args: Any, **kwargs: Any) -> object:
        instance = _at((*["shop"] * 15, "other"), n)
        twist, self.twist = self.twist, ""
        if twist == "foreign" and name not in UNSCOPED:
            instance = self.r.choice(("foreign", "nowhere"))
        elif twist == "odd" and name != "unbind":
            args, kwargs = self.odd(args, kwargs)
        if twist == "standby":
            self.w.standby(True)
        try:
            result = self.w.call(instance, name, *args, **kwargs)
        finally:
            if twist == "standby":
                self.w.standby(False)
        self.w.compare()
        self.counts["steps"] += 1
        self.counts[f"twisted {twist}"] += twist != ""
        self.repeatable.append((name, args, kwargs))
        return result

    def odd(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The same arguments, one of them odd."""
        which = self.r.randrange(len(args) + len(kwargs) or 1)
        value = self.r.choice(ODD)
        if which < len(args):
            return (*args[:which], value, *args[which + 1 :]), kwargs
        return args, {
            key: value if number == which - len(args) else old
            for number, (key, old) in enumerate(kwargs.items())
        }

    # What there is

    @property
    def shop(self) -> Any:
        client: MemoryKernel = self.w.sides[0]["shop"]
        return client

    def ours(self, table: dict[Any, Any]) -> list[Any]:
        """The rows of the shop, in the order of their keys."""
        key = self.w.keys["shop"]
        return [row for where, row in sorted(table.items()) if where[0] == key]

    def one(self, r: random.Random, rows: Sequence[Any], name: str, *other: Any) -> Any:
        """Mostly a column of an existing row."""
        if rows and r.random() < 0.9:
            return getattr(r.choice(rows), name)
        return r.choice(other)

    def an_event(self, r: random.Random) -> tuple[int, int, str]:
        """An inbox message with a fence and its account: mostly a claim that is open."""
        events = self.ours(self.shop._inbox.inbox_event)
        delivery = self.w.memory.delivery
        live, ended = [], []
        for event in events:
            where = (event.instance_key, event.message_id)
            row, receipt = delivery.get(where), self.w.memory.receipt.get(where)
            if row is not None and row.lease_until is not None:
                live.append((event.message_id, row.fence, event.account))
            fences = self.w.memory.outcome_fences.get(where, [])
            ended += [(event.message_id, fence, event.account) for fence in fences]
            if receipt is not None:
                ended.append((event.message_id, receipt.fence, event.account))
        chosen = r.random()
        if live and chosen < 0.75:
            return r.choice(live)
        if ended and chosen < 0.9:
            return r.choice(ended)
        if events and chosen < 0.96:
            event = r.choice(events)
            return event.message_id, r.choice((1, 2**50)), event.account
        return r.randrange(1, 60), r.choice((1, 2**42 + 1)), r.choice(ACCOUNTS)

    # Inbox

    def receive(self, r: random.Random) -> None:
        event = r.choice((*[f"E{r.randrange(1, 14)}"] * 9, None))
        self.step(
            r.randrange(64), "receive", r.choice(("stripe", "stripe", "stripe", "paddle")),
            r.choice(ACCOUNTS), event, r.choice(("paid", "cancelled")),
            r.choice((*INVOICES, None)), r.choice((b"raw", b"raw", b"raw2", b"")),
            r.choice(({}, {"n": 1}, [1, "x"], Decimal("1.50"))),
            key_id=r.choice((None, "k1", "k2")),
        )  # fmt: skip

    def claim_inbox(self, r: random.Random) -> None:
        self.step(
            r.randrange(64), "claim", r.choice(("w1", "w2")), r.choice((1, 2, 10)), box="inbox",
            lease=r.choice((None, None, timedelta(seconds=2), timedelta(seconds=60))),
            correlation_id=r.choice((None, None, None, "in_1")),
        )  # fmt: skip

    def end_inbox(self, r: random.Random) -> None:
        """Park, retry, postpone ... what is claimed in the inbox."""
        message_id, fence, _ = self.an_event(r)
        name = r.choice((
            "dead_letter", "fail", "retry", "retry", "mark_unknown", "conflict", "release",
            "postpone", "complete", "complete_duplicate", "hold", "mark_sent",
        ))  # fmt: skip
        more: dict[str, Any] = {"on_lost": r.choice(("raise", "raise", "report"))}
        if name == "postpone":
            more["delay"] = timedelta(seconds=r.choice((0, 1, 60, 90_000)))
        elif name == "hold":
            more = {}
        self.step(0, name, message_id, fence, **more)

    def redrive_inbox(self, r: random.Random) -> None:
        """What `receive` revives as well; and what only `resolve` may."""
        rows = [
            row for row in self.ours(self.w.memory.delivery) if row.parked and row.box == "inbox"
        ]
        chosen = self.one(r, rows, "message_id", 1, 2, 999)
        if r.random() < 0.5:
            self.step(0, "redrive", [chosen], **WHO)
        else:
            how = r.choice(("delivered", "resend", "absent", "abandon"))
            self.step(0, "resolve", chosen, how, evidence="e", **WHO)

    def read_inbox(self, r: random.Random) -> None:
        events = self.ours(self.shop._inbox.inbox_event)
        message_id = self.one(r, events, "message_id", 1, 999)
        if r.random() < 0.3:
            self.step(0, "inbox_event", message_id)
        elif r.random() < 0.5 or not events:
            self.step(0, "inbox_status", message_id)
        else:
            event = r.choice(events)
            self.step(
                0, "inbox_status", provider=event.provider, account=event.account,
                event_id=r.choice((event.event_id, event.event_id, "E99")),
            )  # fmt: skip

    # Rights

    def register_order(self, r: random.Random) -> None:
        number = r.randrange(1, 7)
        more: dict[str, Any] = r.choice((
            {}, {}, {"uses_max": r.choice((1, 2))}, {"devices_max": 1},
            {"valid_for": timedelta(seconds=r.choice((1, 10, 3600, 3_500_000)))},
        ))  # fmt: skip
        sold = self.sold(number)
        if r.random() < 0.3:
            sold["amount"] = r.choice((Decimal("10"), Decimal("10.001"), Decimal(10) ** 18, 0, 3))
            sold["currency"] = r.choice(("USD", "JPY", "XXX"))
        self.step(
            r.randrange(64), "register_order", r.choice(ACCOUNTS), f"in_{number}", f"ord_{number}",
            **sold, **more,
        )  # fmt: skip

    def record_payment(self, r: random.Random) -> None:
        self.step(
            0, "record_payment", r.choice(ACCOUNTS), r.choice(INVOICES),
            r.choice(("paid", "paid", "unpaid", "refunded")),
        )  # fmt: skip

    def an_order(self, r: random.Random, account: str) -> tuple[str, str]:
        """Invoice and order: mostly of what was ordered in this account."""
        rows = [
            row for row in self.ours(self.shop._authority.order_invoice) if row.account == account
        ]
        if rows and r.random() < 0.85:
            row = r.choice(rows)
            return row.invoice_id, row.order_id if r.random() < 0.95 else "ord_9"
        return r.choice(INVOICES), r.choice(("ord_1", "ord_9"))

    def finalize_paid(self, r: random.Random) -> None:
        message_id, fence, account = self.an_event(r)
        invoice, order = self.an_order(r, account)
        if r.random() < 0.04:
            account = r.choice(("acct_2", "acct_3"))
        self.step(
            0, "finalize_paid", message_id, fence, account=account, invoice_id=invoice,
            order_id=order, status=r.choice((*["paid"] * 8, "unpaid", "refunded")),
        )  # fmt: skip

    def cancel(self, r: random.Random) -> None:
        message_id, fence, account = self.an_event(r)
        invoice, _ = self.an_order(r, account)
        self.step(
            0, "apply_provider_cancel", message_id, fence, account=account, invoice_id=invoice,
            cause=r.choice(("cancelled", "expired", "revoked")), evidence="asked",
        )  # fmt: skip

    def refund(self, r: random.Random) -> None:
        message_id, fence, account = self.an_event(r)
        invoice, _ = self.an_order(r, account)
        self.step(
            0, "apply_refund", message_id, fence, account=account, invoice_id=invoice,
            refund_id=f"r{r.randrange(1, 9)}", currency=r.choice((*["USD"] * 8, "EUR")),
            amount=r.choice((Decimal("10.00"), Decimal("4"), Decimal("6.0"), Decimal("10.01"))),
            evidence="asked",
        )  # fmt: skip

    def update_subscription(self, r: random.Random) -> None:
        now = self.w.clock()
        self.step(
            0, "update_subscription", r.choice(ACCOUNTS), r.choice(("sub_1", "sub_2")),
            r.choice(INVOICES), status=r.choice(("active", "past_due", "cancelled", "expired")),
            period_end=now + timedelta(days=r.choice((-1, 0, 30))),
            asked_at=now - timedelta(seconds=r.choice((0, 0, 1, 3600, -1))),
        )  # fmt: skip

    def expire(self, r: random.Random) -> None:
        self.step(0, "expire_entitlements", limit=r.choice((1, 1000)), **WHO)

    def issue_capability(self, r: random.Random) -> None:
        licences = self.ours(self.shop._authority.licence)
        more: dict[str, Any] = r.choice((
            {}, {}, {"lifetime": timedelta(seconds=r.choice((1, 60, 2_592_000, 2_592_001)))},
        ))  # fmt: skip
        self.step(
            0, "issue_capability", f"c{r.randrange(1, 21)}",
            self.one(r, licences, "licence_id", "l9"), r.choice(SUBJECTS), **more,
        )  # fmt: skip

    def execute_licence(self, r: random.Random) -> None:
        capabilities = self.ours(self.shop._authority.capability)
        fresh = [c for c in capabilities if c.consumed_by is None]
        usages = self.ours(self.shop._authority.license_usage)
        usage_id = f"u{r.randrange(1, 60)}"
        chosen = r.choice(fresh) if fresh and r.random() < 0.7 else None
        capability_id = chosen.capability_id if chosen else self.one(
            r, capabilities, "capability_id", "c99"
        )  # fmt: skip
        subject = chosen.subject if chosen and r.random() < 0.8 else r.choice(SUBJECTS)
        if usages and r.random() < 0.15:
            used = r.choice(usages)
            usage_id, subject = used.usage_id, used.subject
            if r.random() < 0.7:
                capability_id = used.capability_id
        self.step(
            0, "execute_licence", capability_id, subject, usage_id,
            thumbprint=r.choice((None, "t1", "t2")), on_refused=r.choice(("raise", "report")),
        )  # fmt: skip

    def bind_device(self, r: random.Random) -> None:
        licences = self.ours(self.shop._authority.licence)
        devices = [row for row in licences if row.devices_max is not None]
        self.step(
            0, "bind_device",
            self.one(r, devices if r.random() < 0.6 else licences, "licence_id", "l9"),
            r.choice(("t1", "t2", "t3")),
        )  # fmt: skip

    def read_rights(self, r: random.Random) -> None:
        name = r.choice((
            "list_entitlements", "list_usage", "list_counters", "list_devices",
            "list_security_events",
        ))  # fmt: skip
        viewer = Viewer(
            r.choice((*["admin"] * 4, *["seller"] * 4, "buyer", None, "root")),
            r.choice((*["acct_1"] * 8, "acct_2", None)), r.choice(("s1", "s2", "s1", None)),
        )  # fmt: skip
        client: Any = self.w.sides[0]["shop"]
        ids = [line.id for line in getattr(client, name)(Viewer("admin", "acct_1"), "acct_1")] if (
            not self.w.failed
        ) else []  # fmt: skip
        self.step(
            0, name, viewer, r.choice((*["acct_1"] * 8, "acct_2")),
            seller=r.choice((None, None, "s1", "s2")), limit=r.choice((1, 2, 100)),
            after=r.choice(("", "", *ids)),
        )  # fmt: skip

    def plant(self, r: random.Random) -> None:
        """A counter that nobody counted, or a second right for one invoice."""
        rights = self.ours(self.shop._authority.entitlement)
        if self.w.blocks or not rights:
            return
        if r.random() < 0.5:
            self.plant_counter(r.choice(rights), r.choice(("2029-01", "2029-02")))
        else:
            self.plant_right(r.choice(rights), r.choice((None, self.w.clock())))

    def plant_counter(self, right: EntitlementRow, period: str) -> None:
        key = (right.instance_key, right.entitlement_id, period)
        if key not in self.shop._authority.usage_counter:
            row = UsageCounterRow(*key, right.account, right.seller, 1, self.w.clock())
            self.w.plant("usage_counter", row)

    def plant_right(self, right: EntitlementRow, until: datetime | None) -> None:
        key = (right.instance_key, f"z{right.invoice_id}")
        if key not in self.shop._authority.entitlement:
            now = self.w.clock()
            row = EntitlementRow(
                *key, right.account, right.invoice_id, right.order_id, right.seller, right.buyer,
                right.item, "active", 1, now, until, now,
            )  # fmt: skip
            self.w.plant("entitlement", row)

    # Operations

    def machine_load(self, r: random.Random) -> None:
        machine = r.choice((*["m"] * 8, "n", "effect"))
        definition = r.choice(DEFINITIONS)
        self.step(r.randrange(64), "machine_load", machine, definition, **WHO)

    def transition(self, r: random.Random) -> None:
        done = [step for step in self.repeatable if step[0] == "transition"]
        if done and r.random() < 0.15:
            self.step(0, "transition", *(chosen := r.choice(done))[1], **chosen[2])
            return
        machine = r.choice((*["m"] * 12, "n", "x"))
        entity = f"e{r.randrange(1, 6)}"
        tables = self.shop._operations
        row = tables.entity.get((self.w.keys["shop"], machine, entity))
        version = row.version if row else 0
        if r.random() < 0.15:
            version = r.choice((0, 1, 2, 2**63 - 1))
        event = "open" if row is None and r.random() < 0.8 else r.choice(
            ("open", "hold", "go_on", "pay", "pay", "pay", "close")
        )  # fmt: skip
        known = self.ours(tables.operation)
        operation = f"op{len(self.repeatable)}" if r.random() < 0.9 else (
            self.one(r, known, "operation_id", "op1")
        )  # fmt: skip
        self.step(
            0, "transition", machine, entity, event, version, operation, actor="a",
            role=r.choice(("clerk", "clerk", "buyer", "other")), reason="r",
            amount=r.choice(AMOUNTS),
            arguments=r.choice((None, {}, {"a": [1, Decimal("1.0")]}, [])),
            on_refused=r.choice(("raise", "report")),
        )  # fmt: skip

    def correct(self, r: random.Random) -> None:
        done = [step for step in self.repeatable if step[0] == "correct"]
        if done and r.random() < 0.15:
            self.step(0, "correct", *(chosen := r.choice(done))[1], **chosen[2])
            return
        operations = self.ours(self.shop._operations.operation)
        chosen = self.one(r, operations, "operation_id", "op999")
        made = self.shop._adjustments(chosen)
        balance = made[-1].balance if made else None
        version = len(made) if r.random() < 0.85 else r.choice((0, 1, 5))
        self.step(
            0, "correct", chosen, f"a{r.randrange(1, 80)}", r.choice(("fee", "fix")),
            r.choice(AMOUNTS[3:]), version, actor="a", role="clerk", reason="r", evidence="e",
            expected_balance=r.choice((None, None, None, balance, Decimal("1.0"))),
            on_refused=r.choice(("raise", "report")),
        )  # fmt: skip

    def read_operations(self, r: random.Random) -> None:
        entity = r.choice(("e1", "e2", "e3", "e9"))
        machine = r.choice(("m", "m", "m", "n", "x"))
        limit, after = r.choice((1, 2, 100)), r.choice((0, 0, 1, 3))
        match r.randrange(8):
            case 0:
                self.step(0, "machine_show", machine)
            case 1:
                self.step(0, "entity_status", machine, entity)
            case 2:
                self.step(0, "entity_history", machine, entity, limit=limit, after=after)
            case 3:
                operations = self.ours(self.shop._operations.operation)
                self.step(0, "operation_history", self.one(r, operations, "operation_id", "op999"))
            case 4 | 5:
                self.step(
                    0, "effect_states",
                    r.choice((
                        None, None, "intent_recorded", "in_progress", "waiting", "failed",
                        "rejected", "unknown", "succeeded", "lost",
                    )),
                    limit=limit, after=after, box=r.choice(("outbox", "inbox")),
                )  # fmt: skip
            case _:
                self.step(0, "overdue", limit=limit)

    # Reconciliation

    def reconcile(self, r: random.Random) -> None:
        runs = self.ours(self.shop._reconcile.reconcile_run)
        unfinished = [run for run in runs if run.state == "running"]
        if unfinished and r.random() < 0.8:
            run_id = r.choice(unfinished).run_id
        else:
            run_id = r.choice((None, None, None, 1, 99))
        self.step(
            r.randrange(64), "reconcile", run_id=run_id, limit=r.choice((1, 3, 7, 1000, 1000)),
            longest_stay=timedelta(seconds=r.choice((1, 1, 60, 3600))), **WHO,
        )  # fmt: skip

    def read_findings(self, r: random.Random) -> None:
        findings = self.ours(self.shop._reconcile.reconcile_finding)
        if r.random() < 0.3:
            self.step(
                0, "reconcile_reports", limit=r.choice((1, 100)), before=r.choice((None, None, 2))
            )
            return
        self.step(
            0, "reconcile_findings", r.choice((None, None, 1, 2)),
            state=r.choice((None, None, "needs_review", "repaired")), limit=r.choice((1, 2, 100)),
            after=r.choice(("", "", *(f.finding_id for f in findings))),
        )  # fmt: skip

    # Installation

    def install(self, r: random.Random) -> None:
        match r.randrange(3):
            case 0:
                number = r.randrange(2)
                self.step(
                    0, "register_currency", f"T{Worlds.number}X{number}",
                    r.choice((2, 2, 3)), **WHO,
                )  # fmt: skip
            case 1:
                self.step(0, r.choice(("bind", "unbind")), r.choice(("somebody", "nobody")), **WHO)
            case _:
                self.step(0, "status", idempotency_key=r.choice(("k1", "k2", "none")))

    def time_goes_on(self, r: random.Random) -> None:
        self.w.advance(r.choice((0.000001, 1, 3, 12, 40, 61, 301, 4000, 90_000, 1_300_000)))

    def again(self, r: random.Random) -> None:
        """A call of this history once more, as after a lost answer."""
        name, args, kwargs = r.choice(self.repeatable[-40:])
        self.step(0, name, *args, **kwargs)

    @rule(drawn=st.binary(min_size=8, max_size=8))
    def do(self, drawn: bytes) -> None:
        self.r = r = random.Random(drawn)
        if self.w.blocks and (r.random() < 0.3 or (self.w.failed and r.random() < 0.8)):
            self.end(r.randrange(2), 0)
            return
        twisted = r.random()
        self.twist = "odd" if twisted < 0.1 else "foreign" if twisted < 0.13 else ""
        if 0.13 <= twisted < 0.16 and not self.w.blocks:
            self.twist = "standby"
        if r.random() < 0.3:
            r.choice(_KERNEL)(self, r.randrange(2**16), r.randrange(2**16))
        else:
            r.choice(_RULES)(self, r)
        self.twist = ""


_KERNEL: list[Callable[[Machine, int, int], None]] = [
    Machine.enqueue, Machine.enqueue, Machine.enqueue_many, Machine.claim, Machine.claim,
    Machine.an_outcome, Machine.an_outcome, Machine.record, Machine.exchange, Machine.extend,
    Machine.sent_or_held, Machine.redrive_or_expedite, Machine.resolve, Machine.report_stale,
    Machine.adopt, Machine.change_policy, Machine.operate, Machine.operate, Machine.read,
    Machine.restart, Machine.begin,
]  # fmt: skip
_RULES: list[Rule] = [
    *[WholeMachine.receive] * 4, *[WholeMachine.claim_inbox] * 4, *[WholeMachine.end_inbox] * 4,
    WholeMachine.redrive_inbox, *[WholeMachine.read_inbox] * 2, *[WholeMachine.register_order] * 2,
    WholeMachine.record_payment, *[WholeMachine.finalize_paid] * 4, *[WholeMachine.cancel] * 2,
    *[WholeMachine.refund] * 3, *[WholeMachine.update_subscription] * 2, WholeMachine.expire,
    *[WholeMachine.issue_capability] * 3, *[WholeMachine.execute_licence] * 5,
    *[WholeMachine.bind_device] * 2, *[WholeMachine.read_rights] * 5, WholeMachine.plant,
    *[WholeMachine.machine_load] * 2, *[WholeMachine.transition] * 6, *[WholeMachine.correct] * 5,
    *[WholeMachine.read_operations] * 5, *[WholeMachine.reconcile] * 4,
    *[WholeMachine.read_findings] * 2, WholeMachine.install, *[WholeMachine.time_goes_on] * 5,
    *[WholeMachine.again] * 3,
]  # fmt: skip
