--
-- Which topics a role may produce() to, and who may say so.
--
\getenv broker BROKER
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE ROLE regress_cluster;
CREATE ROLE regress_app;
CREATE ROLE regress_free;
CREATE ROLE regress_member IN ROLE regress_app;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" :'broker');
GRANT USAGE ON FOREIGN DATA WRAPPER transactional_kafka TO regress_cluster;
ALTER SERVER kafka OWNER TO regress_cluster;
GRANT USAGE ON FOREIGN SERVER kafka TO regress_app, regress_free, regress_member;
CALL kafka.create_pipeline('regress_allowed', 'kafka', options => '{"progress_topic": "regress_allowed_progress"}');

-- Without it USAGE on the server is enough.
SET ROLE regress_app;
SELECT kafka.produce('regress_any', 'x');
RESET ROLE;

-- Values
CREATE USER MAPPING FOR regress_app SERVER kafka OPTIONS (allowed_topics 'regress_a,no blanks');
CREATE USER MAPPING FOR regress_app SERVER kafka OPTIONS (allowed_topics 'regress_a, ä');
\echo :SQLSTATE
CREATE USER MAPPING FOR regress_app SERVER kafka OPTIONS (allowed_topics '^regress_(a');
CREATE USER MAPPING FOR regress_app SERVER kafka OPTIONS ("allowed.topics" 'regress_a');
ALTER SERVER kafka OPTIONS (ADD allowed_topics 'regress_a');
\echo :SQLSTATE

-- A list
CREATE USER MAPPING FOR regress_app SERVER kafka OPTIONS (allowed_topics ' regress_a ,, regress_b,');
SET ROLE regress_app;
SELECT kafka.produce('regress_a', 'x');
SELECT kafka.produce('regress_b', 'x'::bytea, headers => '{"a": 1}');
SELECT kafka.produce('regress_c', 'x');
\echo :SQLSTATE
SELECT kafka.produce('regress', 'x');
SELECT kafka.produce('regress_aa', '{}'::jsonb, pipeline => 'regress_allowed');
-- … it is the role's, not its members' …
SET ROLE regress_member;
SELECT kafka.produce('regress_c', 'x');
-- … nor others' …
SET ROLE regress_free;
SELECT kafka.produce('regress_c', 'x');
-- … nor that of the server's owner or a superuser.
SET ROLE regress_cluster;
SELECT kafka.produce('regress_c', 'x');
RESET ROLE;
SELECT kafka.produce('regress_c', 'x');

-- A regular expression, which must match all of the name; a session that has produced takes it up
SET ROLE regress_app;
SELECT kafka.produce('regress_a', 'x');
RESET ROLE;
ALTER USER MAPPING FOR regress_app SERVER kafka OPTIONS (SET allowed_topics '^regress\.(a|bb?)|team-\d+');
SET ROLE regress_app;
SELECT kafka.produce('regress.bb', 'x'), kafka.produce('team-42', 'x');
SELECT kafka.produce('regress_a', 'x');
SELECT kafka.produce('regress.bbb', 'x');
SELECT kafka.produce('xregress.a', 'x');
SELECT kafka.produce('team-', 'x');
RESET ROLE;

-- Whoever calls a SECURITY DEFINER function acts as its owner, who may more or less than the caller.
CREATE FUNCTION regress_as_free(topic text) RETURNS void LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT kafka.produce(topic, 'x') $$;
ALTER FUNCTION regress_as_free OWNER TO regress_free;
CREATE FUNCTION regress_as_app(topic text) RETURNS void LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT kafka.produce(topic, 'x') $$;
ALTER FUNCTION regress_as_app OWNER TO regress_app;
SET ROLE regress_app;
SELECT regress_as_free('regress_c');
SELECT regress_as_app('regress_c');
SET ROLE regress_free;
SELECT regress_as_app('regress_c');
SELECT regress_as_app('team-1');
RESET ROLE;

-- The role itself may keep a password in its mapping, and nothing else.
SET ROLE regress_app;
ALTER USER MAPPING FOR regress_app SERVER kafka OPTIONS (DROP allowed_topics);
\echo :SQLSTATE
ALTER USER MAPPING FOR CURRENT_USER SERVER kafka OPTIONS (SET allowed_topics '^.*');
DROP USER MAPPING FOR regress_app SERVER kafka;
\echo :SQLSTATE
DROP USER MAPPING IF EXISTS FOR USER SERVER kafka;
DROP OWNED BY regress_app;
\echo :SQLSTATE
DROP OWNED BY CURRENT_USER CASCADE;
DO $$ BEGIN EXECUTE 'DROP USER MAPPING FOR CURRENT_USER SERVER kafka'; END $$;
SET session_replication_role = replica;
ALTER USER MAPPING FOR regress_app SERVER kafka OPTIONS (ADD "sasl.username" 'me', ADD "sasl.password" 'secret');
SELECT kafka.produce('regress_c', 'x');
SET ROLE regress_free;
CREATE USER MAPPING FOR regress_free SERVER kafka OPTIONS (allowed_topics 'regress_c');
CREATE USER MAPPING FOR regress_free SERVER kafka OPTIONS ("sasl.username" 'me');
ALTER USER MAPPING FOR regress_free SERVER kafka OPTIONS (ADD allowed_topics 'regress_c');
DROP USER MAPPING FOR regress_free SERVER kafka;
RESET ROLE;

-- PUBLIC's is for those who have none of their own: '' is no topic at all.
SET ROLE regress_cluster;
CREATE USER MAPPING FOR PUBLIC SERVER kafka OPTIONS (allowed_topics '');
SET ROLE regress_free;
SELECT kafka.produce('regress_c', 'x');
-- a mapping of its own without the option does not free it
CREATE USER MAPPING FOR regress_free SERVER kafka OPTIONS ("sasl.username" 'me');
SELECT kafka.produce('regress_c', 'x');
DROP USER MAPPING FOR regress_free SERVER kafka;
DROP USER MAPPING FOR PUBLIC SERVER kafka;
SET ROLE regress_app;
SELECT kafka.produce('team-2', 'x');
SET ROLE regress_cluster;
SELECT kafka.produce('regress_c', 'x');
DROP USER MAPPING FOR PUBLIC SERVER kafka;
ALTER USER MAPPING FOR regress_app SERVER kafka OPTIONS (DROP allowed_topics);
SET ROLE regress_app;
SELECT kafka.produce('regress_c', 'x');
DROP USER MAPPING FOR regress_app SERVER kafka;
RESET ROLE;

-- What is found by a search_path of the caller's is never called with our rights.
CREATE SCHEMA trap AUTHORIZATION regress_app;
SET ROLE regress_app;
CREATE FUNCTION trap.escalate() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'called as %', CURRENT_USER;
END $$;
CREATE FUNCTION trap.make_key() RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea FROM (SELECT trap.escalate()) x';
CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now() FROM (SELECT trap.escalate()) x';
CREATE FUNCTION trap.equal(integer, integer) RETURNS bool LANGUAGE sql AS 'SELECT trap.escalate()';
CREATE OPERATOR trap.= (LEFTARG = integer, RIGHTARG = integer, FUNCTION = trap.equal);
CREATE OPERATOR trap.< (LEFTARG = integer, RIGHTARG = integer, FUNCTION = trap.equal);
CREATE TEMP TABLE produce_key AS SELECT 1 AS key_id, '\x00'::bytea AS key, pg_catalog.now() AS created_at;
CREATE TEMP TABLE pipeline AS SELECT 'trap'::name AS name;
CREATE TEMP TABLE pg_class (oid oid);
SET search_path = trap, pg_temp, kafka, pg_catalog;
SELECT produce('regress_c', 'x', 'k', '{"a": 1}', pipeline => 'regress_allowed');
SELECT kafka.wait_for(timeout => '1min');
SELECT count(*) FROM stat_pipelines;
RESET ROLE;
GRANT EXECUTE ON FUNCTION kafka.rotate_key() TO regress_app;
SET ROLE regress_app;
SELECT rotate_key() > 1 AS rotated;
RESET search_path;
-- … nor by a leaky function in a query over the views
CREATE FUNCTION trap.leak(name) RETURNS bool COST 0.0000001 LANGUAGE plpgsql AS $$
BEGIN
	RAISE WARNING 'leaked %', $1;
	RETURN true;
END $$;
SELECT count(*) FROM kafka.pipelines WHERE trap.leak(pipeline);
SELECT count(*) FROM kafka.stat_pipelines WHERE trap.leak(pipeline);
SELECT count(*) FROM kafka.checkpoints WHERE trap.leak(pipeline);
SELECT count(*) FROM kafka.stat_checkpoints WHERE trap.leak(pipeline);
SELECT count(*) FROM kafka.stat_progress_checkpoints WHERE trap.leak(pipeline);
-- … nor by a trigger or validator of ours on an object of the caller's
CREATE TABLE trap.pipeline (pipeline_id int, owner regrole);
CREATE TRIGGER keep_owner AFTER INSERT ON trap.pipeline FOR EACH ROW EXECUTE FUNCTION kafka.keep_owner();
\echo :SQLSTATE
SELECT kafka.fdw_validator('{bootstrap.servers=x}', 1417);
\echo :SQLSTATE
RESET ROLE;

SELECT kafka.wait_for(timeout => '1min');
SELECT rejected_messages FROM kafka.stat_pipelines;
CALL kafka.drop_pipeline('regress_allowed');
DROP SCHEMA trap CASCADE;
DROP FUNCTION regress_as_free, regress_as_app;
DROP SERVER kafka;
DROP EXTENSION transactional_kafka;
DROP OWNED BY regress_cluster, regress_app, regress_free;
DROP ROLE regress_cluster, regress_member, regress_app, regress_free;
