-- The idempotency key of a received event: any three keys fit into it, and no two triples share it.
create or replace function trex._event_key(p_provider text, p_account text, p_event_id text)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select encode(sha256(convert_to(jsonb_build_array(p_provider, p_account, p_event_id)::text, 'UTF8')), 'hex')
$$;
