"""The worker: claim, deliver, record. As a daemon, or once for what is due now."""

from trex_client.worker.delivery import AdapterProcessor, Desk, Held, Processor
from trex_client.worker.link import Session, connector
from trex_client.worker.loop import Worker
from trex_client.worker.plans import Once, Plan
from trex_client.worker.run import Program, RunCounts, daemon, run_once
from trex_client.worker.settings import Exit, Runtime, WorkerSettings

__all__ = [
    "AdapterProcessor",
    "Desk",
    "Exit",
    "Held",
    "Once",
    "Plan",
    "Processor",
    "Program",
    "RunCounts",
    "Runtime",
    "Session",
    "Worker",
    "WorkerSettings",
    "connector",
    "daemon",
    "run_once",
]
