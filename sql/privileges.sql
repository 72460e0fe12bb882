--
-- Who may do what: a pipeline is for its owner, and for what the owner owns.
--
\getenv broker BROKER
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
CREATE ROLE regress_owner REPLICATION;
CREATE ROLE regress_member IN ROLE regress_owner;
CREATE ROLE regress_other REPLICATION;
CREATE ROLE regress_plain;
CREATE ROLE regress_monitor IN ROLE pg_monitor;
CREATE SCHEMA own AUTHORIZATION regress_owner;
CREATE TABLE own.theirs (id int PRIMARY KEY);
CREATE TABLE own.ours (id int PRIMARY KEY);
ALTER TABLE own.ours OWNER TO regress_owner;
CREATE PUBLICATION regress_theirs FOR TABLE own.theirs;

-- What create_pipeline asks of its caller
SET ROLE regress_owner;
CALL kafka.create_pipeline('regress_own', 'kafka', tables => '{own.ours}');
\echo :SQLSTATE
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER kafka TO regress_owner, regress_plain;
SET ROLE regress_plain;
CALL kafka.create_pipeline('regress_own', 'kafka');
\echo :SQLSTATE
SET ROLE regress_owner;
CALL kafka.create_pipeline('regress_own', 'kafka', tables => '{own.theirs}');
\echo :SQLSTATE
CALL kafka.create_pipeline('regress_own', 'kafka', tables => '{pg_catalog.pg_authid}');
CALL kafka.create_pipeline('regress_own', 'kafka', publication => 'regress_theirs');
\echo :SQLSTATE
-- It needs no more than that, not even CREATE in the database; what it calls is not found by the caller's search_path.
CREATE FUNCTION own.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1/0';
SET search_path = own, pg_catalog;
CALL kafka.create_pipeline('regress_own', 'kafka', tables => '{ours}');
SELECT kafka.alter_pipeline('regress_own', '{"envelope": "plain"}');
SELECT kafka.set_table('regress_own', 'ours', '{"key": "id"}');
SELECT kafka.set_table('regress_own', 'theirs', '{"key": "id"}');
\echo :SQLSTATE
INSERT INTO ours VALUES (1);
SELECT kafka.checkpoint('regress_own') > 0 AS committed;
SELECT kafka.wait_for(timeout => '1min');
CALL kafka.pause('regress_own');
CALL kafka.resume('regress_own');
RESET search_path;
SELECT pipeline, owner, state FROM kafka.pipelines;
SELECT pipeline, state FROM kafka.stat_pipelines;
SELECT pipeline, state FROM kafka.checkpoints;
SELECT DISTINCT pipeline, server, orphan FROM kafka.kafka_transactions;

-- Others see nothing of it and change nothing.
SET ROLE regress_other;
SELECT pipeline FROM kafka.pipelines;
SELECT pipeline FROM kafka.stat_pipelines;
SELECT pipeline FROM kafka.checkpoints;
SELECT count(*) FROM kafka.live();
SELECT count(*) FROM kafka.kafka_transactions;
SELECT count(*) FROM kafka.transactions();
SELECT format('pg.%s.%s.regress_own.0', system_identifier, d.oid) AS id
FROM pg_control_system(), pg_database d WHERE datname = current_database() \gset
SELECT kafka.end_transaction(:'id', false);
\echo :SQLSTATE
CALL kafka.pause('regress_own');
\echo :SQLSTATE
CALL kafka.resume('regress_own');
CALL kafka.drop_pipeline('regress_own');
SELECT kafka.alter_pipeline('regress_own', '{"envelope": "debezium"}');
SELECT kafka.set_table('regress_own', 'own.ours', '{"key": null}');
SELECT kafka.checkpoint('regress_own');
\echo :SQLSTATE
-- … except waiting until what they wrote has arrived.
SELECT kafka.wait_for(timeout => '1min');
SELECT * FROM kafka.pipeline;
\echo :SQLSTATE
SELECT * FROM kafka.pipeline_state;
SELECT * FROM kafka.checkpoint;
UPDATE kafka.pipeline SET owner = 'regress_other';
SELECT nextval('kafka.pipeline_id_seq');
CREATE TABLE kafka.mine ();
\echo :SQLSTATE

-- Who monitors sees it and changes nothing.
SET ROLE regress_monitor;
SELECT pipeline, owner, state FROM kafka.pipelines;
SELECT pipeline, state FROM kafka.stat_pipelines;
SELECT pipeline, state FROM kafka.checkpoints;
SELECT DISTINCT pipeline, server FROM kafka.kafka_transactions WHERE NOT orphan;
SELECT kafka.end_transaction(:'id', false);
CALL kafka.pause('regress_own');

-- A member of the owner is the owner.
SET ROLE regress_member;
SELECT pipeline, owner, state FROM kafka.pipelines;
SELECT kafka.alter_pipeline('regress_own', '{"envelope": null}');
SELECT kafka.wait_for(timeout => '1min');
SELECT DISTINCT pipeline, orphan FROM kafka.kafka_transactions;
CALL kafka.pause('regress_own');
RESET ROLE;

-- The owned publications are nobody's: the owner can't change what they publish.
SET ROLE regress_owner;
DO $$
BEGIN
	EXECUTE format('DROP PUBLICATION %I', (SELECT pubname FROM pg_publication WHERE pubname ~ '^tk_\d+_insert$'));
EXCEPTION WHEN insufficient_privilege THEN
	RAISE WARNING 'refused: %', SQLSTATE;
END $$;
CALL kafka.drop_pipeline('regress_own');
RESET ROLE;

SELECT pipeline FROM kafka.pipelines;
DROP SCHEMA own CASCADE;
DROP PUBLICATION regress_theirs;
REVOKE USAGE ON FOREIGN SERVER kafka FROM regress_owner, regress_plain;
DROP ROLE regress_owner, regress_member, regress_other, regress_plain, regress_monitor;
DROP SERVER kafka;
DROP EXTENSION transactional_kafka;
