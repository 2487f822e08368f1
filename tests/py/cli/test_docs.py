"""docs/cli.md is what the commands say, and every public function has a command."""

from __future__ import annotations

import pytest

from tools import cli_docs
from trex_client.api import Trex as Api
from trex_client.cli._exit import MEANINGS, ExitCode

COMMANDS = dict(cli_docs.commands())

# Where the command isn't called like the function.
NAMES = {
    "adopt": "adopt",
    "bind": "instance bind",
    "enqueue_many": "import",
    "list_parked": "parked",
    "list_pending": "pending",
    "mark_unknown": "unknown",
    "pause": "instance pause",
    "pending_cash_delta": "cash",
    "policy": "instance show",
    "register_currency": "currency",
    "register_instance": "instance register",
    "resume": "instance resume",
    "unbind": "instance unbind",
}


def test_every_function_has_a_command() -> None:
    functions = {name for name in vars(Api) if not name.startswith("_")} - {"instance_key"}
    assert {NAMES.get(name, name.replace("_", "-")) for name in functions} <= set(COMMANDS)


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
