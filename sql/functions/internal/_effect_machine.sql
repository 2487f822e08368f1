-- The shipped machine of effects: what each state of trex.effect means for people, and which
-- outcome leads where. A machine named `effect` that an instance loads takes its place.
create or replace function trex._effect_machine()
returns jsonb
language sql
immutable
parallel safe
security invoker
as $$
select '{
    "states": {
        "intent_recorded": {"owner": "worker", "longest_stay": 3600, "next_action": "call with the stable key", "alert": "effect.not_started"},
        "in_progress": {"owner": "worker", "next_action": "wait for the lease, then look up", "alert": "effect.lease_ended"},
        "waiting": {"owner": "worker", "longest_stay": 86400, "next_action": "find out what it waits for", "alert": "effect.waits_too_long"},
        "failed": {"owner": "operator", "longest_stay": 3600, "next_action": "retry is permitted: redrive, or end it", "alert": "effect.failed"},
        "rejected": {"owner": "operator", "longest_stay": 60, "next_action": "fix the cause, then redrive or resolve", "alert": "effect.rejected"},
        "unknown": {"owner": "operator", "longest_stay": 900, "next_action": "look up, reconcile, retry with the same key, or resolve", "alert": "effect.unknown"},
        "succeeded": {"final": true}
    },
    "transitions": [
        {"event": "enqueue", "to": "intent_recorded"},
        {"from": "intent_recorded", "event": "claim", "to": "in_progress"},
        {"from": "waiting", "event": "claim", "to": "in_progress"},
        {"from": "failed", "event": "claim", "to": "in_progress"},
        {"from": "unknown", "event": "claim", "to": "in_progress"},
        {"from": "in_progress", "event": "complete", "to": "succeeded"},
        {"from": "in_progress", "event": "complete_duplicate", "to": "succeeded"},
        {"from": "in_progress", "event": "retry", "to": "failed"},
        {"from": "in_progress", "event": "dead_letter", "to": "failed"},
        {"from": "in_progress", "event": "mark_unknown", "to": "unknown"},
        {"from": "in_progress", "event": "lease_expired", "to": "unknown"},
        {"from": "in_progress", "event": "conflict", "to": "rejected"},
        {"from": "in_progress", "event": "fail", "to": "rejected"},
        {"from": "in_progress", "event": "release", "to": "intent_recorded"},
        {"from": "in_progress", "event": "postpone", "to": "waiting"},
        {"from": "failed", "event": "redrive", "to": "failed"},
        {"from": "rejected", "event": "redrive", "to": "failed"},
        {"from": "rejected", "event": "resend", "to": "failed"},
        {"from": "unknown", "event": "resend", "to": "intent_recorded"},
        {"from": "unknown", "event": "delivered", "to": "succeeded"},
        {"from": "rejected", "event": "delivered", "to": "succeeded"},
        {"from": "failed", "event": "delivered", "to": "succeeded"},
        {"from": "failed", "event": "abandon", "to": "rejected"},
        {"from": "unknown", "event": "abandon", "to": "rejected"},
        {"from": "rejected", "event": "abandon", "to": "rejected"},
        {"from": "failed", "event": "absent", "to": "rejected"},
        {"from": "unknown", "event": "absent", "to": "rejected"},
        {"from": "rejected", "event": "absent", "to": "rejected"}
    ]
}'::jsonb
$$;

-- One state of the machine that explains effects.
create or replace function trex._effect_meaning(
    p_instance_key text,
    p_effect text,
    out owner text,
    out longest_stay interval,
    out next_action text,
    out alert text
)
language sql
stable
parallel safe
security invoker
as $$
select
    e.state ->> 'owner', (e.state ->> 'longest_stay')::integer * interval '1 second', e.state ->> 'next_action',
    e.state ->> 'alert'
from (
    select coalesce(
        (
            select m.definition
            from trex.machine m
            where m.instance_key = p_instance_key and m.machine = 'effect'
            order by m.revision desc
            limit 1
        ), trex._effect_machine()
    ) -> 'states' -> p_effect as state
) e
$$;
