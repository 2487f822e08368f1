// A worker in Node.js: claims batches, posts them to a ledger in another database, records all
// outcomes of a batch in one call, and is woken by NOTIFY.
//
//   node worker.mjs [--once]
//
//   TREX_DSN        connection string of a role with trex_worker that is bound to the instance
//   TREX_INSTANCE   whose messages
//   LEDGER_DSN      connection string of the ledger's database
//
// --once ends when nothing can be claimed. SIGTERM finishes the batch and ends.

import { createHash, randomBytes } from 'node:crypto';

const pg = await import('pg').then(
  (found) => found.default,
  () => {
    console.error('the package pg is missing: run npm install in the folder of worker.mjs');
    process.exit(2);
  },
);
const { TREX_DSN, TREX_INSTANCE: instance, LEDGER_DSN } = process.env;
if (!TREX_DSN || !instance || !LEDGER_DSN) {
  console.error('TREX_DSN, TREX_INSTANCE and LEDGER_DSN are needed');
  process.exit(2);
}
const once = process.argv.includes('--once');
const worker = `node-${randomBytes(8).toString('hex')}`;
const BATCH = 50;

// pg returns bigint and numeric as strings, and so they stay: no digit is lost.
const trex = new pg.Pool({ connectionString: TREX_DSN, max: 2, application_name: 'trex-node' });
const ledger = new pg.Pool({ connectionString: LEDGER_DSN, max: 8 });
for (const pool of [trex, ledger]) pool.on('error', () => {}); // an idle session ended: ask again

let stopping = false;
let wake = () => {};
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    stopping = true;
    wake();
  });
}
const pause = (ms) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });

// The key that the ledger sees: the same on every attempt, and in every language.
const wireKey = (row) =>
  createHash('sha256')
    .update(JSON.stringify([instance, row.box, row.idempotency_key]))
    .digest('hex');

// One statement in autocommit: when it has returned, it is committed, and its fences count.
// The payload as text: JSON.parse would round its numbers.
const claim = async () =>
  (
    await trex.query(
      `select message_id, fence, attempt, uncertain, effect_policy, box, topic, idempotency_key,
              account, currency, cash_delta, payload::text as payload
         from trex.claim($1, $2, p_limit => $3, p_lease => '1 minute')`,
      [instance, worker, BATCH],
    )
  ).rows;

async function deliver(row) {
  const key = wireKey(row);
  if (row.uncertain) {
    // An earlier attempt may have arrived: ask first.
    try {
      const found = await ledger.query(
        `select found, reference, balance, version,
                (account, currency, amount) is not distinct from ($2::text, $3::text, $4::numeric) as ours
           from ledger.lookup($1)`,
        [key, row.account, row.currency, row.cash_delta],
      );
      // Not ours: somebody else has used the key, and our movement isn't in the ledger.
      if (found.rows[0].found && !found.rows[0].ours) return { result: 'conflict', reason: 'key_conflict' };
      if (found.rows[0].found) return { result: 'completed', confirmedBy: 'lookup', ...found.rows[0] };
    } catch {
      return { result: 'unknown', reason: 'lookup_failed' };
    }
  }
  if (row.effect_policy === 'at_most_once') {
    // Committed before the call: if this process dies now, nobody sends it a second time.
    const marked = await trex.query(
      "select status from trex.mark_sent($1, $2, $3, p_on_lost => 'report')",
      [instance, row.message_id, row.fence],
    );
    if (!marked.rows[0].status.endsWith('recorded')) return { result: 'released', reason: 'not_started' };
  }
  let answer;
  try {
    answer = await ledger.query('select * from ledger.post($1, $2, $3, $4, $5, $6, $7, $8)', [
      key, row.fence, row.attempt, row.topic, row.account, row.currency, row.cash_delta, row.payload,
    ]);
  } catch (error) {
    // With a severity it is the ledger's own refusal, and rolled back. Without, it was the network.
    const rolledBack = error.severity === 'ERROR';
    return rolledBack
      ? { result: 'retry', reason: 'server_error' }
      : { result: 'unknown', reason: 'connection_lost' };
  }
  const posted = answer.rows[0];
  switch (posted.result) {
    case 'posted':
      return { ...posted, result: 'completed' };
    case 'duplicate':
      return { ...posted, result: 'duplicate' };
    case 'conflict':
      return { result: 'conflict', reason: 'key_conflict' };
    case 'refused':
      return { result: 'permanent', reason: 'rejected', absent: true };
    case 'retry':
      return { result: 'retry', reason: 'unavailable' };
    default:
      return { result: 'unknown', reason: 'stale_version' };
  }
}

// The same call again after a lost answer is safe: it says already_recorded.
async function record(rows, outcomes) {
  const column = (name) => outcomes.map((outcome) => outcome[name] ?? null);
  const values = [
    instance,
    rows.map((row) => row.message_id),
    rows.map((row) => row.fence),
    column('result'),
    column('reason'),
    column('absent'),
    column('confirmedBy'),
    column('reference'),
    column('balance'),
    column('version'),
  ];
  const recorded = await patiently(() =>
    trex.query(
      `select * from trex.record($1, $2, $3, $4, p_reasons => $5, p_absent => $6,
              p_confirmed_by => $7, p_references => $8, p_balances => $9, p_versions => $10)`,
      values,
    ),
  );
  recorded.rows.forEach((row, index) => {
    console.log(`${row.message_id} ${outcomes[index].result} ${row.status} ${row.state ?? ''}`);
  });
}

// What no waiting repairs: an argument, a right, a schema, a login, a database.
const FINAL = /^(TX(?!503)|42|3F|3D|28)/;

// A lost connection is made again; the rest is for people.
async function patiently(call) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await call();
    } catch (error) {
      const code = error.code ?? '';
      if (FINAL.test(code) || (once && attempt === 5)) throw error;
      console.error(`asking again after ${code || 'a lost connection'}`);
      await pause(Math.min(100 * 2 ** attempt, 5000));
      if (stopping && attempt > 5) throw error;
    }
  }
}

// A listener row, then LISTEN: enqueue notifies only those who said that they wait.
let listener = null;
async function listen() {
  try {
    listener ??= await trex.connect().then((client) => {
      client.on('notification', () => wake());
      client.on('error', () => { listener = null; wake(); });
      return client;
    });
    const answer = await listener.query("select trex.listen($1, $2, '60 seconds') as channel", [instance, worker]);
    await listener.query(`listen "${answer.rows[0].channel}"`);
  } catch {
    listener = null;
  }
}

let failed = false;
try {
  await patiently(() => ledger.query('select 1')); // before anything is claimed
  let idle = false;
  while (!stopping) {
    const rows = await patiently(claim);
    if (rows.length > 0) {
      idle = false;
      await record(rows, await Promise.all(rows.map(deliver)));
    } else if (once) {
      break;
    } else if (!idle) {
      // Say that we wait, then look once more: nothing falls between the two.
      idle = true;
      await listen();
    } else {
      idle = false;
      await pause(1000);
    }
  }
  if (listener) await listener.query('select trex.unlisten($1, $2)', [instance, worker]).catch(() => {});
} catch (error) {
  failed = true;
  console.error(`stopped: ${error.code ?? error.name}`);
}
listener?.release();
await Promise.allSettled([trex.end(), ledger.end()]);
process.exitCode = failed ? 1 : 0;
