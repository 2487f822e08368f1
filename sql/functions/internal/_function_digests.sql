-- One digest per function over everything a replay restores: definition, owner and grants.
create or replace function trex._function_digests()
returns table (signature text, digest text)
language sql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select
        p.oid::regprocedure::text,
        encode(sha256(convert_to(concat_ws(
            E'\n',
            pg_get_functiondef(p.oid),
            pg_get_userbyid(p.proowner),
            (
                select string_agg(a.item::text, ',' order by a.item::text collate "C")
                from unnest(p.proacl) as a (item)
            )
        ), 'UTF8')), 'hex')
    from pg_proc as p
    where p.pronamespace = 'trex'::regnamespace and p.prokind in ('f', 'p')
$$;

alter function trex._function_digests() owner to trex_owner;
revoke all on function trex._function_digests() from public;

comment on function trex._function_digests() is
'Digest of each function of the schema as it stands now.
Arguments: none
Returns: (signature, digest), one row per function; sha256 over definition, owner and grants
Errors: none
Locks: none
Idempotent: yes';
