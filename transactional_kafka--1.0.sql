/* transactional_kafka--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION transactional_kafka" to load this file. \quit

--
-- Catalog.  Definitions are written by the functions below, for their callers;
-- state and checkpoints by the pipelines' workers.
--

CREATE SEQUENCE kafka.pipeline_id_seq AS integer;

CREATE TABLE kafka.pipeline (
	pipeline_id integer PRIMARY KEY DEFAULT pg_catalog.nextval('kafka.pipeline_id_seq'),
	name name NOT NULL UNIQUE,
	owner regrole NOT NULL,
	server name NOT NULL,
	server_oid oid NOT NULL,
	publication name,				-- the user's; NULL: the pipeline's own
	publication_oid oid,
	options jsonb NOT NULL DEFAULT '{}',
	enabled boolean NOT NULL DEFAULT true,		-- false: paused
	dropping boolean NOT NULL DEFAULT false,
	generation bigint NOT NULL DEFAULT 1,		-- counts every change of the definition
	resumes bigint NOT NULL DEFAULT 0,		-- counts resume(): a sticky state older than the last ends
	accept_lsn pg_lsn,				-- accept_position(): where to go on …
	accept_resumes bigint				-- … at the start that this resume asked for
);

CREATE TABLE kafka.pipeline_table (
	pipeline_id integer NOT NULL REFERENCES kafka.pipeline ON DELETE CASCADE,
	"table" regclass NOT NULL,
	options jsonb NOT NULL DEFAULT '{}',
	dropped_at pg_lsn,				-- the table is gone; its WAL up to here may still be on its way
	PRIMARY KEY (pipeline_id, "table")
);

CREATE TABLE kafka.pipeline_state (
	pipeline_id integer PRIMARY KEY,
	system_identifier numeric(20, 0) NOT NULL,
	database_oid oid NOT NULL,
	uuid uuid NOT NULL,
	progress_topic text,				-- fixed at the first start
	slot_created boolean NOT NULL DEFAULT false,
	started boolean NOT NULL DEFAULT false,		-- a start record was committed
	instances bigint[] NOT NULL DEFAULT '{0,0}',	-- the two that may stand in Kafka
	prefix text,					-- transactional ids in use
	pool_size integer NOT NULL DEFAULT 0,
	stop_lsn pg_lsn,				-- the slot's position at the last orderly stop; NULL while it runs
	sticky_state text,
	sticky_reason text,
	sticky_hint text,
	sticky_since timestamptz,
	sticky_resumes bigint,
	accepted_resumes bigint NOT NULL DEFAULT 0	-- the last accept_position() that was carried out
) WITH (fillfactor = 50);

-- A ring of rows, overwritten in place: only the primary key is indexed, so updates are HOT.
CREATE TABLE kafka.checkpoint (
	pipeline_id integer NOT NULL,
	ring integer NOT NULL,				-- checkpoint_id modulo retained_checkpoints
	checkpoint_id bigint NOT NULL,
	attempt integer NOT NULL,
	state text NOT NULL CHECK (state IN ('prepared', 'committed', 'aborted')),
	transactional_id text,
	timeline integer NOT NULL,
	start_lsn pg_lsn NOT NULL,
	end_lsn pg_lsn NOT NULL,
	transactions bigint NOT NULL,
	records bigint NOT NULL,
	bytes bigint NOT NULL,
	triggered_at timestamptz,
	prepared_at timestamptz NOT NULL,
	committed_at timestamptz,
	-- the Kafka transaction, as its coordinator described it; NULL: it did not
	producer_id bigint,
	producer_epoch integer,
	kafka_start_ms bigint,				-- since 1970, by Kafka's clock
	-- what a start made of a row that it found prepared
	outcome text CHECK (outcome IN ('redriven', 'already_committed', 'replayed')),
	outcome_reason text,
	PRIMARY KEY (pipeline_id, ring)
) WITH (fillfactor = 50);

-- What produce() signs its messages with; nobody but the extension reads it.
CREATE TABLE kafka.produce_key (
	key_id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	key bytea NOT NULL,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);

CREATE FUNCTION kafka.make_key() RETURNS bytea
AS 'MODULE_PATHNAME', 'tk_make_key' LANGUAGE C VOLATILE;
REVOKE ALL ON FUNCTION kafka.make_key() FROM PUBLIC;
INSERT INTO kafka.produce_key (key) VALUES (kafka.make_key());

REVOKE ALL ON SCHEMA kafka FROM PUBLIC;
GRANT USAGE ON SCHEMA kafka TO PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline', 'WHERE NOT dropping');
SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline_table',
	'WHERE dropped_at IS NULL AND "table" IN (SELECT oid FROM pg_catalog.pg_class)');

-- A pipeline's owner can't be dropped.
CREATE FUNCTION kafka.keep_owner() RETURNS trigger
AS 'MODULE_PATHNAME', 'tk_keep_owner' LANGUAGE C;
CREATE TRIGGER keep_owner AFTER INSERT OR UPDATE OF owner OR DELETE ON kafka.pipeline
	FOR EACH ROW EXECUTE FUNCTION kafka.keep_owner();
ALTER TABLE kafka.pipeline ENABLE ALWAYS TRIGGER keep_owner;

--
-- Foreign-data wrapper: a server is a Kafka cluster.
--

CREATE FUNCTION kafka.fdw_validator(options text[], catalog oid) RETURNS void
AS 'MODULE_PATHNAME', 'tk_fdw_validator' LANGUAGE C STRICT;

CREATE FOREIGN DATA WRAPPER transactional_kafka NO HANDLER VALIDATOR kafka.fdw_validator;

--
-- Pipelines
--

CREATE PROCEDURE kafka.create_pipeline(pipeline name, server name, tables regclass[] DEFAULT NULL,
	publication name DEFAULT NULL, options jsonb DEFAULT '{}')
AS 'MODULE_PATHNAME', 'tk_create_pipeline' LANGUAGE C;
COMMENT ON PROCEDURE kafka.create_pipeline(name, name, regclass[], name, jsonb) IS
'defines a pipeline and waits until it captures every transaction that begins from now on';

CREATE PROCEDURE kafka.drop_pipeline(pipeline name)
AS 'MODULE_PATHNAME', 'tk_drop_pipeline' LANGUAGE C;
COMMENT ON PROCEDURE kafka.drop_pipeline(name) IS
'stops a pipeline and removes its slot, publications and definition; leaves its topics';

CREATE PROCEDURE kafka.pause(pipeline name)
AS 'MODULE_PATHNAME', 'tk_pause' LANGUAGE C;
COMMENT ON PROCEDURE kafka.pause(name) IS
'stops a pipeline at a committed checkpoint, until resume';

CREATE PROCEDURE kafka.resume(pipeline name)
AS 'MODULE_PATHNAME', 'tk_resume' LANGUAGE C;
COMMENT ON PROCEDURE kafka.resume(name) IS
'starts a pipeline that is paused, in a sticky state, or was restored or cloned into this database';

CREATE PROCEDURE kafka.accept_position(pipeline name, lsn pg_lsn)
AS 'MODULE_PATHNAME', 'tk_accept_position' LANGUAGE C;
COMMENT ON PROCEDURE kafka.accept_position(name, pg_lsn) IS
'the operator''s answer to diverged, fenced and slot_lost: go on from this position, whatever Kafka and the slot say';

CREATE FUNCTION kafka.alter_pipeline(pipeline name, options jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'tk_alter_pipeline' LANGUAGE C PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.alter_pipeline(name, jsonb) IS
'changes options of a pipeline, in force at commit; null resets one';

CREATE FUNCTION kafka.set_table(pipeline name, "table" regclass, options jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'tk_set_table' LANGUAGE C PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.set_table(name, regclass, jsonb) IS
'changes options of a table in a pipeline, in force at commit; null resets one';

CREATE FUNCTION kafka.checkpoint(pipeline name, timeout interval DEFAULT '1min') RETURNS bigint
AS 'MODULE_PATHNAME', 'tk_checkpoint' LANGUAGE C PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.checkpoint(name, interval) IS
'waits until all that has committed so far is committed in Kafka; returns the id of the newest checkpoint';

CREATE FUNCTION kafka.wait_for(lsn pg_lsn DEFAULT NULL, pipeline name DEFAULT NULL, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'tk_wait_for' LANGUAGE C PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.wait_for(pg_lsn, name, interval) IS
'true once everything up to a WAL position (default: all that is flushed now) is committed in Kafka; false after the timeout';

--
-- DDL around pipelines
--

CREATE FUNCTION kafka.on_drop() RETURNS event_trigger
AS 'MODULE_PATHNAME', 'tk_on_drop' LANGUAGE C;
CREATE EVENT TRIGGER transactional_kafka_drop ON sql_drop EXECUTE FUNCTION kafka.on_drop();

CREATE FUNCTION kafka.on_alter() RETURNS event_trigger
AS 'MODULE_PATHNAME', 'tk_on_alter' LANGUAGE C;
CREATE EVENT TRIGGER transactional_kafka_alter ON ddl_command_end
	WHEN TAG IN ('ALTER SERVER', 'CREATE USER MAPPING', 'ALTER USER MAPPING', 'ALTER PUBLICATION', 'ALTER TABLE',
		'ALTER SCHEMA')
	EXECUTE FUNCTION kafka.on_alter();

--
-- Records and operation
--

CREATE FUNCTION kafka.produce(topic text, value text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION kafka.produce(topic text, value bytea, key bytea DEFAULT NULL, headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION kafka.produce(topic text, value jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.produce(text, text, text, jsonb, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';
COMMENT ON FUNCTION kafka.produce(text, bytea, bytea, jsonb, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';
COMMENT ON FUNCTION kafka.produce(text, jsonb, text, jsonb, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';

CREATE FUNCTION kafka.failpoints() RETURNS SETOF text
AS 'MODULE_PATHNAME', 'tk_failpoints' LANGUAGE C STRICT;
COMMENT ON FUNCTION kafka.failpoints() IS
'the fail-points of a test build';

CREATE FUNCTION kafka.live(OUT pipeline_id integer, OUT pid integer, OUT state text, OUT reason text, OUT hint text,
	OUT since timestamptz, OUT failures integer, OUT read_lsn pg_lsn, OUT covered_lsn pg_lsn,
	OUT confirmed_lsn pg_lsn, OUT checkpoint_id bigint, OUT checkpoints bigint, OUT transactions bigint,
	OUT records bigint, OUT bytes bigint, OUT rejected_messages bigint, OUT last_commit_at timestamptz, OUT last_failure_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tk_live' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.live() IS
'what shared memory knows of this database''s pipelines';

CREATE FUNCTION kafka.transactions(OUT pipeline text, OUT server text, OUT transactional_id text, OUT state text,
	OUT producer_id bigint, OUT producer_epoch integer, OUT started_at timestamptz, OUT timeout interval,
	OUT partitions integer, OUT orphan boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tk_transactions' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 100000 ROWS 10;
COMMENT ON FUNCTION kafka.transactions() IS
'asks Kafka''s transaction coordinators, each cluster for at most 5 s; see the view kafka.kafka_transactions';

CREATE FUNCTION kafka.end_transaction(transactional_id text, commit boolean) RETURNS text
AS 'MODULE_PATHNAME', 'tk_end_transaction' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.end_transaction(text, boolean) IS
'ends an open Kafka transaction that no live pipeline owns, at once and whatever becomes of the caller''s transaction; returns its state';

--
-- Views.  A row is for the pipeline's owner, pg_monitor and superusers.
--

CREATE VIEW kafka.pipelines WITH (security_barrier) AS
SELECT p.name AS pipeline, p.owner, p.server,
	coalesce(p.publication, '(its own)') AS publication,
	(SELECT pg_catalog.array_agg(t."table" ORDER BY t."table"::text COLLATE "C") FROM kafka.pipeline_table t
		JOIN pg_catalog.pg_class c ON c.oid = t."table"	-- not of one that was dropped
	 WHERE t.pipeline_id = p.pipeline_id) AS tables,
	p.options, p.enabled,
	CASE WHEN l.state IS NOT NULL THEN l.state
		WHEN s.sticky_state IS NOT NULL AND s.sticky_resumes >= p.resumes THEN s.sticky_state
		ELSE 'stopped' END AS state,
	coalesce(nullif(l.reason, ''), CASE WHEN s.sticky_resumes >= p.resumes THEN s.sticky_reason END) AS reason,
	coalesce(nullif(l.hint, ''), CASE WHEN s.sticky_resumes >= p.resumes THEN s.sticky_hint END) AS hint,
	s.uuid, s.progress_topic,
	pg_catalog.format('tk_%s_%s', d.oid, p.pipeline_id) AS slot_name
FROM kafka.pipeline p
	CROSS JOIN pg_catalog.pg_database d
	LEFT JOIN kafka.pipeline_state s ON s.pipeline_id = p.pipeline_id AND s.database_oid = d.oid
	LEFT JOIN kafka.live() l ON l.pipeline_id = p.pipeline_id
WHERE d.datname = pg_catalog.current_database()
	AND (pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));

CREATE VIEW kafka.stat_pipelines WITH (security_barrier) AS
SELECT p.name AS pipeline, l.pid, coalesce(l.state, 'stopped') AS state, nullif(l.reason, '') AS reason, l.since,
	l.failures, l.read_lsn, l.covered_lsn, l.confirmed_lsn,
	pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), l.covered_lsn)::bigint AS lag_bytes,
	l.checkpoint_id, l.checkpoints, l.transactions, l.records, l.bytes, l.rejected_messages, l.last_commit_at, l.last_failure_at
FROM kafka.pipeline p
	LEFT JOIN kafka.live() l ON l.pipeline_id = p.pipeline_id
WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

CREATE VIEW kafka.checkpoints WITH (security_barrier) AS
SELECT p.name AS pipeline, c.checkpoint_id, c.attempt,
	CASE WHEN c.state = 'prepared' AND c.checkpoint_id <= l.checkpoint_id THEN 'committed' ELSE c.state END AS state,
	c.transactional_id, c.timeline, c.start_lsn, c.end_lsn, c.transactions, c.records, c.bytes,
	c.triggered_at, c.prepared_at, c.committed_at, c.producer_id, c.producer_epoch,
	pg_catalog.to_timestamp(c.kafka_start_ms / 1000.0) AS kafka_started_at, c.outcome, c.outcome_reason
FROM kafka.pipeline p
	JOIN kafka.checkpoint c USING (pipeline_id)
	LEFT JOIN kafka.live() l USING (pipeline_id)
WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

-- The function leaves out what the caller may not see; orphans are for pg_monitor and superusers.
CREATE VIEW kafka.kafka_transactions AS
SELECT t.pipeline, t.server, t.transactional_id, t.state, t.producer_id, t.producer_epoch, t.started_at,
	pg_catalog.clock_timestamp() - t.started_at AS age, t.timeout, t.partitions, t.orphan
FROM kafka.transactions() t;
COMMENT ON VIEW kafka.kafka_transactions IS
'what Kafka''s transaction coordinators say of our transactional ids, asked now';
COMMENT ON COLUMN kafka.kafka_transactions.pipeline IS 'of an orphan: the name in its transactional id';
COMMENT ON COLUMN kafka.kafka_transactions.state IS
'Kafka''s word; an open transaction is Ongoing; null: Kafka does not know the transactional id (not used yet, or not for days)';
COMMENT ON COLUMN kafka.kafka_transactions.started_at IS 'by Kafka''s clock; null: no transaction is open';
COMMENT ON COLUMN kafka.kafka_transactions.age IS 'by this server''s clock';
COMMENT ON COLUMN kafka.kafka_transactions.timeout IS 'Kafka aborts a transaction of this age';
COMMENT ON COLUMN kafka.kafka_transactions.partitions IS 'in the transaction; while it is being ended, those still without a marker';
COMMENT ON COLUMN kafka.kafka_transactions.orphan IS
'its transactional id has a prefix of this database''s, but belongs to no pipeline that exists';

GRANT SELECT ON kafka.pipelines, kafka.stat_pipelines, kafka.checkpoints, kafka.kafka_transactions TO PUBLIC;
