--
-- What produce() refuses.  (What it sends is in test/t/050_produce.pl.)
--
\getenv broker BROKER
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
CREATE ROLE regress_producer;

SELECT kafka.produce('regress_produce', 'x');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', pipeline => 'regress_none');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_one', 'kafka', options => '{"progress_topic": "regress_produce_progress"}');
SELECT kafka.produce('regress_produce', 'x', pipeline => 'regress_none');

-- Topic
SELECT kafka.produce(NULL, 'x');
\echo :SQLSTATE
SELECT kafka.produce('', 'x');
\echo :SQLSTATE
SELECT kafka.produce('no blanks', 'x');
SELECT kafka.produce('..', 'x');
SELECT kafka.produce('café', 'x');
SELECT kafka.produce(repeat('x', 250), 'x');
SELECT kafka.produce('regress_produce_progress', 'x');
\echo :SQLSTATE
-- Partition
SELECT kafka.produce('regress_produce', 'x', partition => -1);
\echo :SQLSTATE
-- Headers
SELECT kafka.produce('regress_produce', 'x', headers => '["a", "b"]');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', headers => '"a"');
SELECT kafka.produce('regress_produce', 'x', headers => 'null');
SELECT kafka.produce('regress_produce', 'x', headers => '{"a": {"b": 1}}');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', headers => '{"a": ["1", ["2"]]}');
SELECT kafka.produce('regress_produce', 'x', headers => '{"a": ["1", {}]}');
SELECT kafka.produce('regress_produce', 'x', headers => '{"a": "\u0000"}');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', headers => '{"\ud800": "1"}');
SELECT kafka.produce('regress_produce', 'x', headers => '{"a": "1"');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', headers => jsonb_build_object(repeat('x', 65536), '1'));
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', headers => (SELECT jsonb_build_object('h', jsonb_agg(i)) FROM generate_series(1, 1001) i));
\echo :SQLSTATE
-- Types: text, bytea and jsonb, and a key of that kind
SELECT kafka.produce('regress_produce', 1);
SELECT kafka.produce('regress_produce', '{}'::jsonb, '\x00'::bytea);

-- Transactions that don't write
BEGIN READ ONLY;
SELECT kafka.produce('regress_produce', 'x');
\echo :SQLSTATE
ROLLBACK;
-- What failed leaves its transaction as usable as any error does: a record after it counts.
BEGIN;
SAVEPOINT s;
SELECT kafka.produce('no blanks', 'x');
ROLLBACK TO s;
SELECT kafka.produce('regress_produce', 'after an error');
COMMIT;
SELECT kafka.wait_for(timeout => '1min');
SELECT records, rejected_messages FROM kafka.stat_pipelines;

-- Whoever has USAGE on the server, through any role, and nobody else
SET ROLE regress_producer;
SELECT kafka.produce('regress_produce', 'x');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', pipeline => 'regress_one');
SELECT * FROM kafka.produce_key;
\echo :SQLSTATE
SELECT kafka.make_key();
\echo :SQLSTATE
SELECT kafka.rotate_key();
\echo :SQLSTATE
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER kafka TO regress_producer;
SET ROLE regress_producer;
SELECT kafka.produce('regress_produce', 'x');
RESET ROLE;
REVOKE USAGE ON FOREIGN SERVER kafka FROM regress_producer;
SET ROLE regress_producer;
SELECT kafka.produce('regress_produce', 'x');
RESET ROLE;

-- Two pipelines: one must be named
CALL kafka.create_pipeline('regress_two', 'kafka');
SELECT kafka.produce('regress_produce', 'x');
\echo :SQLSTATE
SELECT kafka.produce('regress_produce', 'x', pipeline => 'regress_two');
-- A progress topic is nobody's, whichever pipeline it belongs to.
SELECT kafka.produce('regress_produce_progress', 'x', pipeline => 'regress_two');
SELECT kafka.wait_for(timeout => '1min');
SELECT pipeline, records, rejected_messages FROM kafka.stat_pipelines ORDER BY pipeline;

CALL kafka.drop_pipeline('regress_one');
CALL kafka.drop_pipeline('regress_two');
SELECT kafka.produce('regress_produce', 'x');
DROP ROLE regress_producer;
DROP SERVER kafka;
DROP EXTENSION transactional_kafka;
