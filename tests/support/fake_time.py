"""An event loop whose clock moves when all tasks wait, and only then: hours pass in no time."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class _NoWait(selectors.DefaultSelector):
    """Where others would wait, time passes."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everything waits for nothing"
            self.passed += max(0.0, timeout)
        return found


class FakeTime(asyncio.SelectorEventLoop):
    """An event loop with a clock that moves when all tasks wait, and only then."""

    def __init__(self) -> None:
        self._passing = _NoWait()
        super().__init__(self._passing)

    def time(self) -> float:
        return self._passing.passed


def on_fake_time(test: Coroutine[Any, Any, Any]) -> None:
    with asyncio.Runner(loop_factory=FakeTime) as runner:
        runner.run(test)
