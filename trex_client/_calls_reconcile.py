"""Reconciliation as SQL calls; see `trex_client._calls`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from trex_client._calls import (
    _OPERATOR,
    Call,
    Row,
    Statement,
    _duration,
    _int4,
    _optional_integer,
    _optional_text,
    _text,
    _with_times,
)
from trex_client._calls_authority import AuthorityCalls
from trex_client.model_reconcile import ReconcileFinding, ReconcileReport

if TYPE_CHECKING:
    from trex_client.model_reconcile import FindingState


def _reports(rows: list[Row]) -> list[ReconcileReport]:
    return [ReconcileReport(*_with_times(row, 11, 12)) for row in rows]


def _report(rows: list[Row]) -> ReconcileReport:
    return _reports(rows)[0]


def _findings(rows: list[Row]) -> list[ReconcileFinding]:
    found = []
    for row in rows:
        values = list(_with_times(row, 11, 12))
        values[2], values[5] = json.loads(values[2]), json.loads(values[5])
        found.append(ReconcileFinding(*values))
    return found


_REPORT: Final = (
    "run_id state at_check examined found fresh repaired failed_check failed_code actor reason "
    "started_at finished_at"
)
_RECONCILE: Final = Statement(
    "reconcile",
    f"{_OPERATOR}, run_id bigint, longest_stay interval, limit integer",
    _REPORT,
    _report,
)
_RECONCILE_REPORTS: Final = Statement(
    "reconcile_reports", "limit integer, before bigint", _REPORT, _reports
)
_RECONCILE_FINDINGS: Final = Statement(
    "reconcile_findings",
    "run_id bigint, state text, limit integer, after text",
    "finding_id type ref_ids::text expected actual causal_events::text recoverable "
    "recommended_action state first_run last_run found_at seen_at",
    _findings,
)


class AllCalls(AuthorityCalls):
    """All functions."""

    __slots__ = ()

    def reconcile(
        self,
        *,
        actor: str,
        reason: str,
        run_id: int | None = None,
        longest_stay: timedelta = timedelta(hours=1),
        limit: int = 1000,
    ) -> Call[ReconcileReport]:
        """Start a reconciliation, or go on with run `run_id`, for `limit` (1 to 10,000) rows; call
        again while its state is 'running'.

        Raises:
            NotFound: there is no such run in this instance.
        """
        return _RECONCILE, (
            self.instance_key,
            _text("actor", actor),
            _text("reason", reason),
            _optional_integer("run_id", run_id),
            _duration("longest_stay", longest_stay),
            _int4("limit", limit),
        )

    def reconcile_reports(
        self, *, limit: int = 100, before: int | None = None
    ) -> Call[list[ReconcileReport]]:
        """Runs, the newest first, from the first below `before`."""
        return _RECONCILE_REPORTS, (
            self.instance_key,
            _int4("limit", limit),
            _optional_integer("before", before),
        )

    def reconcile_findings(
        self,
        run_id: int | None = None,
        *,
        state: FindingState | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[ReconcileFinding]]:
        """Findings by id, from the first above `after`: those that existed in a run, or all."""
        return _RECONCILE_FINDINGS, (
            self.instance_key,
            _optional_integer("run_id", run_id),
            _optional_text("state", state),
            _int4("limit", limit),
            _text("after", after),
        )
