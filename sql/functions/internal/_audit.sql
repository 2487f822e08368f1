-- Who did which operator act, and why: a row in the same transaction as the act itself. The
-- words of an operator go here and nowhere else.
create or replace function trex._audit(
    p_instance_key text,
    p_action text,
    p_message_id bigint,
    p_actor text,
    p_reason text,
    p_detail jsonb,
    p_now timestamptz
)
returns void
language sql
volatile
security invoker
as $$
insert into trex.audit (instance_key, action, message_id, actor, reason, detail, role_name, at)
values (p_instance_key, p_action, p_message_id, p_actor, p_reason, p_detail, trex._caller(), p_now)
$$;

create or replace function trex._check_act(p_actor text, p_reason text)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    if trex._is_key(p_actor) is not true then
        perform trex._raise('TX400', 'actor: a key');
    end if;
    if trex._is_text(p_reason) is not true then
        perform trex._raise('TX400', 'reason: 1 to 1000 characters, no control characters, not blank');
    end if;
end
$$;
