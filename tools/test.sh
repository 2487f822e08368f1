#!/bin/bash
# Everything that CI checks, as `make test` runs it.
#   test.sh          linters, type checks, then all tests
#   test.sh --lint   without the tests
#   test.sh ARGS     the same, with these arguments for pytest
# Each step runs even when an earlier one failed; the exit code is 0 only if all passed.
set -u

cd "$(dirname "$0")/.." || exit 2
bin=${VENV:-$PWD/.venv}/bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT
summary=()
failed=0

step() {
    local name=$1 start=$SECONDS result=ok
    shift
    printf '== %s\n' "$name"
    "$@" </dev/null || { result=FAILED failed=1; }
    summary+=("$(printf '%-8s %5ss  %s' "$result" $((SECONDS - start)) "$name")")
}

whitespace() {
    git rev-parse --git-dir >/dev/null 2>&1 || { echo "not a git checkout"; return 0; }
    git diff --check "$(git hash-object -t tree /dev/null)"
}

pytest_args=(-n "${TREX_TEST_PROCESSES:-2}" --dist=worksteal)
lint_only=0
if [ "${1:-}" = --lint ]; then
    lint_only=1
    shift
fi

step "ruff check" "$bin/ruff" check .
step "ruff format" "$bin/ruff" format --check .
step "compileall" "$bin/python" -m compileall -q trex_client tests tools
step "mypy --strict" "$bin/mypy"
step "sqlfluff" "$bin/python" -m tools.lint_sql sql
step "parse SQL and PL/pgSQL" "$bin/python" -m tools.parse_sql sql
step "plpgsql_check" "$bin/python" -m tools.check_plpgsql
step ".proofline" "$bin/python" -m tools.proofline .
step "whitespace" whitespace
if [ "$lint_only" = 0 ]; then
    step "pytest" "$bin/python" -m pytest "${pytest_args[@]}" "$@"
fi

printf '\n== summary after %ss\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
exit "$failed"
