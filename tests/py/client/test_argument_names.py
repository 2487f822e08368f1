"""Each function refuses an argument of a wrong type before anything is sent, and names it."""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from trex_client._calls_reconcile import AllCalls
from trex_client.errors import InvalidArgument
from trex_client.model import Movement, Report
from trex_client.model_authority import Viewer

NAMES = [name for name, _ in inspect.getmembers(AllCalls, inspect.isfunction) if name[0] != "_"]
GOOD: dict[Any, Any] = {
    str: "a", int: 1, bool: True, bytes: b"{}", Any: {}, Viewer: Viewer("admin"),
    datetime.timedelta: datetime.timedelta(seconds=1), decimal.Decimal: decimal.Decimal(1),
    datetime.datetime: datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
    Movement: Movement("t", "k", {}), Report: Report(1, 1, "completed"),
}  # fmt: skip
OURS = [module for name, module in sorted(sys.modules.items()) if name.startswith("trex_client.")]
KNOWN = {
    name: value
    for module in (*OURS, collections.abc, datetime, decimal)
    for name, value in vars(module).items()
}
"""Names that only type checkers import there."""


def good(kind: Any) -> Any:
    """A value of an annotated type."""
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin is Sequence:
        return [good(get_args(kind)[0])]
    if origin in (dict, Mapping):
        return {}
    if kind in GOOD:
        return GOOD[kind]
    kinds = [one for one in get_args(kind) if one is not type(None)]
    assert kinds, kind
    return good(kinds[0])


def parameters(name: str) -> dict[str, Any]:
    hints = get_type_hints(getattr(AllCalls, name), localns=KNOWN)
    known = list(inspect.signature(getattr(AllCalls, name)).parameters)[1:]
    return {one: hints[one] for one in known}


CASES = [(name, argument) for name in NAMES for argument in parameters(name)]


def arguments(name: str, wrong: str | None = None) -> dict[str, Any]:
    """Good ones; of a value and the same as JSON text, the one that isn't tested is missing."""
    made = {one: good(kind) for one, kind in parameters(name).items()}
    for one in [one for one in made if one.endswith("_json")]:
        made[one.removesuffix("_json") if wrong == one else one] = None
    return made


@pytest.mark.parametrize("name", NAMES)
def test_good_arguments_are_accepted(name):
    statement, params = getattr(AllCalls("shop"), name)(**arguments(name))
    assert statement.name == name
    assert len(params) == len(statement.arguments)
    assert statement.sql.count("%s") == len(params)


@pytest.mark.parametrize(("name", "argument"), CASES, ids=map(".".join, CASES))
def test_a_wrong_type_is_refused_by_name(name, argument):
    for value in (object(), [object()]):
        with pytest.raises(InvalidArgument) as refused:
            getattr(AllCalls("shop"), name)(**arguments(name, argument) | {argument: value})
        said = str(refused.value).removeprefix("invalid argument: ")
        named, _, allowed = said.partition(": ")
        assert named in {argument, argument.removesuffix("s"), argument.removesuffix("_json")}
        assert allowed


@pytest.mark.parametrize(
    ("name", "argument"),
    [case for case in CASES if type(None) not in get_args(parameters(case[0])[case[1]])],
    ids=".".join,
)
def test_what_is_required_is_refused_when_it_is_missing(name, argument):
    if parameters(name)[argument] is not Any:  # a value may be null
        with pytest.raises(InvalidArgument, match=f": {argument.removesuffix('s')}"):
            getattr(AllCalls("shop"), name)(**arguments(name) | {argument: None})


@pytest.mark.parametrize("wrong", ["kind", "tenant", "seller"])
def test_a_part_of_a_viewer_is_refused_by_name(wrong):
    for name in ("list_entitlements", "list_usage", "list_counters", "list_devices"):
        given = arguments(name) | {"viewer": Viewer("admin"), "seller": "s"}
        parts: dict[str, Any] = {"kind": "seller", wrong: 7}
        viewer = Viewer(**parts)
        with pytest.raises(InvalidArgument, match=f": viewer_{wrong}: "):
            getattr(AllCalls("shop"), name)(**given | {"viewer": viewer})


NUMBER = "a whole number of 64 bits"
DIGITS = "Decimal or int, at most 38 digits before the point and 1000 after it"
TEXT = "JSON text, at most 256 levels deep, no NUL, no lone surrogates, no number beyond numeric"
WIDE: Any = 2**63
REFUSED: dict[str, Callable[[AllCalls], object]] = {
    f"message_id: {NUMBER}": lambda calls: calls.complete(WIDE, 1),
    f"report 2: fence: {NUMBER}": lambda calls: calls.record(
        [Report(1, 1, "completed"), Report(1, WIDE, "retry")]
    ),
    f"movement 1: cash_delta: {DIGITS}": lambda calls: calls.enqueue_many(
        [Movement("t", "k", {}, cash_delta=10**38)]
    ),
    f"payload: {TEXT}": lambda calls: calls.enqueue("t", "k", payload_json="{"),
}


@pytest.mark.parametrize("expected", REFUSED)
def test_a_refusal_says_what_is_allowed(expected):
    with pytest.raises(InvalidArgument) as refused:
        REFUSED[expected](AllCalls("shop"))
    assert str(refused.value) == f"invalid argument: {expected}"
