-- Last call of a replay, in its transaction: what was just created is the release, and later
-- differences are somebody's change.
create or replace function trex._record_function_release(p_release text)
returns void
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into trex.function_release (singleton, release, replayed_at, replayed_by)
    values (true, p_release, clock_timestamp(), session_user)
    on conflict (singleton) do update
    set release = excluded.release,
        replayed_at = excluded.replayed_at,
        replayed_by = excluded.replayed_by;

    delete from trex.function_digest as o
    where not exists (
        select from trex._function_digests() as n
        where n.signature = o.signature
    );
    insert into trex.function_digest (signature, digest)
    select
        n.signature,
        n.digest
    from trex._function_digests() as n
    on conflict (signature) do update
    set digest = excluded.digest
    where function_digest.digest <> excluded.digest;
end
$$;

alter function trex._record_function_release(text) owner to trex_owner;
revoke all on function trex._record_function_release(text) from public;

comment on function trex._record_function_release(text) is
'Records the release of the functions that were just replayed, and a digest of each.
Arguments: p_release, sha256 (64 hex digits) over the function files in their order
Returns: nothing
Errors: none of its own
Locks: row of function_release
Idempotent: yes';
