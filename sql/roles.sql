-- Roles of the whole cluster. Run once by a DBA with CREATEROLE who may grant CREATE on the
-- database (its owner, for instance); running it again changes nothing.
--
--     psql -d shop -v migrator=shop_migrator -f sql/roles.sql
--
-- migrator   an existing login role that shall run migrations (optional, may be repeated later)
-- database   where trex will live (default: the database of this connection)
--
-- Afterwards nothing needs superuser: the migrator may SET ROLE trex_owner, which owns everything.
-- Services get one of trex_app, trex_worker, trex_operator, trex_reader: `grant trex_app to shop`.
-- trex_adopter is for the DBA who adopts rows of an older outbox, and for nobody else.
\set ON_ERROR_STOP on

begin;

-- Two DBAs at once, or two databases of one cluster: the second finds the role and goes on.
do $$
begin
    create role trex_owner nologin;
exception when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
    create role trex_app nologin;
exception when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
    create role trex_worker nologin;
exception when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
    create role trex_operator nologin;
exception when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
    create role trex_reader nologin;
exception when duplicate_object or unique_violation then null;
end
$$;
do $$
begin
    create role trex_adopter nologin;
exception when duplicate_object or unique_violation then null;
end
$$;

-- A role of this name from elsewhere could log in or see everything; nobody may rely on it then.
do $$
begin
    if exists (
        select from pg_catalog.pg_roles as r
        where r.rolname in (
            'trex_owner', 'trex_app', 'trex_worker', 'trex_operator', 'trex_reader', 'trex_adopter'
        )
        and (r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolcreatedb
            or r.rolreplication or r.rolcanlogin)
    ) then
        raise exception using
            errcode = 'invalid_role_specification',
            message = 'a trex role exists with login or with rights of its own',
            hint = 'Rename it or take its attributes away, then run roles.sql again.';
    end if;
end
$$;

\if :{?database}
\else
\set database :DBNAME
\endif
grant create on database :"database" to trex_owner;

\if :{?migrator}
grant trex_owner to :"migrator";
\endif

commit;
