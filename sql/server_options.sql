--
-- CREATE SERVER and CREATE USER MAPPING: which options there are, who may set them and where.
--
-- Nothing here needs a broker: no pipeline is made.
--
CREATE EXTENSION transactional_kafka;
SELECT extversion, nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'transactional_kafka';

-- The least, and more of it: properties go by librdkafka's own names.
CREATE SERVER least FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b1:9092,b2:9092');
CREATE SERVER more FOREIGN DATA WRAPPER transactional_kafka OPTIONS (
	"bootstrap.servers" 'b1:9092', "security.protocol" 'SASL_PLAINTEXT', "sasl.mechanism" 'PLAIN',
	"compression.type" 'lz4', "linger.ms" '5', "message.max.bytes" '2000000');
SELECT srvname, srvoptions FROM pg_foreign_server WHERE srvname IN ('least', 'more') ORDER BY 1;

-- Names.  One that is nearly right is named.
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "bootstrap.server" 'b:2');
\echo :SQLSTATE
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "security_protocol" 'ssl');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "Linger.Ms" '5');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', host 'localhost');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka;
\echo :SQLSTATE
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("linger.ms" '5');
ALTER SERVER least OPTIONS (DROP "bootstrap.servers");

-- What exactly-once delivery rests on is not the user's to set.
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "transactional.id" 'x');
\echo :SQLSTATE
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', acks '1');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "enable.idempotence" 'false');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "isolation.level" 'read_uncommitted');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "plugin.library.paths" 'x');

-- Values are judged by librdkafka.
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "linger.ms" 'soon');
\echo :SQLSTATE
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "message.max.bytes" '1');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "security.protocol" 'morse');
ALTER SERVER more OPTIONS (SET "compression.type" 'brotli');
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" '');

-- A secret in a server could be read by everybody.  The error doesn't repeat it.
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "sasl.password" 'hush');
\echo :SQLSTATE
CREATE SERVER s FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "ssl.key.pem" 'hush');

-- User mappings hold secrets and nothing else.
CREATE USER MAPPING FOR CURRENT_USER SERVER more OPTIONS ("sasl.username" 'shop', "sasl.password" 'hush');
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS ("bootstrap.servers" 'b:1');
\echo :SQLSTATE
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS ("linger.ms" '5');
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS ("ssl.key.location" 'key.pem');
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS ("sasl.pasword" 'hush');
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS (password 'hush');
CREATE USER MAPPING FOR PUBLIC SERVER more OPTIONS ("transactional.id" 'x');
ALTER USER MAPPING FOR CURRENT_USER SERVER more OPTIONS (SET "sasl.password" 'hush more');

-- The wrapper itself has no options.
ALTER FOREIGN DATA WRAPPER transactional_kafka OPTIONS (ADD "bootstrap.servers" 'b:1');
\echo :SQLSTATE

-- It serves no foreign tables.
CREATE FOREIGN TABLE f (i int) SERVER least;
SELECT * FROM f;
DROP FOREIGN TABLE f;

-- A role that is not a superuser: what reads files, runs programs or loads libraries on the database's machine is
-- refused, the rest is the role's own.
CREATE ROLE regress_kafka_user;
GRANT USAGE ON FOREIGN DATA WRAPPER transactional_kafka TO regress_kafka_user;
SET ROLE regress_kafka_user;
CREATE SERVER mine FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" 'b:1', "linger.ms" '5');
CREATE USER MAPPING FOR CURRENT_USER SERVER mine OPTIONS ("sasl.username" 'me', "sasl.password" 'hush');
ALTER SERVER mine OPTIONS (ADD "ssl.ca.location" 'ca.pem');
\echo :SQLSTATE
ALTER SERVER mine OPTIONS (ADD "sasl.kerberos.kinit.cmd" 'kinit');
ALTER SERVER mine OPTIONS (ADD "sasl.oauthbearer.token.endpoint.url" 'http://localhost/');
ALTER SERVER mine OPTIONS (ADD debug 'all');
ALTER SERVER mine OPTIONS (SET "linger.ms" '10');
RESET ROLE;
ALTER SERVER mine OPTIONS (ADD debug 'broker');

-- Other users don't see what a mapping holds.
SELECT srvname, usename, umoptions FROM pg_user_mappings WHERE srvname = 'mine';
CREATE ROLE regress_kafka_other;
SET ROLE regress_kafka_other;
SELECT srvname, usename, umoptions FROM pg_user_mappings WHERE srvname = 'mine';
RESET ROLE;

DROP SERVER mine CASCADE;
REVOKE USAGE ON FOREIGN DATA WRAPPER transactional_kafka FROM regress_kafka_user;
DROP ROLE regress_kafka_user, regress_kafka_other;
DROP USER MAPPING FOR CURRENT_USER SERVER more;
DROP SERVER least, more;
DROP EXTENSION transactional_kafka;
