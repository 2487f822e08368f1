"""Two workers with two events of one invoice: every schedule of their transactions, and crashes.

A step that waits for a lock is left waiting, and its worker goes on once it is through.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.py.authority.world import ACCOUNT, Provider, handle, order, receive

pytestmark = pytest.mark.criterion("ac-0056")

SCHEDULES = sorted(set(itertools.permutations("aaabbb")))
ENDS = list(itertools.product(("commit", "rollback"), repeat=2))


class Worker:
    """One session with a claim; its steps run in a thread of its own, in order."""

    def __init__(self, backend: Any, client: Any, end: str) -> None:
        self.client, self.end = client, end
        (self.claim,) = client.claim("w", box="inbox")
        self.conn = backend.connection(client)
        self.pid = self.conn.info.backend_pid
        self.admin = backend.admin
        self.pool = ThreadPoolExecutor(1)
        self.steps = iter((self._begin, self._finalize, self._end))
        self.waited = 0

    def _begin(self) -> None:
        self.conn.execute("begin")
        self.client.hold(self.claim.message_id, self.claim.fence)

    def _finalize(self) -> None:
        self.client.finalize_paid(
            self.claim.message_id, self.claim.fence, account=ACCOUNT, invoice_id="in_1",
            order_id="ord_1", status="paid",
        )  # fmt: skip

    def _end(self) -> None:
        self.conn.execute(self.end)

    def go_on(self) -> Future[None]:
        """Start the next step; return when it is done or waits for a lock."""
        future = self.pool.submit(next(self.steps))
        while not future.done() and not self._waits():
            time.sleep(0.001)
        self.waited += not future.done()
        return future

    def _waits(self) -> bool:
        row = self.admin.execute(
            "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", (self.pid,)
        ).fetchone()
        return row is not None and row[0] is True


@pytest.mark.parametrize("ends", ENDS, ids="-".join)
def test_every_schedule_of_two_workers(postgres, ends):
    postgres.uncompared()
    waits = results = 0
    provider = Provider()
    provider.invoices["in_1"] = ("paid", "ord_1")
    for number, schedule in enumerate(SCHEDULES):
        name = f"shop{number}"
        admin = postgres.register(name)
        order(admin)
        receive(admin, "E2")
        receive(admin, "E3")
        workers = {
            key: Worker(postgres, postgres.client(name), end)
            for key, end in zip("ab", ends, strict=True)
        }
        futures: list[Future[None]] = []
        # The thread of a worker keeps its steps in order when one of them waits.
        for key in schedule:
            futures.append(workers[key].go_on())
        for future in futures:
            future.result(timeout=20)
        waits += sum(worker.waited for worker in workers.values())
        postgres.advance(31)
        for claim in admin.claim("w3", 10, box="inbox"):
            results += handle(postgres, admin, claim, provider) in ("granted", "already_granted")
        key = admin.instance_key
        assert len(postgres.rows("receipt", instance_key=key)) == 2, schedule
        assert len(postgres.rows("operation", instance_key=key)) == 1, schedule
        assert len(postgres.rows("entitlement", instance_key=key)) == 1, schedule
        assert len(postgres.rows("licence", instance_key=key)) == 1, schedule
        for worker in workers.values():
            worker.pool.shutdown()
    print(f"{len(SCHEDULES)} schedules, {waits} lock waits, {results} handled after a crash")
    assert len(SCHEDULES) == 20
    assert waits >= 6
    assert results == 20 * ends.count("rollback")
