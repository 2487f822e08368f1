"""The committed files: generated ones are true, and the release can be read."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from trex_client import migrate as m

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037")


def test_generated_files_are_up_to_date():
    assert m.check() == ()


def test_the_sums_are_what_sha256sum_checks():
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"],
        cwd=m.sql_root() / "migrations",
        check=True,
    )


def test_a_stale_generated_file_is_told_and_refreshed(tree):
    (tree.root / "release.psql").write_text("")
    (tree.root / "migrations.psql").unlink()
    assert len(m.check(root=tree.root)) == 2
    assert set(m.refresh(root=tree.root)) == {"release.psql", "migrations.psql"}
    assert m.check(root=tree.root) == ()
    assert m.refresh(root=tree.root) == ()


def test_every_function_file_is_in_the_order():
    release = m.load_release()
    found = {str(p.relative_to(release.root)) for p in release.root.glob("functions/**/*.sql")}
    assert found == {f.name for f in release.functions}


def test_migrations_hold_no_meta_commands_and_no_transaction_control():
    for file in m.load_release().migrations:
        outside = re.sub(r"\$\$.*?\$\$", "", file.text, flags=re.DOTALL)
        assert not re.search(r"^\s*(\\|begin\b|commit\b|rollback\b)", outside, re.MULTILINE)
        assert "cascade" not in outside


def test_the_release_changes_with_a_function_its_order_or_its_name(tree):
    before = m.load_release(tree.root).function_release
    order = tree.root / "functions.psql"
    kept = order.read_text()
    lines = [line for line in kept.splitlines() if line.startswith("\\ir")]
    order.write_text("\n".join(reversed(lines)))
    assert m.load_release(tree.root).function_release != before
    order.write_text(f"{kept}\n-- a remark\n")
    assert m.load_release(tree.root).function_release == before
    with (tree.root / lines[0].split()[1]).open("a") as file:
        file.write("\n")
    assert m.load_release(tree.root).function_release != before
