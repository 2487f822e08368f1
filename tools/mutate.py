"""Mutants of the Python core: small faults, one at a time, that a test must find.

    python -m tools.mutate --sample 300 --seed 1 --server --report docs/proof/python-mutants.md
    python -m tools.mutate --only memory.py:_settle --tests tests/py/conformance/test_outcomes.py

The tests run once, and are timed; a profiler notes which functions of the core each of them calls.
Then every mutant gets a process of its own: a fork of the one in which all tests are collected,
with the code of one function changed. It runs the tests that call this function, the quickest
first, up to the first that fails. A mutant with which a test takes far longer is found too.

Not changed: what a type checker, or nobody, reads (annotations, docstrings, assertions), and the
names in error texts, the `strict` of `zip`. Known equivalents are in `EQUIVALENT`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import math
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "trex_client"
CORE = (
    "memory.py", "_memory_authority.py", "_memory_inbox.py", "_memory_operations.py",
    "_memory_reconcile.py", "_calls.py", "_calls_authority.py", "_calls_inbox.py",
    "_calls_operations.py", "_calls_reconcile.py", "errors.py", "model.py", "postgres.py",
    "worker/delivery.py", "worker/plans.py", "worker/loop.py", "worker/link.py",
)  # fmt: skip
TESTS = (
    "tests/py/memory", "tests/py/conformance", "tests/py/cases", "tests/py/inbox",
    "tests/py/operations", "tests/py/authority", "tests/py/reconcile", "tests/py/client",
    "tests/py/worker", "tests/py/adapters/test_contract.py",
    "tests/py/parity/test_whole_api.py::test_a_tour",
    "tests/py/simulation/test_histories.py::test_every_invariant_holds",
    "tests/py/simulation/test_search.py::test_every_state_keeps_every_invariant",
)  # fmt: skip
READERS = (
    "tests/py/client/test_twins.py::test_same_methods_same_arguments",
    "tests/py/reconcile/test_reconcile.py::test_the_simulation_says_what_sql_says",
)
"""They read the functions and don't call them."""
SERVER_FIXTURES = {"pg_server", "new_db", "private_server", "postgres_house", "pg_db", "empty_db"}
_SIZES = {"TREX_SIMULATE_HISTORIES": "800", "TREX_SEARCH_DEPTH": "6"}
MOST_SECONDS = 30.0
"""Of tests, for one mutant; more would be spent on those that nothing finds."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "memory.py", "def __init__(self, at: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:",
        "1 -> 2",
    ): "any moment will do to begin with",
    ("_calls.py", "if code is None or len(code) > 4:", "4 -> 5"): "it has 4 or 10",
    (
        "memory.py", "if len(taken) < limit and after == 0 and correlation_id is None:",
        "Is -> IsNot",
    ): "a safety net: no call leaves a waiting head",
    ("worker/loop.py", "await self._extend(old[start : start + 500])", "500 -> 501"): (
        "any number up to 1,000 will do"
    ),
    ("postgres.py", "cursor.format = Format.BINARY", "assignment -> pass"): "equal values",
    ("worker/delivery.py", "asked_late_enough = left + _TICK <= 0 or window == 0", "LtE -> Lt"): (
        "one moment of a clock in floats"
    ),
}  # fmt: skip
"""(file, line of code, change) -> why no test can find it."""

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NAMED_LAST = {"_require", "_check_sequence", "_check_on"}


@dataclass(frozen=True)
class Place:
    """A function of the core; `first` is the first line of its code, with its decorators."""

    file: str
    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Mutant:
    """The `number`-th change of a function."""

    place: Place
    number: int
    line: int
    change: str

    def told(self) -> str:
        """Where, what the line is, and how it is changed."""
        return f"{self.place.file}:{self.line} {self.place.name}: {self.change}"


class Changer(ast.NodeTransformer):
    """Counts the changes that a function can have, and makes the one with number `wanted`."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str]] = []

    def _offer(self, node: Any, changed: Any, change: str) -> Any:
        self.found.append((node.lineno, change))
        return ast.copy_location(changed, node) if len(self.found) - 1 == self.wanted else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        kept = node.body[: len(node.body) - len(body)]
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.args.kw_defaults = [one and self.visit(one) for one in node.args.kw_defaults]
        node.body = kept + [self.visit(one) for one in body]
        return node

    visit_AsyncFunctionDef: Any = visit_FunctionDef  # noqa: N815

    def visit_Assert(self, node: ast.Assert) -> Any:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        return self._offer(node, ast.Pass(), "raise -> pass")

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Constant):
            return node
        changed = self._offer(node, ast.Pass(), "call -> pass")
        return self.generic_visit(node) if changed is node else changed

    def visit_Assign(self, node: ast.Assign) -> Any:
        changed: Any = node
        if not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
            changed = self._offer(node, ast.Pass(), "assignment -> pass")
        return self.generic_visit(node) if changed is node else changed

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        changed = self._offer(node, ast.Pass(), "assignment -> pass")
        return self.generic_visit(node) if changed is node else changed

    def visit_Break(self, node: ast.Break) -> Any:
        return self._offer(node, ast.Continue(), "break -> continue")

    def visit_Continue(self, node: ast.Continue) -> Any:
        return self._offer(node, ast.Break(), "continue -> break")

    def visit_Call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "cast" or name.endswith(("Error", "InvalidArgument")):
            return node
        if name in _NAMED_LAST:
            node.args[:-1] = [self.visit(one) for one in node.args[:-1]]
            return node
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> Any:
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        for at, operator in enumerate(node.ops):
            other = _COMPARE[type(operator)]
            changed = copy.copy(node)
            changed.ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            change = f"{type(operator).__name__} -> {other.__name__}"
            if self._offer(node, changed, change) is not node:
                return changed
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        isand = isinstance(node.op, ast.And)
        changed = ast.BoolOp(ast.Or() if isand else ast.And(), node.values)
        return self._offer(node, changed, "and -> or" if isand else "or -> and")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return self._offer(node, node.operand, "not x -> x")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        other = _BINARY.get(type(node.op))
        if other is None:
            return node
        changed = ast.BinOp(node.left, other(), node.right)
        return self._offer(node, changed, f"{type(node.op).__name__} -> {other.__name__}")

    def visit_If(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
            changed = copy.copy(node)
            changed.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            return self._offer(node, changed, "if x -> if not x")
        return node

    visit_IfExp = visit_If  # noqa: N815
    visit_While = visit_If  # noqa: N815

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, bool):
            return self._offer(node, ast.Constant(not value), f"{value} -> {not value}")
        if isinstance(value, int):
            return self._offer(node, ast.Constant(value + 1), f"{value} -> {value + 1}")
        if isinstance(value, str) and value:
            return self._offer(node, ast.Constant(value + "X"), "text -> textX")
        return node


Functions = dict[Place, tuple[ast.AST, tuple[str, ...]]]


def functions(file: str) -> Functions:
    """The outermost functions of a file, each with the classes that it is in."""
    found: Functions = {}

    def look(body: Iterable[ast.stmt], classes: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, (*classes, node.name))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                name = ".".join((*classes, node.name))
                found[Place(file, name, first, node.end_lineno or first)] = (node, classes)

    look(ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body, ())
    return found


def mutants(known: Functions) -> list[Mutant]:
    """All changes of all functions."""
    found = []
    for place, (node, _) in known.items():
        changer = Changer()
        changer.visit(copy.deepcopy(node))
        found += [Mutant(place, n, line, change) for n, (line, change) in enumerate(changer.found)]
    return found


def plant(mutant: Mutant, known: Functions) -> None:
    """Change the function in this process, wherever it is referred to.

    Raises:
        ValueError: the interpreter can't: the change takes away a variable of an enclosing scope.
    """
    place = mutant.place
    node, classes = known[place]
    changed: Any = Changer(mutant.number).visit(copy.deepcopy(node))
    body = changed
    for name in reversed(classes):
        body = ast.ClassDef(name, bases=[], keywords=[], body=[body], decorator_list=[])
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], level=0)
    module = ast.fix_missing_locations(ast.Module([future, body], type_ignores=[]))
    path = str(PACKAGE / place.file)
    # What is made inside of it, such as a decorator's wrapper, is there already.
    codes = {_name(code): code for code in _codes(compile(module, path, "exec"))}
    found = [f for f in gc.get_objects() if isinstance(f, FunctionType)]
    for function in found:
        before = function.__code__
        if before.co_filename != path or _name(before) not in codes:
            continue
        function.__code__ = codes[_name(before)]
        if _name(before) == (place.name, place.first):
            scope = function.__globals__
            values = [_value(one, scope) for one in changed.args.defaults]
            function.__defaults__ = tuple(values) or None
            for argument, one in zip(
                changed.args.kwonlyargs, changed.args.kw_defaults, strict=True
            ):
                if one is not None and function.__kwdefaults__ is not None:
                    function.__kwdefaults__[argument.arg] = _value(one, scope)
    for name, module_ in list(sys.modules.items()):
        if name.startswith("trex_client"):
            for value in vars(module_).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.fix_missing_locations(ast.Expression(node)), "default", "eval"), scope)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


class Trial:
    """How far a mutant's process is; `ended`, the number of its tests, is shared with it."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = tests
        self.ended = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._seen = (0, time.monotonic())

    def hangs(self, seconds: dict[str, float]) -> bool:
        """Whether the present test takes far longer than it did without the mutant."""
        number, now = self.ended[0], time.monotonic()
        if number != self._seen[0]:
            self._seen = (number, now)
        usual = seconds[self.tests[min(number, len(self.tests) - 1)]]
        return now - self._seen[1] > 10 + 5 * usual


@dataclass(eq=False)
class Runner:
    """A pytest plugin that runs the mutants instead of the tests."""

    options: argparse.Namespace
    known: Functions
    chosen: list[Mutant]
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    verdicts: dict[Mutant, str] = field(default_factory=dict)
    on_server: set[str] = field(default_factory=set)
    failed: bool = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that need a server, or all but those of the newest."""
        if not self.options.server:
            items[:] = [item for item in items if not _needs_server(item)]
            return
        versions = sorted({v for item in items if (v := _version(item)) is not None})
        items[:] = [item for item in items if _version(item) in (None, versions[-1])]
        self.on_server = {item.nodeid for item in items if _needs_server(item)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test failed, in the first run or with a mutant."""
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Time the tests, then fork for each mutant."""
        self._run_once(session)
        if self.failed:
            raise session.Failed("the tests fail without a mutant")
        first = Trial([item.nodeid for item in session.items[:20]])
        _, status = os.waitpid(self._fork(None, session.items[:20], first), 0)
        if status:
            raise session.Failed("the tests fail in a process of their own")
        items = {item.nodeid: item for item in session.items}
        started = time.monotonic()
        running: dict[int, tuple[Mutant, Trial]] = {}
        waiting = list(reversed(self.chosen))
        while waiting or running:
            while waiting and len(running) < self.options.jobs:
                mutant = waiting.pop()
                tests = self._tests(mutant)
                if not tests:
                    self.verdicts[mutant] = "not called by any test"
                    continue
                trial = Trial(tests)
                running[self._fork(mutant, [items[n] for n in tests], trial)] = (mutant, trial)
            for pid, (mutant, trial) in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and trial.hangs(self.seconds):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    done, status = pid, -1
                if done:
                    del running[pid]
                    self.verdicts[mutant] = _verdict(status)
                    self._tell(started)
            time.sleep(0.01)
        return True

    def _run_once(self, session: pytest.Session) -> None:
        by_line = {
            (str(PACKAGE / place.file), line): place
            for place in self.known
            for line in range(place.first, place.last + 1)
        }
        files = {path for path, _ in by_line}
        seen: set[CodeType] = set()

        def profile(frame: Any, event: str, _: object) -> None:
            if event == "call":
                seen.add(frame.f_code)

        for item, following in _with_next(session.items):
            seen.clear()
            started = time.monotonic()
            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            self.seconds[item.nodeid] = time.monotonic() - started
            self.calls[item.nodeid] = {
                by_line[code.co_filename, code.co_firstlineno]
                for code in seen
                if code.co_filename in files and (code.co_filename, code.co_firstlineno) in by_line
            }

    def _tests(self, mutant: Mutant) -> list[str]:
        """Those that call or read the function, the quickest first, for half a minute at most."""
        chosen, total = [], 0.0
        for name in sorted(self.seconds, key=lambda one: self.seconds[one]):
            reads = mutant.place in self.calls[name] or name.startswith(READERS)
            if reads and total < MOST_SECONDS:
                chosen.append(name)
                total += self.seconds[name]
        # A module's tests share a database: together, and after those that need none.
        modules = {
            name: name.partition("::")[0] if name in self.on_server else "" for name in chosen
        }
        order = list(dict.fromkeys(["", *modules.values()]))
        return sorted(chosen, key=lambda name: order.index(modules[name]))

    def _fork(self, mutant: Mutant | None, items: Sequence[pytest.Item], trial: Trial) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 2
        try:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            if mutant is not None:
                plant(mutant, self.known)
            code = 0
            for item, following in _with_next(items):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                trial.ended[0] += 1
                if self.failed:
                    code = 1
                    break
        except ValueError:
            code = 3
        finally:
            os._exit(code)

    def _tell(self, started: float) -> None:
        done = len(self.verdicts)
        counts = Counter(self.verdicts.values())
        print(
            f"\r{done}/{len(self.chosen)} mutants, {counts['killed'] + counts['too slow']} found,"
            f" {time.monotonic() - started:.0f} s   ",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip


class _Session:
    """Comes after the last test, and keeps the fixtures of the session: the servers."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        """As a test has it: the nodes that it needs."""
        return [self._session]


def _with_next(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, Any]]:
    return zip(items, [*items[1:], _Session(items[0].session)], strict=True)


def _needs_server(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    return bool(names & SERVER_FIXTURES) or _version(item) is not None


def _version(item: pytest.Item) -> int | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    for name in ("house", "postgres_house", "pg_server"):
        if isinstance(params.get(name), int):
            return int(params[name])
    return None


def _verdict(status: int) -> str:
    if status == -1:
        return "too slow"
    code = os.waitstatus_to_exitcode(status)
    return {0: "survived", 3: "not possible"}.get(code, "killed")


def line_of(mutant: Mutant) -> str:
    """The line of code that is changed."""
    lines = (PACKAGE / mutant.place.file).read_text(encoding="utf-8").splitlines()
    return lines[mutant.line - 1].strip()


def report(verdicts: dict[Mutant, str], every: Counter[str], seed: int, *, server: bool) -> str:
    """The table and the survivors, as Markdown."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for mutant, verdict in verdicts.items():
        word = verdict
        if verdict in ("survived", "not called by any test"):
            why = EQUIVALENT.get((mutant.place.file, line_of(mutant), mutant.change))
            word = "equivalent" if why else "lives"
            survivors.append((mutant, why or verdict))
        rows[mutant.place.file][word] += 1
    by = "all tests of the core" if server else "those tests of the core that need no server"
    margin = error(judge(verdicts), every.total())
    lines = [
        "# Mutants of the Python core",
        "",
        "<!-- Written by `python -m tools.mutate --report`. What it means: ../proof.md -->",
        "",
        (
            f"{len(verdicts):,} of {every.total():,} mutants, drawn with seed {seed}"
            f" ({judge(verdicts)['not possible']} not possible); judged by"
            f" {by}. Of a sample, the score may be {margin:.1%} too high."
        ),
        "",
        "| file | mutants | tried | found | by taking too long | equivalent | live | score |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    total: Counter[str] = Counter()
    for name in (*(name for name in CORE if rows[name]), "all"):
        counts = total if name == "all" else rows[name]
        if name != "all":
            total.update(counts)
        number = every.total() if name == "all" else every[name]
        tried = counts.total() - counts["not possible"]
        lines.append(
            f"| {name} | {number:,} | {tried:,} | {counts['killed']:,} | {counts['too slow']:,}"
            f" | {counts['equivalent']:,} | {counts['lives']:,} | {score(counts):.1%} |"
        )
    lines += ["", "## Those that live", "", "| where | line | change | why |", "|---|---|---|---|"]
    for mutant, why in sorted(survivors, key=lambda one: (one[0].place.file, one[0].line)):
        code = line_of(mutant).replace("|", "\\|")
        where = f"{mutant.place.file} {mutant.place.name}"
        lines.append(f"| {where} | `{code}` | {mutant.change} | {why} |")
    return "\n".join(lines) + "\n"


def score(counts: Counter[str]) -> float:
    """The share of the mutants that can be found which was found."""
    found = counts["killed"] + counts["too slow"]
    return found / max(1, found + counts["lives"])


def error(counts: Counter[str], every: int) -> float:
    """How far the score of a sample may be below that of all, 19 times of 20."""
    share, tried = score(counts), counts["killed"] + counts["too slow"] + counts["lives"]
    return 1.645 * math.sqrt(share * (1 - share) / max(1, tried) * (1 - min(1, tried / every)))


def judge(verdicts: dict[Mutant, str]) -> Counter[str]:
    """How many of each."""
    counts: Counter[str] = Counter()
    for mutant, verdict in verdicts.items():
        word = verdict
        if verdict in ("survived", "not called by any test"):
            known = (mutant.place.file, line_of(mutant), mutant.change) in EQUIVALENT
            word = "equivalent" if known else "lives"
        counts[word] += 1
    return counts


def main(arguments: Sequence[str]) -> int:
    """Run; return 0 when enough were found."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--sample", type=int, help="how many, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once")
    parser.add_argument("--server", action="store_true", help="also tests that need a server")
    parser.add_argument(
        "--only", nargs="+", default=CORE, help="file.py, file.py:function or file.py:line"
    )
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument(
        "--least",
        type=float,
        default=0.85,
        help="share that must be found, within a sample's error",
    )
    parser.add_argument("--report", type=Path, help="write a page")
    options = parser.parse_args(arguments)
    known: Functions = {}
    every: list[Mutant] = []
    for wanted in options.only:
        file, _, name = wanted.partition(":")
        here = {
            place: one
            for place, one in functions(file).items()
            if not name or name.isdecimal() or place.name.rpartition(".")[2] == name
        }
        known |= here
        every += [one for one in mutants(here) if not name.isdecimal() or one.line == int(name)]
    chosen = sorted(every, key=lambda one: (one.place.file, one.line, one.number))
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    for name, size in _SIZES.items():
        os.environ.setdefault(name, size)
    runner = Runner(options, known, chosen)
    code = pytest.main(
        ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly",
         *options.tests],
        plugins=[runner],
    )  # fmt: skip
    if code != pytest.ExitCode.OK or not runner.verdicts:
        print(f"the tests themselves don't pass: {code!r}")
        return 2
    counts = judge(runner.verdicts)
    for mutant, verdict in sorted(runner.verdicts.items(), key=lambda one: one[0].told()):
        if verdict in ("survived", "not called by any test"):
            print(f"\n{mutant.told()}: {verdict}\n    {line_of(mutant)}", end="")
    margin = error(counts, len(every))
    print(f"\nmutants {dict(counts)}, score {score(counts):.1%} +- {margin:.1%}")
    if options.report:
        everywhere = Counter(one.place.file for one in every)
        text = report(runner.verdicts, everywhere, options.seed, server=options.server)
        options.report.write_text(text, encoding="utf-8")
    return 0 if score(counts) + margin >= options.least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
