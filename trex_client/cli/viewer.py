"""What a verified viewer may read of rights and their use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trex_client._calls import Call
from trex_client._calls_reconcile import AllCalls
from trex_client.cli._run import call_command
from trex_client.cli._types import ReadLimit
from trex_client.model_authority import Viewer

if TYPE_CHECKING:
    from collections.abc import Callable

Account = Annotated[str, typer.Option("--account", help="The provider's account to read.")]
Kind = Annotated[
    Literal["admin", "seller", "buyer"] | None,
    typer.Option("--as", metavar="admin|seller|buyer", help="Who asks; without it nobody."),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="The account that the viewer belongs to.")
]
ViewerSeller = Annotated[
    str | None, typer.Option("--viewer-seller", help="The seller that the viewer is.")
]
Seller = Annotated[str | None, typer.Option("--seller", help="Only of this seller.")]
After = Annotated[str, typer.Option("--after", help="The last id of the page before.")]

_READS: dict[str, tuple[str, str]] = {
    "entitlements": ("list_entitlements", "Rights and their state."),
    "usage": ("list_usage", "Uses of licences."),
    "counters": ("list_counters", "Usage counters, all and by month."),
    "devices": ("list_devices", "Devices that are bound to licences."),
    "security": ("list_security_events", "What was refused, and why."),
}


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Read as a viewer: an administrator all of their account, a seller their own, a buyer"
        " nothing. The caller has verified who it is.",
    )
    app.add_typer(group, name="viewer", rich_help_panel="Operations")
    for name, (method, summary) in _READS.items():
        _register(group, name, method, summary)


def _register(group: typer.Typer, name: str, method: str, summary: str) -> None:
    def read(
        calls: AllCalls,
        account: Account,
        kind: Kind = None,
        tenant: Tenant = None,
        viewer_seller: ViewerSeller = None,
        seller: Seller = None,
        limit: ReadLimit = 100,
        after: After = "",
    ) -> Call[Any]:
        call: Callable[..., Call[Any]] = getattr(calls, method)
        viewer = Viewer(kind, tenant, viewer_seller)
        return call(viewer, account, seller=seller, limit=limit, after=after)

    read.__doc__ = summary
    examples = f"""
        trex viewer {name} --account acct_main --as admin --tenant acct_main
        trex viewer {name} --account acct_main --as seller --tenant acct_main --viewer-seller s1
        """
    call_command(group, name, examples)(read)
