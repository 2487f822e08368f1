"""Run sqlfluff over every SQL file, psql's commands and variables taken out.

Line numbers stay. Configuration: `tool.sqlfluff` in `pyproject.toml`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.parse_sql import plain


def main(folders: list[str]) -> int:
    """Lint all `.sql` files below the folders; return the exit code."""
    root = Path.cwd()
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.sql"))
    with tempfile.TemporaryDirectory() as copy:
        for path in paths:
            target = Path(copy, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(plain(path.read_text(encoding="utf-8")), encoding="utf-8")
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "sqlfluff", "lint"),
                *("--config", root / "pyproject.toml"),
                *("--disable-progress-bar", "--nocolor", "--processes", "2"),
                *folders,
            ],
            cwd=copy,
            check=False,
        )
    print(f"{len(paths)} files")
    return answer.returncode if paths else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
