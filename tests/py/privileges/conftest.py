from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.py.privileges.calls import House, make_house

if TYPE_CHECKING:
    from tests.support.databases import Database


@pytest.fixture
def house(pg_db: Database) -> House:
    """Two instances with messages in every state; all probe roles are bound to one of them."""
    return make_house(pg_db)
