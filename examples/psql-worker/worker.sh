#!/bin/bash
# A worker that is only psql: claims, posts to a ledger in another database, records what became of it.
#
#   worker.sh [--once]
#
#   PGHOST, PGDATABASE, ...   where trex is (libpq's variables), as a role with trex_worker that is
#                             bound to the instance
#   TREX_INSTANCE             whose messages
#   LEDGER_SERVICE            where the ledger is: a service of pg_service.conf (or PGSERVICEFILE),
#                             its password in there or in .pgpass: every process of the machine can
#                             read a command line
#
# --once ends when nothing can be claimed. Otherwise it asks again every second, until SIGTERM: then
# it finishes its batch and ends. It ends with 1 on what no waiting repairs, such as TX403.
set -uo pipefail

: "${TREX_INSTANCE:?}" "${LEDGER_SERVICE:?}"
worker="psql-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')"
once=${1:-}
stopping=
trap 'stopping=1' TERM INT
errors=$(mktemp) || exit 1
trap 'rm -f "$errors"' EXIT

# Fields are separated by U+001F: keys can't contain it, and JSON text escapes it.
unit=$'\x1f'

# ask SQL [NAME=VALUE...]: runs one statement, in which psql quotes each :'NAME'. The values go
# through \set on stdin, not on the command line.
ask() {
    local sql=$1 pair value
    shift
    {
        for pair in "$@"; do
            value=${pair#*=}
            value=${value//\\/\\\\}
            printf "\\set %s '%s'\n" "${pair%%=*}" "${value//\'/\\\'}"
        done
        printf '%s;\n' "$sql"
    } | psql -X -q -A -t -F "$unit" -v ON_ERROR_STOP=1 -v VERBOSITY=sqlstate -f - 2>"$errors"
}

# The same in the ledger's database; nothing of the connection to trex gets there.
ask_ledger() (
    unset PGHOST PGHOSTADDR PGPORT PGUSER PGPASSWORD PGDATABASE PGSERVICE
    export PGSERVICE=$LEDGER_SERVICE
    ask "$@"
)

# Of the last failure: its SQLSTATE, or nothing when there was no connection, or it was lost.
sqlstate() { sed -n 's/^.*: *\([0-9A-Z]\{5\}\)$/\1/p' "$errors" | head -n 1; }

# Is it an error that no waiting repairs: an argument, a right, a schema?
is_final() { [[ $1 =~ ^(TX|42|3F) && $1 != TX503 ]]; }

# The claim is one statement in autocommit: committed when psql has printed it, so its fences count.
claim() {
    ask "select message_id, fence, attempt, uncertain, effect_policy, topic, account, currency,
            cash_delta, payload,
            encode(sha256(convert_to('[' || to_json(:'instance'::text) || ',' || to_json(box) || ','
                || to_json(idempotency_key) || ']', 'UTF8')), 'hex')
        from trex.claim(:'instance', :'worker', p_limit => 10, p_lease => '1 minute')" \
        instance="$TREX_INSTANCE" worker="$worker"
}

# record FUNCTION MESSAGE FENCE [ARGUMENTS]: prints what came of it; a lost claim is told, not raised.
record() {
    local function=$1 message=$2 fence=$3 more=${4:-}
    shift 4
    local answer state=
    for _ in 1 2 3 4 5; do
        # The same call again is safe: it answers already_recorded.
        answer=$(ask "select status, state from trex.$function(:'instance', :'message'::bigint,
            :'fence'::bigint, ${more:+$more,} p_on_lost => 'report')" \
            instance="$TREX_INSTANCE" message="$message" fence="$fence" "$@") && break
        state=$(sqlstate)
        is_final "$state" && break
        sleep 1
    done
    [ -n "$answer" ] || answer="not recorded: ${state:-no connection}"
    echo "$message $function ${answer//$unit/ }"
}

deliver() {
    local message=$1 fence=$2 attempt=$3 uncertain=$4 policy=$5 topic=$6 account=$7 currency=$8
    local amount=$9 payload=${10} key=${11}
    local answer result reference balance version ours

    if [ "$uncertain" = t ]; then
        # An earlier attempt may have arrived: ask first.
        answer=$(ask_ledger "select found, reference, balance, version,
                (account, currency, amount) is not distinct from (nullif(:'account', ''),
                    nullif(:'currency', ''), nullif(:'amount', '')::numeric)
            from ledger.lookup(:'key')" \
            key="$key" account="$account" currency="$currency" amount="$amount")
        IFS=$unit read -r result reference balance version ours <<<"$answer"
        if [ "$result" = t ] && [ "$ours" != t ]; then
            # Somebody else has used the key; our movement isn't in the ledger.
            record conflict "$message" "$fence" ''
            return
        fi
        if [ "$result" = t ]; then
            record complete "$message" "$fence" "p_reference => :'reference', p_confirmed_by => 'lookup',
                p_balance => nullif(:'balance', '')::numeric, p_version => nullif(:'version', '')::bigint" \
                reference="$reference" balance="$balance" version="$version"
            return
        fi
        if [ "$result" != f ]; then
            # Nobody knows, so nothing is sent.
            record mark_unknown "$message" "$fence" "p_reason => 'lookup_failed'"
            return
        fi
    fi
    if [ "$policy" = at_most_once ]; then
        # Committed before the call: if this worker dies now, nobody sends it a second time.
        [[ $(record mark_sent "$message" "$fence" '') == *recorded* ]] || return
    fi

    answer=$(ask_ledger "select result, reference, balance, version
        from ledger.post(:'key', :'fence'::bigint, :'attempt'::integer, :'topic',
            nullif(:'account', ''), nullif(:'currency', ''), nullif(:'amount', '')::numeric,
            :'payload'::jsonb)" \
        key="$key" fence="$fence" attempt="$attempt" topic="$topic" account="$account" \
        currency="$currency" amount="$amount" payload="$payload")
    local code=$?
    IFS=$unit read -r result reference balance version <<<"$answer"
    # psql: 3 is an error in SQL, so the ledger rolled back; anything else may have committed.
    [ "$code" = 0 ] || result=failed-$code
    local snapshot="p_reference => :'reference', p_balance => nullif(:'balance', '')::numeric,
        p_version => nullif(:'version', '')::bigint"
    local values=(reference="$reference" balance="$balance" version="$version")
    case $result in
        posted) record complete "$message" "$fence" "$snapshot" "${values[@]}" ;;
        duplicate) record complete_duplicate "$message" "$fence" "$snapshot" "${values[@]}" ;;
        conflict) record conflict "$message" "$fence" '' ;;
        refused) record fail "$message" "$fence" 'p_absent => true' ;;
        retry) record retry "$message" "$fence" "p_reason => 'unavailable'" ;;
        stale_fence) record mark_unknown "$message" "$fence" "p_reason => 'stale_version'" ;;
        failed-3) record retry "$message" "$fence" "p_reason => 'server_error'" ;;
        *) record mark_unknown "$message" "$fence" "p_reason => 'connection_lost'" ;;
    esac
}

while [ -z "$stopping" ]; do
    if ! rows=$(claim); then
        state=$(sqlstate)
        echo "nothing claimed: ${state:-no connection, or it was lost}" >&2
        if [ -n "$once" ] || is_final "$state"; then exit 1; fi
        sleep 2
        continue
    fi
    if [ -z "$rows" ]; then
        [ -n "$once" ] && exit 0
        sleep 1
        continue
    fi
    while IFS=$unit read -r -u 3 -a field; do
        deliver "${field[@]}"
    done 3<<<"$rows"
done
