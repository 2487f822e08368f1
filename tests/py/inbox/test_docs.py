"""The examples on the pages of inbox, operations, authority and reconciliation run as printed."""

from __future__ import annotations

import re

import pytest

from tests.support.criteria import ROOT

PAGES = [
    "inbox",
    "webhooks",
    "operations-and-machines",
    "authority",
    "usage",
    "reads",
    "reconcile",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"docs/{page}.md", "exec"), {})
