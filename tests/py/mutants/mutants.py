"""Faults put into the SQL on purpose: one entry of the list each, as textual patches.

A mutant names the patches (file under `sql`, old text, new text; the old text must occur exactly
once) and the kills (functions of `kills.py`) that have to find it. Entries that can't be put into
this design say why.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: the entry's name.
        patches: file, old text, new text.
        kills: what has to find it, the first that does is reported.
        codes: SQLSTATEs that are a verdict: a guard, a constraint or a deadlock that is known to
            stop this fault. With any other the patch itself is broken.
    """

    name: str
    patches: tuple[tuple[str, str, str], ...]
    kills: tuple[str, ...]
    codes: tuple[str, ...] = ()


def one(name: str, file: str, old: str, new: str, *kills: str, code: str | None = None) -> Mutant:
    """A mutant of one patch."""
    return Mutant(name, ((file, old, new),), kills, (code,) if code else ())


RECORD = "functions/internal/_record.sql"
DELIVER_ONE = "functions/internal/_deliver_one.sql"
TAKE = "functions/internal/_take.sql"
SIFT = "functions/internal/_sift.sql"
SETTLE = "functions/internal/_settle.sql"
ENTER = "functions/internal/_enter.sql"
EXTEND = "functions/outbox/extend.sql"
KERNEL = "migrations/0001.kernel.sql"
CLAIM = "functions/outbox/claim.sql"
EXCHANGE = "functions/outbox/exchange.sql"
ENQUEUE = "functions/outbox/enqueue.sql"
LICENCE = "functions/authority/execute_licence.sql"
LATE = "coalesce(d.lease_until <= p_now, false) as late"

MUTANTS: tuple[Mutant, ...] = (
    one(
        "no fence check",
        RECORD,
        "d.message_id = i.message_id and d.fence = i.fence\n",
        "d.message_id = i.message_id\n",
        "late_complete",
    ),
    Mutant(
        "no state check",
        (
            (
                RECORD,
                "d.fence = i.fence\n            and d.lease_until is not null\n",
                "d.fence = i.fence\n",
            ),
            # A row without a lease isn't late: else it dies of a null there.
            (
                RECORD,
                "d.lease_until <= p_now as late,\n            d.deferred",
                LATE + ",\n            d.deferred",
            ),
        ),
        ("second_end",),
    ),
    one(
        "no fence check (one delivery)",
        DELIVER_ONE,
        "            and d.fence = p_fence and d.lease_until is not null\n",
        "            and d.lease_until is not null\n",
        "late_complete",
    ),
    Mutant(
        "no state check (one delivery)",
        (
            (
                DELIVER_ONE,
                "            and d.fence = p_fence and d.lease_until is not null\n",
                "            and d.fence = p_fence\n",
            ),
            (DELIVER_ONE, "d.lease_until <= p_now as late", LATE),
        ),
        ("second_end",),
    ),
    one(
        "complete without instance filter (one delivery)",
        DELIVER_ONE,
        "where d.instance_key = p_instance_key and d.message_id = p_message_id\n",
        "where d.message_id = p_message_id\n",
        "other_instance",
        code="TX902",
    ),
    one(
        "check-then-act",
        RECORD,
        "        limit 1\n        for update\n",
        "        limit 1\n",
        "race_of_two_ends",
        code="TX902",
    ),
    one(
        "per-row counter as fence",
        CLAIM,
        "fence = v_epoch + nextval('trex.fence_seq')",
        "fence = greatest(d.fence, v_epoch) + 1",
        "rolled_back_claim",
    ),
    one(
        "per-row counter as fence (exchange)",
        EXCHANGE,
        "fence = v_epoch + nextval('trex.fence_seq')",
        "fence = greatest(d.fence, v_epoch) + 1",
        "rolled_back_exchange",
    ),
    Mutant(
        "fence drawn before the lock",
        (
            (
                CLAIM,
                "v_epoch := coalesce(v_entered.epoch, trex._epoch());",
                "v_epoch := coalesce(v_entered.epoch, trex._epoch()) + nextval('trex.fence_seq');",
            ),
            (CLAIM, "fence = v_epoch + nextval('trex.fence_seq')", "fence = v_epoch"),
        ),
        ("fence_after_the_lock",),
        ("TX902",),
    ),
    one(
        "sequence CACHE 10",
        KERNEL,
        "create sequence trex.fence_seq as bigint maxvalue 4398046511103 no cycle cache 1;",
        "create sequence trex.fence_seq as bigint maxvalue 4398046511103 no cycle cache 10;",
        "fences_of_two_sessions",
        code="TX902",
    ),
    one(
        "now() for leases",
        "functions/internal/_now.sql",
        "select clock_timestamp()",
        "select now()",
        "lease_by_the_clock",
    ),
    Mutant(
        "IN-subselect claim",
        (
            (
                CLAIM,
                "        from unnest(v_tids) u (tid)\n        where d.ctid = u.tid\n",
                (
                    "        where d.instance_key = p_instance_key and d.message_id in (\n"
                    "            select r.message_id from trex.delivery r\n"
                    "            where r.instance_key = p_instance_key and r.box = p_box\n"
                    "                and r.message_id > 0\n"
                    "                and r.deferred_until is null and r.lease_until is null\n"
                    "            order by r.deferred_until, r.message_id\n"
                    "            limit p_limit for no key update skip locked\n"
                    "        )\n"
                ),
            ),
            # Without its second lock: this counts what was taken.
            (CLAIM, "if v_count <> cardinality(v_tids) then", "if false then"),
        ),
        ("claim_limit",),
    ),
    one(
        "rows seen and not locked",
        TAKE,
        "            limit p_limit\n            for no key update skip locked",
        "            limit p_limit",
        "look_then_lock",
        code="TX902",
    ),
    Mutant(
        "seen, then locked without another look (by correlation)",
        (
            (
                TAKE,
                (
                    "                                and d.ctid <> all(v_tids)\n"
                    "                            limit 1\n"
                    "                            for no key update skip locked\n"
                ),
                (
                    "                                and d.ctid <> all(v_tids)\n"
                    "                            limit 1\n"
                ),
            ),
            (
                TAKE,
                "                    ) q\n                );\n",
                (
                    "                    ) q\n                );\n"
                    "                v_special := array(\n"
                    "                    select d.message_id from trex.delivery d\n"
                    "                    where d.instance_key = v_key"
                    " and d.message_id = any(v_special)\n"
                    "                    order by d.message_id for no key update skip locked\n"
                    "                );\n"
                ),
            ),
        ),
        ("look_then_lock",),
    ),
    one(
        "limit off by one",
        TAKE,
        "            limit p_limit\n            for no key update skip locked",
        "            limit p_limit + 1\n            for no key update skip locked",
        "claim_limit",
    ),
    one(
        "limit off by one (something due)",
        TAKE,
        "limit p_limit - v_got - (select count(*) from due)",
        "limit p_limit - v_got + 1 - (select count(*) from due)",
        "claim_limit",
    ),
    one(
        "< for <= (due)",
        TAKE,
        "                    and d.deferred_until <= p_now and d.deferred_until > v_due_after\n",
        "                    and d.deferred_until < p_now and d.deferred_until > v_due_after\n",
        "due_now",
    ),
    one(
        "< for <= (lease)",
        TAKE,
        "                and d.deferred_until is null and d.message_id > p_after\n"
        "                and (d.lease_until is null or d.lease_until <= p_now)\n"
        "            order",
        "                and d.deferred_until is null and d.message_id > p_after\n"
        "                and (d.lease_until is null or d.lease_until < p_now)\n"
        "            order",
        "due_now",
    ),
    one(
        "attempts not counted",
        CLAIM,
        "attempts = d.attempts + 1",
        "attempts = d.attempts",
        "attempts",
        code="23514",
    ),
    Mutant(
        "attempts counted on rollback",
        (
            (CLAIM, "create or replace", "create sequence trex.attempt_seq;\ncreate or replace"),
            (CLAIM, "attempts = d.attempts + 1", "attempts = nextval('trex.attempt_seq')"),
            # The guard of the row refuses a gap, whatever made it.
            (
                KERNEL,
                "or new.attempts - old.attempts <> (new.fence > old.fence)::integer",
                "or new.attempts < old.attempts",
            ),
        ),
        ("rolled_back_claim",),
    ),
    Mutant(
        # As far as PostgreSQL lets it be outside: only sequences keep what is rolled back.
        "counters outside the transaction",
        (
            (LICENCE, "create or replace", "create sequence trex.use_seq;\ncreate or replace"),
            (
                LICENCE,
                "v_licence.account, v_licence.seller, 1, v_now",
                (
                    "v_licence.account, v_licence.seller,"
                    " case p.period when 'all' then nextval('trex.use_seq') else 1 end, v_now"
                ),
            ),
        ),
        ("rolled_back_use",),
    ),
    one(
        "a key's live rows aren't locked",
        "functions/internal/_lock_keys.sql",
        "and s.parked is null",
        "and false",
        "redriven_under_a_claim",
    ),
    one(
        "retry keeps the lease",
        RECORD,
        "        set lease_until = null, worker = null, deferred_until = u.due, tries = u.tries,",
        "        set lease_until = case when u.parked is null then d.lease_until end,\n"
        "            worker = case when u.parked is null then d.worker end,\n"
        "            deferred_until = u.due, tries = u.tries,",
        "retry",
    ),
    one(
        "retry ignores the allowance",
        SETTLE,
        "p_kind in ('retry', 'unknown', 'lease_expired') and tries >= p_max_attempts",
        "p_kind in ('unknown', 'lease_expired') and tries >= p_max_attempts",
        "allowance",
    ),
    one(
        "parked row claimable",
        TAKE,
        "                                and d.parked is null\n"
        "                                and (d.deferred_until is null"
        " or d.deferred_until <= p_now)\n",
        "",
        "parked",
        code="23514",
    ),
    Mutant(
        "delivered row reclaimable",
        (
            (
                RECORD,
                "delete from trex.delivery d where d.ctid = any(v_tids) returning 1",
                (
                    "update trex.delivery d set lease_until = null, worker = null"
                    " where d.ctid = any(v_tids) returning 1"
                ),
            ),
            (
                DELIVER_ONE,
                "        delete from trex.delivery d\n",
                "        update trex.delivery d set lease_until = p_now\n",
            ),
        ),
        ("delivered",),
    ),
    one(
        "exhausted row left at the head",
        SIFT,
        "if v_parked is not null and moved >= p_most then",
        "if v_parked is not null then",
        "exhausted_head",
    ),
    one(
        "unknown retried with a new key",
        CLAIM,
        "m.topic::text, m.idempotency_key::text,",
        "m.topic::text,"
        " m.idempotency_key || case when t.attempts > 1 then '-' || t.attempts else '' end,",
        "same_key_again",
    ),
    one(
        "mark_sent not fenced",
        "functions/outbox/mark_sent.sql",
        " and d.message_id = p_message_id and d.fence = p_fence\n",
        " and d.message_id = p_message_id\n",
        "mark_sent",
    ),
    one(
        "heartbeat shortens a lease",
        EXTEND,
        "greatest(d.lease_until, v_until)",
        "v_until",
        "heartbeat",
    ),
    one(
        "heartbeat revives a reclaimed row",
        EXTEND,
        "            and d.fence = p_fences[v_ord] and d.lease_until is not null\n",
        "            and d.lease_until is not null\n",
        "heartbeat",
    ),
    one(
        "complete without instance filter",
        RECORD,
        "where d.instance_key = v_key and d.message_id = i.message_id and",
        "where d.message_id = i.message_id and",
        "other_instance",
        code="TX902",
    ),
    one(
        "binding not checked",
        ENTER,
        "and b.role_name = trex._caller();\n    if not found then\n        perform trex._raise",
        "limit 1;\n    if not found then\n        perform trex._raise",
        "binding",
    ),
    one(
        "binding not checked (claims)",
        "functions/internal/_epoch.sql",
        "where i.instance_key = p_instance_key and b.role_name = trex._caller();",
        "where i.instance_key = p_instance_key limit 1;",
        "binding",
    ),
    one(
        "binding by a custom setting",
        ENTER,
        "select case current_setting('role') when 'none' then session_user"
        " else current_setting('role')::name end",
        "select coalesce(nullif(current_setting('trex.role', true), '')::name,"
        " case current_setting('role') when 'none' then session_user"
        " else current_setting('role')::name end)",
        "custom_setting",
    ),
    one(
        "PUBLIC may execute",
        CLAIM,
        ") to trex_worker;",
        ") to public;",
        "public",
    ),
    one(
        "no search_path",
        "functions/read/list_pending.sql",
        "set search_path = pg_catalog, pg_temp\n",
        "",
        "shadowed",
    ),
    one(
        "trigger not ALWAYS",
        KERNEL,
        "alter table trex.receipt enable always trigger guard_change;\n",
        "",
        "guards_always",
    ),
    one(
        "batch unsorted",
        RECORD,
        "with ordinality u (message_id, fence, result, ord)\n        order by u.message_id\n",
        "with ordinality u (message_id, fence, result, ord)\n",
        "batch_order",
        code="40P01",
    ),
    one(
        "dedup ignores content",
        ENQUEUE,
        "m.topic = p_topic and m.digest = v_digest and",
        "m.topic = p_topic and",
        "content",
    ),
    Mutant(
        "dedup across instances",
        (
            (
                KERNEL,
                "on trex.message (instance_key, box, idempotency_key) where",
                "on trex.message (box, idempotency_key) where",
            ),
            (
                ENQUEUE,
                "on conflict (instance_key, box, idempotency_key) where",
                "on conflict (box, idempotency_key) where",
            ),
        ),
        ("keys_of_two_instances",),
    ),
    one(
        "redrive of unknown",
        "functions/operator/redrive.sql",
        "when d.parked in ('unknown', 'conflict') then",
        "when d.parked in ('conflict') then",
        "redrive",
    ),
    one(
        "abandon keeps its key blocked",
        "functions/operator/resolve.sql",
        "set parked = 'permanent', abandoned = true",
        "set parked = 'permanent'",
        "given_up",
    ),
    one(
        "abandon ends the doubt",
        "functions/operator/resolve.sql",
        "uncertain = d.uncertain and p_resolution = 'abandon'",
        "uncertain = false",
        "given_up_in_doubt",
    ),
    one(
        "evidence of absence leaves the doubt",
        "functions/operator/resolve.sql",
        "uncertain = d.uncertain and p_resolution = 'abandon'",
        "uncertain = d.uncertain",
        "given_up_in_doubt",
    ),
    one(
        "redrive of an at_most_once message in doubt",
        "functions/operator/redrive.sql",
        "when d.uncertain and m.effect_policy = 'at_most_once' then",
        "when false then",
        "given_up_in_doubt",
    ),
    one(
        "redriven, and still abandoned",
        "functions/operator/redrive.sql",
        "set parked = null, abandoned = false,",
        "set parked = null,",
        "given_up",
        code="23514",
    ),
    one(
        "redrive resets attempts",
        "functions/operator/redrive.sql",
        "deferred_until = v_now, tries = 0\n",
        "deferred_until = v_now, tries = 0, attempts = 0\n",
        "redrive",
        code="23514",
    ),
    one(
        "redrive resets the fence",
        "functions/operator/redrive.sql",
        "deferred_until = v_now, tries = 0\n",
        "deferred_until = v_now, tries = 0, fence = 1\n",
        "redrive",
        code="TX902",
    ),
    one(
        "outcome row missing",
        RECORD,
        "            values (\n"
        "                v_key, v_row.message_id, v_row.fence, v_row.attempts,"
        " p_results[v_row.ord],\n"
        "                v_state, v_reason, v_row.late, p_now\n"
        "            );",
        "            select\n"
        "                v_key, v_row.message_id, v_row.fence, v_row.attempts,"
        " p_results[v_row.ord],\n"
        "                v_state, v_reason, v_row.late, p_now\n"
        "            where p_results[v_row.ord] <> 'retry';",
        "one_end_each",
    ),
    one(
        "outcome row missing (expiry)",
        SIFT,
        "        if v_row.expired then\n            insert",
        "        if v_row.expired and v_parked is null then\n            insert",
        "one_end_each",
        code="23514",
    ),
    one(
        "outcome row doubled",
        RECORD,
        "                v_state, v_reason, v_row.late, p_now\n            );",
        "                v_state, v_reason, v_row.late, p_now\n            ), (\n"
        "                v_key, v_row.message_id, v_row.fence + 1, v_row.attempts,"
        " p_results[v_row.ord],\n"
        "                v_state, v_reason, v_row.late, p_now\n            );",
        "one_end_each",
    ),
    Mutant(
        "snapshot written without the CAS",
        (
            (
                RECORD,
                "if v_ids is not null and array_remove(p_versions, null) <> '{}' then",
                "if array_remove(p_versions, null) <> '{}' then",
            ),
            (
                "functions/internal/_store_snapshots.sql",
                "where u.message_id = any(p_delivered) and u.version is not null",
                "where u.version is not null",
            ),
        ),
        ("lost_claim_changes_nothing",),
    ),
    Mutant(
        "skip resolved without the CAS",
        (
            (RECORD, "if v_had_skips then", "if true then"),
            (
                RECORD,
                (
                    "            from unnest(v_ids, v_ords) u (message_id, ord)\n"
                    "            cross join lateral (\n                select w.ctid\n"
                ),
                (
                    "            from unnest(p_message_ids) with ordinality u (message_id, ord)\n"
                    "            cross join lateral (\n                select w.ctid\n"
                ),
            ),
        ),
        ("lost_claim_changes_nothing",),
    ),
    one(
        "epoch not raised",
        "functions/internal/_epoch.sql",
        "if v_start is distinct from pg_postmaster_start_time() then",
        "if false then",
        "epoch",
    ),
    one(
        "async commit allowed",
        ENTER,
        "if current_setting('synchronous_commit') = 'off' then",
        "if current_setting('synchronous_commit') = 'never' then",
        "async_commit",
    ),
    one(
        "claim allowed in REPEATABLE READ",
        CLAIM,
        "current_setting('transaction_isolation') <> 'read committed'",
        "current_setting('transaction_isolation') = 'serializable'",
        "isolation",
    ),
    one(
        "hold without timeout",
        "functions/outbox/hold.sql",
        "'idle_in_transaction_session_timeout', ceil",
        "'trex.no_timeout', ceil",
        "hold_timeout",
    ),
    one(
        "lost claim reported as success",
        "functions/internal/_tell.sql",
        "        else 'claim_lost'\n",
        "        else 'already_recorded'\n",
        "late_complete",
    ),
    # Beyond the list: what else has gone wrong somewhere, or in a draft of this.
    one(
        "uncertain not sticky",
        SETTLE,
        "        else p_uncertain and not p_absent\n",
        "        else false\n",
        "uncertain",
    ),
    one(
        "expired lease is certain",
        SETTLE,
        "when 'lease_expired' then p_uncertain or p_policy <> 'at_most_once' or p_sent",
        "when 'lease_expired' then p_uncertain",
        "uncertain",
    ),
    one(
        "uncertain row called dead",
        SETTLE,
        "            then case when uncertain then 'unknown' else 'dead_letter' end",
        "            then 'dead_letter'",
        "uncertain",
    ),
    one(
        "at_most_once sent again",
        SETTLE,
        "        when uncertain and p_policy = 'at_most_once' then 'unknown'\n",
        "",
        "at_most_once",
    ),
    one(
        "release uses up the allowance",
        SETTLE,
        "tries := p_tries - case when p_kind in ('released', 'postponed') then 1 else 0 end;",
        "tries := p_tries;",
        "allowance",
    ),
    Mutant(
        "nobody frees an ordering key",
        (
            (
                RECORD,
                (
                    "        if v_keys is not null then\n"
                    "            perform trex._free_keys("
                    "v_key, v_boxes, v_keys, v_key_ids, p_now, true);\n"
                    "        end if;\n        return query"
                ),
                "        return query",
            ),
            (DELIVER_ONE, "    if v_gone.ordering_key is not null then\n", "    if false then\n"),
        ),
        ("ordering",),
    ),
    one(
        "ordering ignores an earlier row that is locked",
        SIFT,
        "            if exists (\n                select 1\n",
        "            if false and exists (\n                select 1\n",
        "ordering_under_lock",
    ),
    one(
        "ordering ignores a leased later row",
        SIFT,
        "                if v_leased > 0 then\n",
        "                if false then\n",
        "ordering",
    ),
    Mutant(
        "a freed row is waited for out of order",
        (
            (
                "functions/internal/_free_keys.sql",
                "if p_wait and v_id > v_left then",
                "if p_wait then",
            ),
            (
                "functions/internal/_free_keys.sql",
                "                and d.message_id > v_left\n",
                "",
            ),
        ),
        ("freed_in_order",),
    ),
    one(
        "older snapshot replaces a newer one",
        "functions/internal/_store_snapshots.sql",
        "if v_row.version > v_old.version then",
        "if true then",
        "snapshot_version",
        code="TX902",
    ),
    one(
        "purge takes what isn't delivered",
        "functions/internal/_guard.sql",
        " or not exists (\n"
        "        select 1 from trex.receipt r\n"
        "        where r.instance_key = old.instance_key and r.message_id = old.message_id\n"
        "    ) then",
        " then",
        "facts",
    ),
    one(
        "a payload may change",
        "functions/internal/_guard.sql",
        "    v_purged.payload := null;\n",
        "    v_purged.payload := new.payload;\n",
        "facts",
    ),
    one(
        "evidence of fences nobody had",
        RECORD,
        "where t.status = 'claim_lost' and t.given",
        "where t.status = 'claim_lost'",
        "evidence",
    ),
    one(
        "paused instance gives claims",
        CLAIM,
        "    if v_instance.paused then\n        return;\n    end if;\n",
        "",
        "paused",
    ),
    one(
        "claim after other work",
        CLAIM,
        "        or pg_current_xact_id_if_assigned() is not null\n",
        "",
        "isolation",
    ),
)
