"""Instances: who owns messages, under which policy, and which database roles act for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

import typer

from trex_client._calls import Call, Calls
from trex_client.cli._run import call_command
from trex_client.cli._types import Actor, Reason, parse_duration

_DURATION: dict[str, Any] = {"parser": parse_duration, "metavar": "DURATION"}

RoleName = Annotated[str, typer.Argument(help="A database role, by its exact name.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Register instances, change their policy, bind roles."
    )
    app.add_typer(group, name="instance", rich_help_panel="Operators")

    @call_command(
        group,
        "register",
        """
        trex instance register --reason 'new service'
        trex instance register --max-attempts 20 --lease-default 1m --reason 'slow ledger'
        """,
    )
    def register_instance(
        calls: Calls,
        actor: Actor,
        reason: Reason,
        max_attempts: Annotated[
            int | None, typer.Option("--max-attempts", help="Allowance of tries, 1 to 1000.")
        ] = None,
        lease_default: Annotated[
            timedelta | None, typer.Option("--lease-default", help="From 100ms.", **_DURATION)
        ] = None,
        lease_max: Annotated[
            timedelta | None, typer.Option("--lease-max", help="To 24h.", **_DURATION)
        ] = None,
        backoff_base: Annotated[
            timedelta | None, typer.Option("--backoff-base", help="First wait.", **_DURATION)
        ] = None,
        backoff_cap: Annotated[
            timedelta | None, typer.Option("--backoff-cap", help="Longest wait.", **_DURATION)
        ] = None,
        on_parked: Annotated[
            Literal["block", "continue"] | None,
            typer.Option(
                "--on-parked",
                metavar="block|continue",
                help="What an ordering key does behind a parked message.",
            ),
        ] = None,
        wake: Annotated[
            bool | None, typer.Option("--wake/--no-wake", help="Notify idle workers.")
        ] = None,
        payload_max: Annotated[
            int | None, typer.Option("--payload-max", help="Largest payload in bytes.")
        ] = None,
    ) -> Call[Any]:
        """Register an instance, or change its policy; what isn't given stays."""
        return calls.register_instance(
            actor=actor,
            reason=reason,
            max_attempts=max_attempts,
            lease_default=lease_default,
            lease_max=lease_max,
            backoff_base=backoff_base,
            backoff_cap=backoff_cap,
            on_parked=on_parked,
            wake=wake,
            payload_max=payload_max,
        )

    @call_command(group, "show", "trex instance show")
    def show_policy(calls: Calls) -> Call[Any]:
        """Show the policy and the roles that are bound."""
        return calls.policy()

    @call_command(group, "bind", "trex instance bind shop_worker --reason 'new worker'")
    def bind(calls: Calls, role_name: RoleName, actor: Actor, reason: Reason) -> Call[Any]:
        """Let a database role act for the instance."""
        return calls.bind(role_name, actor=actor, reason=reason)

    @call_command(group, "unbind", "trex instance unbind shop_worker --reason 'retired'")
    def unbind(calls: Calls, role_name: RoleName, actor: Actor, reason: Reason) -> Call[Any]:
        """Take a role's binding away."""
        return calls.unbind(role_name, actor=actor, reason=reason)

    @call_command(group, "pause", "trex instance pause --reason 'ledger is down'")
    def pause(calls: Calls, actor: Actor, reason: Reason) -> Call[Any]:
        """No more claims until resume; enqueueing and outcomes go on."""
        return calls.pause(actor=actor, reason=reason)

    @call_command(group, "resume", "trex instance resume --reason 'ledger is back'")
    def resume(calls: Calls, actor: Actor, reason: Reason) -> Call[Any]:
        """Claims again after pause."""
        return calls.resume(actor=actor, reason=reason)
