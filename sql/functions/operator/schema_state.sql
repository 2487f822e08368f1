-- Programs ask this before they start, doctor asks it to name what needs a replay. It reads no
-- row of any instance, so every role may call it.
create or replace function trex.schema_state()
returns trex.schema_state_result
language sql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
    select
        (select array_agg(m.name order by m.name collate "C") from trex.schema_migration as m),
        (select r.release from trex.function_release as r),
        (select r.replayed_at from trex.function_release as r),
        (select max(m.applied_at) from trex.schema_migration as m),
        coalesce((
            select array_agg(
                coalesce(d.signature, n.signature)
                order by coalesce(d.signature, n.signature) collate "C"
            )
            from trex.function_digest as d
            full join trex._function_digests() as n on d.signature = n.signature
            where d.digest is distinct from n.digest
        ), '{}')
$$;

alter function trex.schema_state() owner to trex_owner;
revoke all on function trex.schema_state() from public;
grant execute on function trex.schema_state() to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.schema_state() is
'What is installed: migrations, the release of the functions, and which functions differ from it.
Arguments: none
Returns: one schema_state_result; drifted lists functions changed, missing or added since the replay
Errors: none
Locks: none
Idempotent: yes';
