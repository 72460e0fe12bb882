--
-- create_pipeline and drop_pipeline: what can be a pipeline, and that nothing is left of one that is dropped or was
-- refused.
--
\getenv broker BROKER
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
CREATE TABLE shop.lines (order_id int, line int, PRIMARY KEY (order_id, line));
CREATE TABLE shop.log (line text);

-- A pipeline of two tables.
CALL kafka.create_pipeline('regress_shop', 'kafka', tables => '{shop.orders,shop.lines}');
SELECT pipeline, owner = current_user::regrole AS mine, server, publication, tables, options, enabled, state, reason,
	hint FROM kafka.pipelines;
-- It owns a publication for each operation: PostgreSQL checks the union of what is published.
SELECT regexp_replace(p.pubname, '\d+', 'N') AS publication, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
	(SELECT string_agg(t.tablename, ', ' ORDER BY t.tablename) FROM pg_publication_tables t WHERE t.pubname = p.pubname)
	FROM pg_publication p ORDER BY 1;
SELECT s.plugin, s.slot_type, s.active, s.temporary FROM kafka.pipelines JOIN pg_replication_slots s USING (slot_name);

-- Names
CALL kafka.create_pipeline('regress_shop', 'kafka');
\echo :SQLSTATE
CALL kafka.create_pipeline('a234567890123456789012345678901234567890123456789012345678901234567890', 'kafka');
\echo :SQLSTATE
CALL kafka.create_pipeline('a23456789012345678901234567890123456789012345678901234567890123', 'kafka');
CALL kafka.create_pipeline('my shop', 'kafka');
\echo :SQLSTATE
CALL kafka.create_pipeline('büro', 'kafka');
CALL kafka.create_pipeline('', 'kafka');
CALL kafka.create_pipeline('..', 'kafka');
CALL kafka.create_pipeline(NULL, 'kafka');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', NULL);

-- Servers
CALL kafka.create_pipeline('regress_x', 'nowhere');
\echo :SQLSTATE
CREATE FOREIGN DATA WRAPPER regress_other;
CREATE SERVER regress_other FOREIGN DATA WRAPPER regress_other;
CALL kafka.create_pipeline('regress_x', 'regress_other');
\echo :SQLSTATE
DROP FOREIGN DATA WRAPPER regress_other CASCADE;

-- Tables.  A pipeline must not make a user's UPDATE or DELETE fail.
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.log}');
\echo :SQLSTATE
ALTER TABLE shop.orders REPLICA IDENTITY NOTHING;
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders}');
ALTER TABLE shop.orders REPLICA IDENTITY DEFAULT;
CREATE TABLE shop.parts (id int, region text) PARTITION BY LIST (region);
CREATE TABLE shop.parts_eu PARTITION OF shop.parts (PRIMARY KEY (id)) FOR VALUES IN ('eu');
CREATE TABLE shop.parts_us PARTITION OF shop.parts FOR VALUES IN ('us');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.parts}');
-- Without updates and deletes there is nothing to identify.
CALL kafka.create_pipeline('regress_log', 'kafka', tables => '{shop.log,shop.parts}', options => '{"operations": "insert"}');
INSERT INTO shop.log VALUES ('a');
UPDATE shop.log SET line = 'b';
DELETE FROM shop.log;
INSERT INTO shop.parts VALUES (1, 'us');
UPDATE shop.parts SET id = 2;
SELECT kafka.checkpoint('regress_log') > 0 AS committed;
CALL kafka.drop_pipeline('regress_log');

CREATE TEMP TABLE temporary (id int PRIMARY KEY);
CREATE UNLOGGED TABLE shop.unlogged (id int PRIMARY KEY);
CREATE FOREIGN TABLE shop.far (id int) SERVER kafka;
CREATE VIEW shop.orders_view AS SELECT * FROM shop.orders;
CREATE MATERIALIZED VIEW shop.orders_matview AS SELECT * FROM shop.orders;
CREATE SEQUENCE shop.numbers;
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{temporary}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.unlogged}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.far}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders_view}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders_matview}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.numbers}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders_pkey}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{pg_catalog.pg_class}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{kafka.pipeline}');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.missing}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{4000000000}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders,shop.lines,shop.orders}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders,NULL}');
\echo :SQLSTATE

-- Two tables whose topics would be one
CREATE TABLE shop."a b" (id int PRIMARY KEY);
CREATE TABLE shop."a/b" (id int PRIMARY KEY);
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{"shop.\"a b\"","shop.\"a/b\""}');
\echo :SQLSTATE

-- Publications
CALL kafka.create_pipeline('regress_x', 'kafka', publication => 'regress_pub');
\echo :SQLSTATE
CREATE PUBLICATION regress_pub FOR TABLE shop.orders, shop.log WITH (publish = 'insert, update');
CALL kafka.create_pipeline('regress_x', 'kafka', tables => '{shop.orders}', publication => 'regress_pub');
\echo :SQLSTATE
-- One of the user's own is taken as it is; a WARNING tells what PostgreSQL will refuse because of it.
SET client_min_messages = notice;
CALL kafka.create_pipeline('regress_pub', 'kafka', publication => 'regress_pub');
SET client_min_messages = warning;
SELECT pipeline, publication, tables FROM kafka.pipelines WHERE pipeline = 'regress_pub';
CALL kafka.drop_pipeline('regress_pub');
SELECT pubname FROM pg_publication WHERE pubname = 'regress_pub';
DROP PUBLICATION regress_pub;

-- It commits, so it can't be part of a transaction; nor of a function, which is.
BEGIN;
CALL kafka.create_pipeline('regress_x', 'kafka');
\echo :SQLSTATE
ROLLBACK;
CREATE FUNCTION shop.call(command text) RETURNS void LANGUAGE plpgsql AS 'BEGIN EXECUTE command; END';
SELECT shop.call($$CALL kafka.create_pipeline('regress_x', 'kafka')$$);
SELECT shop.call($$CALL kafka.drop_pipeline('regress_shop')$$);
SELECT shop.call($$CALL kafka.pause('regress_shop')$$);
SELECT shop.call($$CALL kafka.resume('regress_shop')$$);
-- A procedure is not one, and DO neither.
DO $$ BEGIN CALL kafka.create_pipeline('regress_do', 'kafka'); END $$;
SELECT tables, state FROM kafka.pipelines WHERE pipeline = 'regress_do';
DO $$ BEGIN CALL kafka.drop_pipeline('regress_do'); END $$;

-- All that was refused has left nothing.
SELECT pipeline FROM kafka.pipelines;
SELECT count(*) FROM pg_publication;
SELECT count(*) FROM pg_replication_slots;

-- What there is not
CALL kafka.drop_pipeline('regress_x');
\echo :SQLSTATE
CALL kafka.drop_pipeline(NULL);
CALL kafka.pause('regress_x');
CALL kafka.resume('regress_x');
SELECT kafka.alter_pipeline('regress_x', '{}');
SELECT kafka.set_table('regress_x', 'shop.orders', '{}');
SELECT kafka.checkpoint('regress_x');
\echo :SQLSTATE
SELECT kafka.wait_for(pipeline => 'regress_x');

-- Pause and resume; twice is no mistake.
CALL kafka.pause('regress_shop');
SELECT enabled, state FROM kafka.pipelines;
SELECT kafka.checkpoint('regress_shop');
\echo :SQLSTATE
SELECT kafka.wait_for(timeout => '1min');
SET client_min_messages = notice;
CALL kafka.pause('regress_shop');
SET client_min_messages = warning;
CALL kafka.resume('regress_shop');
CALL kafka.resume('regress_shop');
SELECT enabled, state FROM kafka.pipelines;

-- A table that is dropped is no harm to the pipeline.
INSERT INTO shop.lines VALUES (1, 1);
DROP TABLE shop.lines;
INSERT INTO shop.orders VALUES (1, 'one');
SELECT kafka.wait_for(timeout => '1min');
SELECT tables, state FROM kafka.pipelines;
SELECT kafka.alter_pipeline('regress_shop', '{"operations": "insert,update,delete,truncate"}');
SELECT kafka.wait_for(timeout => '1min');

-- A server in use is not dropped; where the event trigger is by-passed, it is missed at the next start.
CREATE SERVER regress_gone FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
CALL kafka.create_pipeline('regress_gone', 'regress_gone');
DROP SERVER regress_gone;
ALTER EVENT TRIGGER transactional_kafka_drop DISABLE;
DROP SERVER regress_gone;
ALTER EVENT TRIGGER transactional_kafka_drop ENABLE;
CALL kafka.pause('regress_gone');
CALL kafka.resume('regress_gone');
\echo :SQLSTATE
SELECT state, reason, hint FROM kafka.pipelines WHERE pipeline = 'regress_gone';
CALL kafka.drop_pipeline('regress_gone');

-- drop_pipeline leaves nothing, and DROP EXTENSION after it neither.
CALL kafka.drop_pipeline('regress_shop');
SELECT (SELECT count(*) FROM kafka.pipeline) + (SELECT count(*) FROM kafka.pipeline_table)
	+ (SELECT count(*) FROM kafka.pipeline_state) + (SELECT count(*) FROM kafka.checkpoint)
	+ (SELECT count(*) FROM kafka.live()) AS rows,
	(SELECT count(*) FROM pg_publication) AS publications,
	(SELECT count(*) FROM pg_replication_slots) AS slots,
	(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%') AS workers;
DROP SCHEMA shop CASCADE;
DROP SERVER kafka;
DROP EXTENSION transactional_kafka;
SELECT fdwname FROM pg_foreign_data_wrapper;
-- The schema, empty, is PostgreSQL's to leave: CREATE EXTENSION made it.
DROP SCHEMA kafka;
