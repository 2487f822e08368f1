"""No consumer is configured: every delivery backs off with `consumer:none` and parks in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trex_client.adapters.base import (
    BaseAdapter,
    DeliveryContext,
    DeliveryResult,
    LookupResult,
    NotSure,
    Retryable,
)

if TYPE_CHECKING:
    from trex_client.model import Claim, EffectPolicy


class NoneAdapter(BaseAdapter):
    """Never sends anything and never pretends to. A message that is already uncertain stays so."""

    policy: EffectPolicy = "lookup"
    can_lookup: bool = True
    announces_sending: bool = True

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Answer that there is no consumer."""
        del claim, context
        return Retryable("consumer:none")

    async def lookup(self, wire_key: str) -> LookupResult:
        """Answer that there is nobody to ask."""
        del wire_key
        return NotSure("consumer:none")
