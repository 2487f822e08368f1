"""The worker: claim, deliver, record. As a daemon, or once for what is due now."""

from trex_client.worker.delivery import AdapterProcessor, Desk, Held, Processor
from trex_client.worker.handlers import (
    HandlerProcessor,
    Incoming,
    Refused,
    Steps,
    Waiting,
    load_handlers,
)
from trex_client.worker.link import Session, connector
from trex_client.worker.loop import Worker
from trex_client.worker.plans import Once, Plan
from trex_client.worker.run import Program, RunCounts, daemon, run_once
from trex_client.worker.settings import Exit, Runtime, WorkerSettings

__all__ = [
    "AdapterProcessor",
    "Desk",
    "Exit",
    "HandlerProcessor",
    "Held",
    "Incoming",
    "Once",
    "Plan",
    "Processor",
    "Program",
    "Refused",
    "RunCounts",
    "Runtime",
    "Session",
    "Steps",
    "Waiting",
    "Worker",
    "WorkerSettings",
    "connector",
    "daemon",
    "load_handlers",
    "run_once",
]
