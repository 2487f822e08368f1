"""Puts a mutant into a database, and runs what has to find it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tests.py.mutants.kills import KILLS, Rig, WrongCodeError
from tests.support.criteria import ROOT
from trex_client.migrate import load_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.py.mutants.mutants import Mutant
    from tests.support.databases import Database, Server

SQL = ROOT / "sql"
REPORT = ROOT / "docs" / "proof" / "mutants.md"


class PatchError(AssertionError):
    """A patch doesn't apply any more, or what it makes doesn't run."""


@dataclass(frozen=True)
class Death:
    """How a mutant was found."""

    kill: str
    how: str


def patched(mutant: Mutant) -> dict[str, str]:
    """The text of each file that the mutant changes."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.patches:
        text = texts.get(file) or (SQL / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise PatchError(f"{mutant.name}: {file} has {text.count(old)} times:\n{old}")
        texts[file] = text.replace(old, new)
    return texts


def build(server: Server, template: str, mutant: Mutant) -> Database:
    """A database with the mutant's schema: a copy with other functions, or a new one when a
    migration is changed."""
    texts = patched(mutant)
    if not any(file.startswith("migrations/") for file in texts):
        database = server.create_database(template)
        run_files(database, [texts[file] for file in texts])
        return database
    database = server.create_database()
    server.create_roles(database.dbname)
    release = load_release(SQL)
    names = [f"migrations/{file.name}.sql" for file in release.migrations]
    everything = [*names, *(file.name for file in release.functions)]
    run_files(
        database,
        [texts.get(name) or (SQL / name).read_text(encoding="utf-8") for name in everything],
    )
    return database


def run_files(database: Database, texts: Iterable[str]) -> None:
    """Run files of the release as their owner, each in a transaction."""
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        conn.execute("set role trex_owner")
        for text in texts:
            try:
                with conn.transaction():
                    conn.execute(text.encode())
            except psycopg.Error as error:
                raise PatchError(f"a mutated file doesn't run: {error}") from None


def find(database: Database, name: str, codes: tuple[str, ...] = ()) -> Death | None:
    """Run one kill; None when it passes. An SQLSTATE is a verdict only when it is one of `codes`:
    any other may come from an accident of the patch."""
    kill: Callable[[Rig], None] = KILLS[name]
    rig = Rig(database, database.connect())
    try:
        kill(rig)
    except WrongCodeError as error:
        code, how = error.code, str(error)
    except AssertionError as error:
        return Death(name, (str(error).splitlines() or ["an assertion failed"])[0])
    except psycopg.Error as error:
        code, how = error.sqlstate or "", f"SQLSTATE {error.sqlstate}: {error}".splitlines()[0]
    else:
        return None
    if code not in codes:
        raise PatchError(f"{name}: {how}; what counts is {codes or 'no SQLSTATE'}")
    return Death(name, how)


def kill(server: Server, template: str, mutant: Mutant) -> Death | None:
    """Build a mutant and run its kills until one finds it."""
    database = build(server, template, mutant)
    try:
        for name in mutant.kills:
            if death := find(database, name, mutant.codes):
                return death
        return None
    finally:
        database.close()
