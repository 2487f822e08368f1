"""Adapters carry messages to sinks: `http`, `postgres`, `none`, and those of the entry point
group `trex.adapters`.
"""

from trex_client.adapters.base import (
    UNSTATED,
    Absent,
    Adapter,
    BaseAdapter,
    Conflict,
    Delivered,
    DeliveryContext,
    DeliveryResult,
    Duplicate,
    Found,
    LookupResult,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Secret,
    Snapshot,
    Unknown,
    payload_digest,
    wire_key,
)
from trex_client.adapters.config import ConfigError, build_adapter, read_config

__all__ = [
    "UNSTATED",
    "Absent",
    "Adapter",
    "BaseAdapter",
    "ConfigError",
    "Conflict",
    "Delivered",
    "DeliveryContext",
    "DeliveryResult",
    "Duplicate",
    "Found",
    "LookupResult",
    "NotSent",
    "NotSure",
    "Permanent",
    "Retryable",
    "Secret",
    "Snapshot",
    "Unknown",
    "build_adapter",
    "payload_digest",
    "read_config",
    "wire_key",
]
