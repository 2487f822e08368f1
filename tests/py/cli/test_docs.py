"""docs/cli.md is what the commands say, and every public function has a command."""

from __future__ import annotations

import inspect

import pytest

from tools import cli_docs
from trex_client.api import Authority
from trex_client.api import Trex as Api
from trex_client.cli._exit import MEANINGS, ExitCode

COMMANDS = dict(cli_docs.commands())

# Where the command isn't called like the function.
NAMES = {
    "bind": "instance bind",
    "correct": "machine correct",
    "effect_states": "machine effects",
    "enqueue_many": "import",
    "entity_history": "machine history",
    "entity_status": "machine status",
    "inbox_event": "inbox event",
    "inbox_status": "inbox status",
    "list_counters": "viewer counters",
    "list_devices": "viewer devices",
    "list_entitlements": "viewer entitlements",
    "list_parked": "parked",
    "list_pending": "pending",
    "list_security_events": "viewer security",
    "list_usage": "viewer usage",
    "machine_load": "machine load",
    "machine_show": "machine show",
    "mark_unknown": "unknown",
    "operation_history": "machine operation",
    "overdue": "machine overdue",
    "pause": "instance pause",
    "pending_cash_delta": "cash",
    "policy": "instance show",
    "receive": "inbox receive",
    "reconcile": "reconcile run",
    "reconcile_findings": "reconcile show",
    "reconcile_reports": "reconcile reports",
    "register_currency": "currency",
    "register_instance": "instance register",
    "resume": "instance resume",
    "transition": "machine transition",
    "unbind": "instance unbind",
}


def test_every_function_has_a_command() -> None:
    functions = {
        *(name for name, _ in inspect.getmembers(Api, inspect.isfunction) if name[0] != "_")
    }
    assert set(NAMES) <= functions
    authority = {name for name in vars(Authority) if name[0] != "_"}
    for name in functions:
        usual = name.replace("_", "-")
        command = NAMES.get(name, f"authority {usual}" if name in authority else usual)
        assert command in COMMANDS, name


def test_the_page_is_up_to_date() -> None:
    assert cli_docs.main(["--check"]) == 0, "run: python -m tools.cli_docs"


def test_every_command_is_on_the_page() -> None:
    page = cli_docs.TARGET.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"### trex {name}\n" in page
    for code in ExitCode:
        assert f"| {int(code)} | {MEANINGS[code]} |" in page


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_says_what_it_does_with_examples(name: str) -> None:
    command = COMMANDS[name]
    assert f"trex {name}" in command.help
    assert "Examples" in command.help
    for param in command.params:
        assert param.help, f"{name}: {param.name}"
        assert param.name != "dsn" or name in ("demo", "migrate")
