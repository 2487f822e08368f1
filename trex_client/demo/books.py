"""Afterwards: what the databases say, against the input. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, LiteralString

from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from trex_client.demo.faults import Plan
    from trex_client.demo.place import Place
    from trex_client.demo.play import Outcome

_KINDS = (
    "retry", "unknown", "lease_expired", "released", "postponed", "conflict", "permanent",
    "dead_letter",
)  # fmt: skip
_SHOWN = 12


@dataclass(slots=True)
class Table:
    """Rows with the same names; `name` is its NDJSON name."""

    name: str
    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class Books:
    """All tables, and what is wrong: nothing, when all is well."""

    tables: list[Table]
    checks: list[tuple[str, bool, str]]

    @property
    def good(self) -> bool:
        """Whether everything is as promised."""
        return all(passed for _, passed, _ in self.checks)


def audit(place: Place, outcome: Outcome, plan: Plan) -> Books:
    """Read both databases and compare them with the input."""
    instances = sorted({instance for instance, _ in outcome.entries})
    with place.connect("trex_owner") as dba, place.connect("ledger", ledger=True) as ledger:
        auditor = _Auditor(dba, ledger, outcome, plan, instances)
        with place.connect("app") as conn:
            row = conn.execute("select count(*) from shop.movement").fetchone()
            auditor.business_rows = row[0] if row else 0
        with place.connect("operator") as conn:
            clients = [PostgresClient(conn, instance) for instance in instances]
            tables = [
                auditor.outcomes(),
                auditor.unknown(),
                auditor.lost_claims(),
                auditor.parked(clients),
                auditor.cash(clients),
                auditor.faults(),
                auditor.totals(),
            ]
        auditor.books()
    return Books(tables, auditor.checks)


class _Auditor:
    def __init__(
        self,
        dba: psycopg.Connection[Any],
        ledger: psycopg.Connection[Any],
        outcome: Outcome,
        plan: Plan,
        instances: Sequence[str],
    ) -> None:
        self._dba = dba
        self._ledger = ledger
        self._outcome = outcome
        self._plan = plan
        self._instances = instances
        self.checks: list[tuple[str, bool, str]] = []
        self.business_rows = 0
        self._left_sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        self._open_sums = Decimal(0)
        self._parked: dict[tuple[str, str], str] = {}
        self._ends: Counter[str] = Counter()

    def check(self, what: str, passed: bool, detail: str = "") -> None:
        """Note one promise and whether it was kept."""
        self.checks.append((what, passed, detail))

    # tables

    def outcomes(self) -> Table:
        """Every claim has one end; counted per instance."""
        ends: dict[str, Counter[str]] = {name: Counter() for name in self._instances}
        for instance, kind, number in self._dba.execute(
            "select instance_key, kind, count(*) from trex.outcome group by 1, 2"
            " union all select instance_key,"
            " case when duplicate then 'duplicate' else 'delivered' end, count(*)"
            " from trex.receipt group by 1, 2"
            " union all select instance_key, 'claim_lost', count(*) from trex.stale_report"
            " group by 1"
            " union all select instance_key, 'written', count(*) from trex.message group by 1"
        ):
            ends[instance][kind] += number
            self._ends[kind] += number
        names = ("written", "delivered", "duplicate", *_KINDS, "claim_lost")
        used = [name for name in names if self._ends[name]]
        return Table(
            "outcomes",
            "Outcomes per instance",
            [{"instance": i, **{name: ends[i][name] for name in used}} for i in self._instances],
            "Every claim ends once: delivered, duplicate, or what made the next attempt necessary."
            " claim_lost: reports that came too late and changed nothing.",
        )

    def unknown(self) -> Table:
        """Messages whose outcome was unknown once, by cause, and how each was settled."""
        rows = self._dba.execute(
            """
            with first as (
                select distinct on (o.instance_key, o.message_id)
                    o.instance_key, o.message_id, o.kind, o.reason
                from trex.outcome as o
                where o.kind in ('unknown', 'lease_expired')
                order by o.instance_key, o.message_id, o.fence
            )
            select
                case f.kind when 'unknown' then 'no answer: ' || f.reason
                    else 'the lease of its worker ended' end,
                case
                    when r.confirmed_by = 'lookup' then 'found in the ledger by its key'
                    when r.confirmed_by = 'same_key' and r.duplicate
                        then 'sent again with the same key: the ledger had it'
                    when r.confirmed_by = 'same_key'
                        then 'sent again with the same key: the ledger took it now'
                    when r.confirmed_by = 'answer' then 'certainly not there, sent again'
                    when r.confirmed_by = 'operator' then 'operator: found in the ledger'
                    when d.parked = 'unknown' then 'OPEN: needs an operator'
                    when d.parked is not null then 'parked: ' || d.parked
                    else 'OPEN'
                end,
                count(*)
            from first as f
            left join trex.receipt as r using (instance_key, message_id)
            left join trex.delivery as d using (instance_key, message_id)
            group by 1, 2 order by 1, 2
            """
        ).fetchall()
        self.check(
            "every unknown outcome was settled",
            not any(settled.startswith("OPEN") for _, settled, _ in rows),
        )
        by_operator = Counter(one.resolution for one in self._outcome.settled)
        note = ""
        if by_operator:
            done = " and ".join(f"{name} {number}" for name, number in sorted(by_operator.items()))
            note = (
                "Send-once movements that nobody may repeat were parked as unknown; the operator"
                f" looked into the ledger and resolved them: {done}."
            )
        return Table(
            "unknown",
            "Unknown outcomes, and how each was settled",
            [{"cause": c, "settled": s, "movements": n} for c, s, n in rows],
            note,
        )

    def lost_claims(self) -> Table:
        """Late reports, refused and kept as evidence."""
        rows = self._dba.execute(
            """
            select s.instance_key, s.message_id, s.fence, s.result,
                coalesce(r.fence, d.fence) as current_fence,
                case when r.message_id is null then d.parked
                    when r.duplicate then 'duplicate' else 'delivered' end as ended,
                r.confirmed_by
            from trex.stale_report as s
            left join trex.receipt as r using (instance_key, message_id)
            left join trex.delivery as d using (instance_key, message_id)
            order by 1, 2, 3 limit %s
            """,
            (_SHOWN,),
        ).fetchall()
        more = self._ends["claim_lost"] - len(rows)
        names = ("instance", "message_id", "fence", "reported", "newer_fence", "ended", "by")
        return Table(
            "lost_claims",
            "Lost claims: what a worker reported after its lease was taken over",
            [dict(zip(names, row, strict=True)) for row in rows],
            f"and {more} more" if more > 0 else "",
        )

    def parked(self, clients: Sequence[PostgresClient]) -> Table:
        """What waits for an operator, and why."""
        table = Table("parked", "Parked, and why")
        number = 0
        for client in clients:
            after = 0
            while page := client.list_parked(limit=1000, after=after):
                after = page[-1].message_id
                for one in page:
                    number += 1
                    self._parked[client.instance_key, one.idempotency_key] = one.parked
                    if len(table.rows) < _SHOWN:
                        table.rows.append(
                            {
                                "instance": client.instance_key,
                                "movement": one.idempotency_key,
                                "parked": one.parked,
                                "reason": one.reason,
                                "account": one.account,
                                "currency": one.currency,
                                "cash_delta": one.cash_delta,
                                "attempts": one.attempts,
                            }
                        )
        if number > len(table.rows):
            table.note = f"and {number - len(table.rows)} more"
        return table

    def cash(self, clients: Sequence[PostgresClient]) -> Table:
        """`pending_cash_delta` of every instance: what the ledger doesn't have."""
        table = Table("pending_cash_delta", "pending_cash_delta: what the ledger doesn't have")
        for client in clients:
            for one in client.pending_cash_delta():
                self._left_sums[one.account, one.currency] += one.skipped
                self._open_sums += abs(one.pending) + abs(one.uncertain)
                if len(table.rows) < _SHOWN:
                    table.rows.append(
                        {
                            "instance": client.instance_key,
                            "account": one.account,
                            "currency": one.currency,
                            "pending": one.pending,
                            "uncertain": one.uncertain,
                            "skipped": one.skipped,
                            "entries": one.entries,
                        }
                    )
        self.check("nothing is left pending or uncertain", not self._open_sums)
        return table

    def faults(self) -> Table:
        """Every promised fault, and how often it happened: by the ledger's own count of calls, and
        for those that park by what was parked.
        """
        table = Table("faults", "Faults: what was promised, and what happened")
        names = {entry.wire_key: key for key, entry in self._outcome.entries.items()}
        parks = {"conflict": "conflict", "refused": "permanent"}
        for card in dict.fromkeys(self._plan.cards.values()):
            keys = [
                key for key, dealt in self._plan.cards.items() if dealt is card and key in names
            ]
            if not keys:
                continue
            # A conflict can also be met without a call: by the look-up of a claim that was lost
            # before it sent anything.
            number = sum(
                self._outcome.ledger_calls[key] >= max(1, len(card.calls))
                if card.always is None
                else self._parked.get(names[key]) == parks[card.always]
                for key in keys
            )
            table.rows.append({"fault": card.name, "promised": len(keys), "happened": number})
            self.check(f"fault: {card.name}", number == len(keys), f"{number} of {len(keys)}")
        lost = self._ends["claim_lost"]
        for name, worker, happened in (
            ("worker killed in the middle of its batch", self._outcome.killed, True),
            ("worker late, after its claims were taken over", self._outcome.woken, lost > 0),
        ):
            if worker is not None:
                table.rows.append({"fault": name, "promised": 1, "happened": int(happened)})
                self.check(f"fault: {name}", happened)
        left_out = [*self._plan.left_out, *self._outcome.left_out]
        if left_out:
            table.note = f"The file has too few movements for: {', '.join(left_out)}."
        return table

    def totals(self) -> Table:
        """The ledger per account and currency against the input: equal to the last digit."""
        wanted: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        movements: Counter[str] = Counter()
        for entry in self._outcome.entries.values():
            wanted[entry.account] += entry.amount
            movements[entry.account[1]] += 1
        booked: dict[tuple[str, str], Decimal] = {
            (account, currency): total
            for account, currency, total in self._ledger.execute(
                "select account, currency, sum(amount) from ledger.entry"
                " where side = 'account' and key <> all (%s) group by 1, 2",
                (list(self._outcome.foreign),),
            )
        }
        names = sorted(set(wanted) | set(booked))
        table = Table("totals", "The ledger against the input")
        differences = []
        for currency in sorted({currency for _, currency in names}):
            mine = [name for name in names if name[1] == currency]
            given = sum((wanted[name] for name in mine), Decimal(0))
            there = sum((booked.get(name, Decimal(0)) for name in mine), Decimal(0))
            left = sum((self._left_sums[name] for name in mine), Decimal(0))
            wrong = [
                name
                for name in mine
                if wanted[name] - self._left_sums[name] != booked.get(name, Decimal(0))
            ]
            differences += wrong
            table.rows.append(
                {
                    "currency": currency,
                    "movements": movements[currency],
                    "input": given,
                    "parked": left,
                    "ledger": there,
                    "difference": given - left - there,
                    "accounts": len(mine),
                    "equal": len(mine) - len(wrong),
                }
            )
        table.note = "; ".join(
            f"{account} {currency}: input {wanted[account, currency]}, parked"
            f" {self._left_sums[account, currency]}, ledger {booked.get((account, currency), 0)}"
            for account, currency in differences[:_SHOWN]
        )
        self.check(
            "ledger totals per account and currency equal the input",
            not differences,
            f"{len(names)} compared, {len(differences)} differ",
        )
        return table

    # checks without a table

    def books(self) -> None:
        """Each movement posted once; nothing else posted; the books of both sides are whole."""
        outcome = self._outcome
        posted: Counter[str] = Counter()
        wrong_amounts = 0
        by_key = {entry.wire_key: entry for entry in outcome.entries.values()}
        foreign: dict[str, tuple[str, str, Decimal]] = {}
        for key, account, currency, amount in self._ledger.execute(
            "select key, account, currency, amount from ledger.entry where side = 'account'"
        ):
            if key in outcome.foreign:
                foreign[key] = (account, currency, amount)
                continue
            posted[key] += 1
            entry = by_key.get(key)
            same = entry is not None and (entry.account, entry.amount) == (
                (account, currency),
                amount,
            )
            wrong_amounts += not same
        due = {e.wire_key for key, e in outcome.entries.items() if key not in self._parked}
        missing = len(due - set(posted))
        extra = len(set(posted) - due)
        twice = sum(number > 1 for number in posted.values())
        self.check(
            "each movement posted once",
            not (missing or extra or twice or wrong_amounts),
            f"{len(posted)} posted, {missing} missing, {extra} too many, {twice} twice,"
            f" {wrong_amounts} with other content",
        )
        self.check(
            "what others had posted under our keys is as it was",
            foreign == outcome.foreign,
            f"{len(outcome.foreign)} posted, {len(foreign)} found",
        )
        counts = {
            "messages": self._one("select count(*) from trex.message"),
            "receipts and parked": self._one(
                "select (select count(*) from trex.receipt)"
                " + (select count(*) from trex.delivery where parked is not null)"
            ),
            "business rows": self.business_rows,
        }
        self.check(
            "a business row, a message and one end for each movement",
            set(counts.values()) == {len(outcome.entries)},
            ", ".join(f"{number} {name}" for name, number in counts.items()),
        )
        claims = self._one(
            "select (select coalesce(sum(attempt), 0) from trex.receipt)"
            " + (select coalesce(sum(attempts), 0) from trex.delivery)"
        )
        # What an operator resolved as delivered had its end before.
        ends = self._one(
            "select (select count(*) from trex.outcome)"
            " + (select count(*) from trex.receipt where confirmed_by <> 'operator')"
        )
        self.check("every claim has one end", claims == ends, f"{claims} claims, {ends} ends")
        out_of_order, ordered = self._out_of_order()
        if ordered:
            self.check(
                "ordering keys kept their order",
                not out_of_order,
                f"{ordered} keys, {out_of_order} out of order",
            )
        refused = len(outcome.reused) + len(outcome.invalid)
        lines = ", ".join(
            [
                *(f"line {line}: key reused with other content" for line in outcome.reused[:5]),
                *(f"line {line}: {what}" for line, what in outcome.invalid[:5]),
            ]
        )
        self.check("every movement of the file was accepted", not refused, lines)
        codes = [f"{w.name} {w.code}" for w in outcome.workers if w.part != "killed" and w.code]
        self.check("every other worker ended well", not codes, ", ".join(codes))

    def _out_of_order(self) -> tuple[int, int]:
        """Ordering keys whose movements were posted in another order than they were written, and
        how many keys there are. Keys with a parked movement went on without it and don't count.
        """
        query: LiteralString = (
            "select key, min(call_id) from ledger.call where result = 'posted' group by 1"
        )
        posted: dict[str, int] = dict(self._ledger.execute(query).fetchall())
        once_parked = {
            (instance, key)
            for instance, key in self._dba.execute(
                "select m.instance_key::text, m.idempotency_key::text from trex.message as m"
                " join trex.ledger_skip as s using (instance_key, message_id)"
            )
        }
        lines: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        skipped = set()
        for key, entry in self._outcome.entries.items():
            if entry.movement.ordering_key is not None:
                line = (entry.instance, entry.movement.ordering_key)
                if key in once_parked:
                    skipped.add(line)
                lines[line].append((self._outcome.message_ids[key], posted.get(entry.wire_key, 0)))
        wrong = 0
        for line, movements in lines.items():
            calls = [call for _, call in sorted(movements)]
            wrong += line not in skipped and calls != sorted(calls)
        return wrong, len(lines) - len(skipped)

    def _one(self, query: LiteralString) -> int:
        row = self._dba.execute(query).fetchone()
        return int(row[0]) if row else 0
