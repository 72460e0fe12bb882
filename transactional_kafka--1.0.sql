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

CREATE FUNCTION kafka.rotate_key() RETURNS integer
AS 'MODULE_PATHNAME', 'tk_rotate_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION kafka.rotate_key() FROM PUBLIC;
COMMENT ON FUNCTION kafka.rotate_key() IS
'a new key for the signatures of produce(), in force at commit; the old one goes once no message can need it; returns the new one''s id';

REVOKE ALL ON SCHEMA kafka FROM PUBLIC;
GRANT USAGE ON SCHEMA kafka TO PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline', 'WHERE NOT dropping');
SELECT pg_catalog.pg_extension_config_dump('kafka.pipeline_table',
	'WHERE dropped_at IS NULL AND "table" IN (SELECT oid FROM pg_catalog.pg_class)');

-- A pipeline's owner can't be dropped.
CREATE FUNCTION kafka.keep_owner() RETURNS trigger
AS 'MODULE_PATHNAME', 'tk_keep_owner' LANGUAGE C;
REVOKE ALL ON FUNCTION kafka.keep_owner() FROM PUBLIC;
CREATE TRIGGER keep_owner AFTER INSERT OR UPDATE OF owner OR DELETE ON kafka.pipeline
	FOR EACH ROW EXECUTE FUNCTION kafka.keep_owner();
ALTER TABLE kafka.pipeline ENABLE ALWAYS TRIGGER keep_owner;

--
-- Foreign-data wrapper: a server is a Kafka cluster.
--

CREATE FUNCTION kafka.fdw_validator(options text[], catalog oid) RETURNS void
AS 'MODULE_PATHNAME', 'tk_fdw_validator' LANGUAGE C STRICT;
REVOKE ALL ON FUNCTION kafka.fdw_validator(text[], oid) FROM PUBLIC;

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
REVOKE ALL ON FUNCTION kafka.on_drop() FROM PUBLIC;
CREATE EVENT TRIGGER transactional_kafka_drop ON sql_drop EXECUTE FUNCTION kafka.on_drop();

CREATE FUNCTION kafka.on_alter() RETURNS event_trigger
AS 'MODULE_PATHNAME', 'tk_on_alter' LANGUAGE C;
REVOKE ALL ON FUNCTION kafka.on_alter() FROM PUBLIC;
CREATE EVENT TRIGGER transactional_kafka_alter ON ddl_command_end
	WHEN TAG IN ('ALTER SERVER', 'CREATE USER MAPPING', 'ALTER USER MAPPING', 'ALTER PUBLICATION', 'ALTER TABLE',
		'ALTER SCHEMA')
	EXECUTE FUNCTION kafka.on_alter();

--
-- Records and operation
--

-- Headers: json by another name, because a literal or an untyped parameter of a client must not have to choose between
-- json, which keeps an object's order and repeated names, and jsonb, which doesn't.
CREATE TYPE kafka.headers;
CREATE FUNCTION kafka.headers_in(cstring) RETURNS kafka.headers
AS 'json_in' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION kafka.headers_out(kafka.headers) RETURNS cstring
AS 'json_out' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION kafka.headers_recv(internal) RETURNS kafka.headers
AS 'json_recv' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION kafka.headers_send(kafka.headers) RETURNS bytea
AS 'json_send' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
CREATE TYPE kafka.headers (INPUT = kafka.headers_in, OUTPUT = kafka.headers_out, RECEIVE = kafka.headers_recv,
	SEND = kafka.headers_send, INTERNALLENGTH = VARIABLE, STORAGE = extended);
COMMENT ON TYPE kafka.headers IS
'headers of a record: a JSON object, its order and repeated names kept; json and jsonb cast to it';
CREATE CAST (json AS kafka.headers) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (jsonb AS kafka.headers) WITH INOUT AS IMPLICIT;

CREATE FUNCTION kafka.produce(topic text, value text, key text DEFAULT NULL, headers kafka.headers DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION kafka.produce(topic text, value bytea, key bytea DEFAULT NULL, headers kafka.headers DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION kafka.produce(topic text, value jsonb, key text DEFAULT NULL, headers kafka.headers DEFAULT NULL,
	partition integer DEFAULT NULL, pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_produce' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.produce(text, text, text, kafka.headers, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';
COMMENT ON FUNCTION kafka.produce(text, bytea, bytea, kafka.headers, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';
COMMENT ON FUNCTION kafka.produce(text, jsonb, text, kafka.headers, integer, name) IS
'a record of the caller''s transaction: in Kafka if and when it commits';

CREATE FUNCTION kafka.failpoints() RETURNS SETOF text
AS 'MODULE_PATHNAME', 'tk_failpoints' LANGUAGE C STRICT;
COMMENT ON FUNCTION kafka.failpoints() IS
'the fail-points of a test build';

CREATE FUNCTION kafka.live(OUT pipeline_id integer, OUT pid integer, OUT state text, OUT reason text, OUT hint text,
	OUT since timestamptz, OUT failures integer, OUT read_lsn pg_lsn, OUT covered_lsn pg_lsn,
	OUT confirmed_lsn pg_lsn, OUT checkpoint_id bigint, OUT checkpoints bigint, OUT transactions bigint,
	OUT records bigint, OUT bytes bigint, OUT rejected_messages bigint, OUT dead_letters bigint, OUT last_commit_at timestamptz,
	OUT last_failure_at timestamptz, OUT last_error text, OUT waits_for text, OUT oldest_unsent_commit_at timestamptz,
	OUT sent_until timestamptz, OUT transactions_per_second double precision, OUT records_per_second double precision,
	OUT bytes_per_second double precision, OUT queued_records bigint, OUT stats_reset timestamptz)
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

-- The arrays: {min, avg, p50, p95, p99, max}
CREATE FUNCTION kafka.live_checkpoints(OUT pipeline_id integer, OUT triggered bigint, OUT in_progress integer,
	OUT completed bigint, OUT failed bigint, OUT consecutive_failures integer, OUT restored bigint, OUT redriven bigint,
	OUT already_committed bigint, OUT replayed bigint, OUT alarms bigint, OUT pool_waits bigint,
	OUT last_completed_id bigint, OUT last_completed_at timestamptz, OUT last_completed_duration_ms double precision,
	OUT last_completed_flush_ms double precision, OUT last_completed_postgres_commit_ms double precision,
	OUT last_completed_kafka_commit_ms double precision, OUT last_completed_transactions bigint,
	OUT last_completed_records bigint, OUT last_completed_bytes bigint,
	OUT last_failed_id bigint, OUT last_failed_at timestamptz, OUT last_failed_state text, OUT last_failed_reason text,
	OUT last_restored_id bigint, OUT last_restored_at timestamptz, OUT last_restored_lsn pg_lsn,
	OUT last_restored_outcome text,
	OUT duration_ms double precision[], OUT flush_ms double precision[], OUT postgres_commit_ms double precision[],
	OUT kafka_commit_ms double precision[], OUT records double precision[], OUT bytes double precision[],
	OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tk_live_checkpoints' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.live_checkpoints() IS
'statistics of the checkpoints of this database''s pipelines';

CREATE FUNCTION kafka.live_progress(OUT pipeline_id integer, OUT checkpoint_id bigint, OUT state text,
	OUT since timestamptz, OUT opened_at timestamptz, OUT first_commit_at timestamptz, OUT transactions bigint,
	OUT records bigint, OUT bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tk_live_progress' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.live_progress() IS
'checkpoints of this database''s pipelines that are under way';

CREATE FUNCTION kafka.stat_reset(pipeline name DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'tk_stat_reset' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION kafka.stat_reset(name) IS
'resets the statistics of a pipeline, or of all that the caller owns in this database';

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
	pg_catalog.pg_wal_lsn_diff(w.flushed, sent.lsn)::bigint AS lag_bytes,
	l.checkpoint_id, l.checkpoints, l.transactions, l.records, l.bytes, l.rejected_messages, l.dead_letters, l.last_commit_at, l.last_failure_at,
	l.last_error, l.waits_for,
	CASE WHEN sent.lsn >= w.flushed THEN interval '0'
		ELSE pg_catalog.clock_timestamp() - coalesce(l.oldest_unsent_commit_at, l.sent_until,
			(SELECT pg_catalog.max(c.committed_at) FROM kafka.checkpoint c WHERE c.pipeline_id = p.pipeline_id))
	END AS lag_time,
	l.oldest_unsent_commit_at, l.sent_until,
	pg_catalog.pg_wal_lsn_diff(w.flushed, r.restart_lsn)::bigint AS retained_wal_bytes, r.wal_status,
	l.transactions_per_second, l.records_per_second, l.bytes_per_second, l.queued_records, l.stats_reset
FROM kafka.pipeline p
	CROSS JOIN pg_catalog.pg_database d
	CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
		ELSE pg_catalog.pg_current_wal_flush_lsn() END AS flushed) w
	LEFT JOIN kafka.live() l ON l.pipeline_id = p.pipeline_id
	LEFT JOIN pg_catalog.pg_replication_slots r
		ON r.slot_name = pg_catalog.format('tk_%s_%s', d.oid, p.pipeline_id) AND r.database = d.datname
	CROSS JOIN LATERAL (SELECT greatest(nullif(l.covered_lsn, '0/0'), r.confirmed_flush_lsn) AS lsn) sent
WHERE d.datname = pg_catalog.current_database()
	AND (pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));

COMMENT ON VIEW kafka.stat_pipelines IS
'What each pipeline does. Counters are since stats_reset: kafka.stat_reset(), or the start of the server; a restart of the pipeline''s process does not reset them.';
COMMENT ON COLUMN kafka.stat_pipelines.since IS 'since when it is in this state';
COMMENT ON COLUMN kafka.stat_pipelines.failures IS 'how often its process has failed in a row';
COMMENT ON COLUMN kafka.stat_pipelines.read_lsn IS 'how far it has read the WAL';
COMMENT ON COLUMN kafka.stat_pipelines.covered_lsn IS 'all that committed up to here is in Kafka';
COMMENT ON COLUMN kafka.stat_pipelines.confirmed_lsn IS 'the position of its slot';
COMMENT ON COLUMN kafka.stat_pipelines.lag_bytes IS 'WAL, in bytes, that is flushed and not known to be in Kafka; what others wrote counts until it was read';
COMMENT ON COLUMN kafka.stat_pipelines.lag_time IS
'age of the oldest committed transaction that is not in Kafka; where none has been read yet, time since which everything is in Kafka; 0 if there is nothing to send';
COMMENT ON COLUMN kafka.stat_pipelines.oldest_unsent_commit_at IS
'commit time of the oldest transaction that was read and is not in Kafka; null: none is known';
COMMENT ON COLUMN kafka.stat_pipelines.sent_until IS 'all that had committed by then is in Kafka; null after a start of the server until that is known';
COMMENT ON COLUMN kafka.stat_pipelines.retained_wal_bytes IS 'WAL, in bytes, that the server keeps for its slot';
COMMENT ON COLUMN kafka.stat_pipelines.wal_status IS 'of its slot, as in pg_replication_slots';
COMMENT ON COLUMN kafka.stat_pipelines.checkpoint_id IS 'the newest checkpoint in Kafka';
COMMENT ON COLUMN kafka.stat_pipelines.checkpoints IS 'checkpoints that Kafka has committed';
COMMENT ON COLUMN kafka.stat_pipelines.transactions IS 'transactions in them';
COMMENT ON COLUMN kafka.stat_pipelines.records IS 'records in them';
COMMENT ON COLUMN kafka.stat_pipelines.bytes IS 'bytes of keys and values in them';
COMMENT ON COLUMN kafka.stat_pipelines.rejected_messages IS 'WAL messages with the prefix of produce() that it has not written';
COMMENT ON COLUMN kafka.stat_pipelines.dead_letters IS 'records among them that tell, on the topic <pipeline>.dead_letter, of one that was too large (option oversize)';
COMMENT ON COLUMN kafka.stat_pipelines.last_commit_at IS 'when Kafka has committed last';
COMMENT ON COLUMN kafka.stat_pipelines.last_error IS 'what ended its process last, at last_failure_at';
COMMENT ON COLUMN kafka.stat_pipelines.waits_for IS
'what its process waits for, from PostgreSQL 17 on also the wait_event in pg_stat_activity; null: it works. KafkaIdle: something to send; KafkaCheckpointInterval: checkpoint_interval; KafkaWalFlush, KafkaStandbyFlush: the flush of commits here, on synchronous standbys; KafkaAcknowledgements: records to be in the brokers'' logs; KafkaCommit: the end of a Kafka transaction; KafkaMarkers: its markers in the topics, for wait_for(); KafkaTransactionalId: a free one of the pool; KafkaQueue: room in the send queue; KafkaRequest: another answer of Kafka';
COMMENT ON COLUMN kafka.stat_pipelines.transactions_per_second IS
'average of the last 60 s, or since stats_reset if that is shorter; a checkpoint counts when Kafka commits it';
COMMENT ON COLUMN kafka.stat_pipelines.records_per_second IS 'likewise';
COMMENT ON COLUMN kafka.stat_pipelines.bytes_per_second IS 'likewise';
COMMENT ON COLUMN kafka.stat_pipelines.queued_records IS 'records given to Kafka''s client and not yet acknowledged by the brokers';

CREATE VIEW kafka.stat_checkpoints WITH (security_barrier) AS
SELECT p.name AS pipeline, l.triggered, l.in_progress, l.completed, l.failed, l.consecutive_failures, l.restored,
	l.redriven, l.already_committed, l.replayed, l.alarms, l.pool_waits,
	l.last_completed_id, l.last_completed_at, l.last_completed_duration_ms, l.last_completed_flush_ms,
	l.last_completed_postgres_commit_ms, l.last_completed_kafka_commit_ms, l.last_completed_transactions,
	l.last_completed_records, l.last_completed_bytes,
	l.last_failed_id, l.last_failed_at, l.last_failed_state, l.last_failed_reason,
	l.last_restored_id, l.last_restored_at, l.last_restored_lsn, l.last_restored_outcome,
	l.duration_ms[1] AS duration_ms_min, l.duration_ms[2] AS duration_ms_avg, l.duration_ms[3] AS duration_ms_p50, l.duration_ms[4] AS duration_ms_p95, l.duration_ms[5] AS duration_ms_p99, l.duration_ms[6] AS duration_ms_max,
	l.flush_ms[1] AS flush_ms_min, l.flush_ms[2] AS flush_ms_avg, l.flush_ms[3] AS flush_ms_p50, l.flush_ms[4] AS flush_ms_p95, l.flush_ms[5] AS flush_ms_p99, l.flush_ms[6] AS flush_ms_max,
	l.postgres_commit_ms[1] AS postgres_commit_ms_min, l.postgres_commit_ms[2] AS postgres_commit_ms_avg, l.postgres_commit_ms[3] AS postgres_commit_ms_p50, l.postgres_commit_ms[4] AS postgres_commit_ms_p95, l.postgres_commit_ms[5] AS postgres_commit_ms_p99, l.postgres_commit_ms[6] AS postgres_commit_ms_max,
	l.kafka_commit_ms[1] AS kafka_commit_ms_min, l.kafka_commit_ms[2] AS kafka_commit_ms_avg, l.kafka_commit_ms[3] AS kafka_commit_ms_p50, l.kafka_commit_ms[4] AS kafka_commit_ms_p95, l.kafka_commit_ms[5] AS kafka_commit_ms_p99, l.kafka_commit_ms[6] AS kafka_commit_ms_max,
	l.records[1]::bigint AS records_min, l.records[2] AS records_avg, l.records[3]::bigint AS records_p50, l.records[4]::bigint AS records_p95, l.records[5]::bigint AS records_p99, l.records[6]::bigint AS records_max,
	l.bytes[1]::bigint AS bytes_min, l.bytes[2] AS bytes_avg, l.bytes[3]::bigint AS bytes_p50, l.bytes[4]::bigint AS bytes_p95, l.bytes[5]::bigint AS bytes_p99, l.bytes[6]::bigint AS bytes_max,
	l.stats_reset
FROM kafka.pipeline p
	LEFT JOIN kafka.live_checkpoints() l USING (pipeline_id)
WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

COMMENT ON VIEW kafka.stat_checkpoints IS
'Checkpoints of each pipeline since stats_reset: kafka.stat_reset(), or the start of the server; a restart of the pipeline''s process does not reset them. Of what is measured of each completed checkpoint there are _min, _avg, _p50, _p95, _p99 and _max; min, avg and max are exact, percentiles at most 3.2 % off. Times are in milliseconds: duration_ms from the trigger until Kafka has committed, and its parts flush_ms until the brokers have acknowledged all records, postgres_commit_ms until its row is durable here, kafka_commit_ms until Kafka has committed. records counts without the progress record, bytes are those of keys and values.';
COMMENT ON COLUMN kafka.stat_checkpoints.triggered IS 'closed at a transaction''s end, to be committed';
COMMENT ON COLUMN kafka.stat_checkpoints.in_progress IS 'triggered, and neither completed nor failed; one that was prepared when its process ended is, until the next start has found out';
COMMENT ON COLUMN kafka.stat_checkpoints.completed IS 'committed in Kafka';
COMMENT ON COLUMN kafka.stat_checkpoints.failed IS
'not committed: of those triggered, and those that an error ended before that; what they held is sent again by later ones';
COMMENT ON COLUMN kafka.stat_checkpoints.consecutive_failures IS
'errors in a row that made a checkpoint fail, without a completed one in between; an end that somebody wanted is none';
COMMENT ON COLUMN kafka.stat_checkpoints.restored IS 'starts of the process that have found their position in Kafka';
COMMENT ON COLUMN kafka.stat_checkpoints.redriven IS 'found prepared by a start, with their Kafka transaction open, which it has committed';
COMMENT ON COLUMN kafka.stat_checkpoints.already_committed IS 'found prepared by a start, and committed in Kafka';
COMMENT ON COLUMN kafka.stat_checkpoints.replayed IS 'found prepared by a start, and not in Kafka: sent again';
COMMENT ON COLUMN kafka.stat_checkpoints.alarms IS
'of those replayed: Kafka had ended the prepared transaction by itself (its timeout, an administrator). Nothing is lost, but it should not happen: see transaction_timeout';
COMMENT ON COLUMN kafka.stat_checkpoints.pool_waits IS 'how often a checkpoint waited for a free transactional id (max_concurrent_checkpoints)';
COMMENT ON COLUMN kafka.stat_checkpoints.last_completed_duration_ms IS 'null, with its parts: a start has found it committed';
COMMENT ON COLUMN kafka.stat_checkpoints.last_failed_state IS 'how far it was';
COMMENT ON COLUMN kafka.stat_checkpoints.last_restored_id IS 'the newest checkpoint that Kafka had at the last start';
COMMENT ON COLUMN kafka.stat_checkpoints.last_restored_lsn IS 'the position where that start went on';
COMMENT ON COLUMN kafka.stat_checkpoints.last_restored_outcome IS
'what that start made of a checkpoint that it found prepared: redriven, already_committed or replayed; null: there was none';

CREATE VIEW kafka.stat_progress_checkpoints WITH (security_barrier) AS
SELECT p.name AS pipeline, l.checkpoint_id, l.state, l.since, l.opened_at, l.first_commit_at, l.transactions, l.records,
	l.bytes
FROM kafka.pipeline p
	JOIN kafka.live_progress() l USING (pipeline_id)
WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

COMMENT ON VIEW kafka.stat_progress_checkpoints IS
'Checkpoints under way: the one that is being filled, and those before it that Kafka has not committed.';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.state IS
'open: records are added; triggered: to be acknowledged by the brokers; acknowledged: to be noted here; prepared: to be committed by Kafka';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.since IS 'since when it is in this state';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.opened_at IS 'when its first record was added';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.first_commit_at IS 'commit time of the first transaction in it';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.transactions IS 'whole transactions in it so far';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.records IS 'records in it so far, to within some hundred';
COMMENT ON COLUMN kafka.stat_progress_checkpoints.bytes IS 'bytes of their keys and values';

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

GRANT SELECT ON kafka.pipelines, kafka.stat_pipelines, kafka.stat_checkpoints, kafka.stat_progress_checkpoints,
	kafka.checkpoints, kafka.kafka_transactions TO PUBLIC;
