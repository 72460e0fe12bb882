--
-- Options of pipelines and tables: create_pipeline, alter_pipeline and set_table.
--
\getenv broker BROKER
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
CREATE SCHEMA opt;
CREATE TABLE opt.orders (id int PRIMARY KEY, customer int NOT NULL, note text);
CREATE TABLE opt.customers (id int PRIMARY KEY, "Full Name" text);
CREATE TABLE opt.log (line text);

-- What create_pipeline refuses
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_intervall": "1s"}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"Envelope": "plain"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"colour": "blue"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '["envelope"]');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', options => '"plain"');
-- durations
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": "soon"}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": -1}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": "60d"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": true}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_timeout": "10ms"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": "1h"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_interval": "10s", "transaction_timeout": "10s"}');
-- numbers and sizes
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_max_records": 0}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_max_records": "many"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_max_records": [1]}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_max_bytes": "12 parsecs"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"checkpoint_max_bytes": 1}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"retained_checkpoints": 1}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"topic_partitions": 0}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"topic_replication_factor": 1001}');
-- choices
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"envelope": "cloudevents"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"envelope": {}}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"json": "yaml"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"scalars": "iso"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"schemas": "some"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"schemas": true, "json": "inline"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"tombstones": "maybe"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"create_topics": [true]}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"operations": "upsert"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"operations": ""}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"operations": []}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"operations": ["insert", 5]}');
-- names in Kafka
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"progress_topic": "my topic"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"progress_topic": 5}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"transactional_id_prefix": ""}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"transactional_id_prefix": "a b"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"topic_config": "retention.ms=1"}');
CALL kafka.create_pipeline('regress_x', 'kafka', options => '{"topic_config": {"retention.ms": {}}}');
SELECT count(*) FROM kafka.pipelines;

-- What it takes: JSON or text, units as in postgresql.conf, null for the default.
CALL kafka.create_pipeline('regress_opt', 'kafka', '{opt.orders,opt.customers}', options => '{
	"checkpoint_interval": "50ms", "checkpoint_timeout": 60000, "checkpoint_max_records": "5000",
	"checkpoint_max_bytes": "16MB", "retained_checkpoints": 10, "transaction_timeout": "1min", "envelope": "plain",
	"tombstones": "off", "operations": ["insert", "update"], "json": "inline", "metadata_headers": true,
	"create_topics": true, "topic_partitions": "2", "topic_replication_factor": 1,
	"topic_config": {"retention.ms": 3600000, "cleanup.policy": "delete"}, "transaction_metadata": null}');
SELECT jsonb_pretty(options) FROM kafka.pipelines;
SELECT (SELECT string_agg(substring(pubname FROM '_([a-z]+)$'), ' ' ORDER BY pubname) FROM pg_publication_tables
	WHERE tablename = 'orders') AS published;

--
-- alter_pipeline
--
-- Only what is named changes; null resets; the order doesn't matter.
SELECT kafka.alter_pipeline('regress_opt', '{"topic_config": null, "topic_partitions": null, "topic_replication_factor": null,
	"json": null, "checkpoint_timeout": null, "checkpoint_max_bytes": null, "checkpoint_max_records": null, "retained_checkpoints": null}');
SELECT options FROM kafka.pipelines;
SELECT kafka.alter_pipeline('regress_opt', '{"operations": null, "tombstones": true}');
SELECT options FROM kafka.pipelines;
SELECT (SELECT string_agg(substring(pubname FROM '_([a-z]+)$'), ' ' ORDER BY pubname) FROM pg_publication_tables
	WHERE tablename = 'orders') AS published;
SELECT kafka.alter_pipeline('regress_opt', '{}');

-- Errors change nothing.
SELECT kafka.alter_pipeline('regress_opt', '{"envelop": "plain"}');
\echo :SQLSTATE
SELECT kafka.alter_pipeline('regress_opt', '{"envelop": null}');
SELECT kafka.alter_pipeline('regress_opt', '{"checkpoint_interval": "2min"}');
SELECT kafka.alter_pipeline('regress_opt', '{"transaction_timeout": null, "checkpoint_interval": "20min"}');
SELECT kafka.alter_pipeline('regress_opt', '{"transaction_timeout": "40ms"}');
SELECT kafka.alter_pipeline('regress_opt', '{"progress_topic": "elsewhere"}');
\echo :SQLSTATE
SELECT kafka.alter_pipeline('regress_opt', NULL);
\echo :SQLSTATE
SELECT kafka.alter_pipeline(NULL, '{}');
SELECT kafka.alter_pipeline('regress_opt', '[]');
SELECT options FROM kafka.pipelines;

-- An option is judged together with what is stored: 950 s would be too much with the default transaction_timeout.
BEGIN;
SELECT kafka.alter_pipeline('regress_opt', '{"transaction_timeout": "1000s"}');
SELECT kafka.alter_pipeline('regress_opt', '{"checkpoint_interval": "950s"}');
SELECT options->>'checkpoint_interval' AS interval, options->>'transaction_timeout' AS timeout FROM kafka.pipelines;
ROLLBACK;

-- It is part of its transaction.
BEGIN;
SELECT kafka.alter_pipeline('regress_opt', '{"envelope": null, "operations": "insert"}');
SELECT options FROM kafka.pipelines;
ROLLBACK;
SELECT options FROM kafka.pipelines;
SELECT count(*) FROM pg_publication_tables WHERE tablename = 'orders';
BEGIN;
SAVEPOINT a;
SELECT kafka.alter_pipeline('regress_opt', '{"envelope": null}');
ROLLBACK TO a;
SELECT kafka.alter_pipeline('regress_opt', '{"json": "string"}');
COMMIT;
SELECT options FROM kafka.pipelines;
SELECT kafka.wait_for(timeout => '1min');

-- Two-phase commit is refused; so are writes where none may be.
BEGIN;
SELECT kafka.alter_pipeline('regress_opt', '{"json": "inline"}');
PREPARE TRANSACTION 'regress';
\echo :SQLSTATE
BEGIN READ ONLY;
SELECT kafka.alter_pipeline('regress_opt', '{"json": "inline"}');
\echo :SQLSTATE
ROLLBACK;
SELECT options FROM kafka.pipelines;

--
-- set_table
--
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": "regress_opt_orders", "key": ["id"], "operations": "insert,delete"}');
SELECT "table", options FROM kafka.pipeline_table ORDER BY "table"::text;
SELECT (SELECT string_agg(substring(pubname FROM '_([a-z]+)$'), ' ' ORDER BY pubname) FROM pg_publication_tables
	WHERE tablename = 'orders') AS published;
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"operations": null, "key": null}');
SELECT "table", options FROM kafka.pipeline_table ORDER BY "table"::text;

SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topics": "x"}');
\echo :SQLSTATE
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"envelope": "plain"}');
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": "a b"}');
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": ""}');
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"operations": "merge"}');
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"key": {}}');
SELECT kafka.set_table('regress_opt', 'opt.orders', '[]');
SELECT kafka.set_table('regress_opt', 'opt.log', '{"topic": "x"}');
\echo :SQLSTATE
SELECT kafka.set_table('regress_opt', 'opt.missing', '{}');
SELECT kafka.set_table('regress_opt', NULL, '{}');
SELECT kafka.set_table('regress_opt', 'opt.orders', NULL);

-- Keys: columns there are, and that PostgreSQL logs of the old row.
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"key": ["id", "nothing"]}');
\echo :SQLSTATE
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"key": ["ctid"]}');
SELECT kafka.set_table('regress_opt', 'opt.customers', '{"key": "id,Full Name"}');
\echo :SQLSTATE
-- Where nothing is deleted or updated, any column will do.
SELECT kafka.set_table('regress_opt', 'opt.customers', '{"key": "id,Full Name", "operations": "insert"}');
SELECT kafka.set_table('regress_opt', 'opt.customers', '{"operations": null}');
ALTER TABLE opt.customers REPLICA IDENTITY FULL;
SELECT kafka.set_table('regress_opt', 'opt.customers', '{"operations": null}');
SELECT "table", options FROM kafka.pipeline_table ORDER BY "table"::text;

-- A topic for two tables: by mistake no, on purpose yes.
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": "regress_opt.opt.customers"}');
\echo :SQLSTATE
SELECT kafka.set_table('regress_opt', 'opt.customers', '{"topic": "regress_opt_orders"}');

-- In a transaction too.
BEGIN;
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": null}');
ROLLBACK;
BEGIN;
SELECT kafka.set_table('regress_opt', 'opt.orders', '{"topic": null}');
PREPARE TRANSACTION 'regress';
SELECT "table", options FROM kafka.pipeline_table ORDER BY "table"::text;
SELECT kafka.wait_for(timeout => '1min');

-- A table that loses its replica identity later: PostgreSQL refuses the UPDATE; the change of an option is told.
ALTER TABLE opt.orders DROP CONSTRAINT orders_pkey;
SELECT kafka.alter_pipeline('regress_opt', '{"json": null}');
\echo :SQLSTATE
SELECT kafka.alter_pipeline('regress_opt', '{"json": null, "operations": "insert"}');

--
-- Waiting
--
-- A transaction that has written would wait for itself.
BEGIN;
INSERT INTO opt.orders VALUES (1, 1);
SELECT kafka.wait_for();
\echo :SQLSTATE
ROLLBACK;
BEGIN;
INSERT INTO opt.orders VALUES (1, 1);
SELECT kafka.checkpoint('regress_opt');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT kafka.wait_for(timeout => '1min');
COMMIT;
INSERT INTO opt.orders VALUES (1, 1);
SELECT kafka.wait_for(timeout => '1min');
SELECT kafka.wait_for(pg_current_wal_flush_lsn(), 'regress_opt', '1min');
-- A position that is not there yet: false after the timeout, and no error.
SELECT kafka.wait_for(pg_current_wal_flush_lsn() + 1000000000, 'regress_opt', '10ms');
SELECT kafka.wait_for(pg_current_wal_flush_lsn() + 1000000000, timeout => '0');
SELECT kafka.wait_for(pg_current_wal_flush_lsn() + 1000000000, timeout => '-1s');
SET statement_timeout = '100ms';
SELECT kafka.wait_for(pg_current_wal_flush_lsn() + 1000000000);
\echo :SQLSTATE
RESET statement_timeout;
-- The same checkpoint while there is nothing to send.
SELECT kafka.checkpoint('regress_opt') AS id \gset
SELECT kafka.checkpoint('regress_opt') - :id AS more;
INSERT INTO opt.orders VALUES (2, 1);
SELECT kafka.checkpoint('regress_opt', timeout => NULL) - :id AS more;
SELECT state, transactions, records FROM kafka.checkpoints WHERE checkpoint_id = :id + 1;
SELECT kafka.checkpoint(NULL);

CALL kafka.drop_pipeline('regress_opt');
-- No pipeline: nothing to wait for.
SELECT kafka.wait_for();
DROP SCHEMA opt CASCADE;
DROP SERVER kafka;
DROP EXTENSION transactional_kafka;
