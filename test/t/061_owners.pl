# Roles around pipelines: whoever owns a pipeline, or what it uses, can't go without a word; what is given away is
# followed.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

use PostgreSQL::Test::Utils;

my $node = new_node('main');
create_server($node);
query($node, "CREATE ROLE $_") foreach qw(server_owner table_owner publication_owner heir);
query($node, <<'SQL');
CREATE ROLE maker REPLICATION IN ROLE table_owner, publication_owner;
GRANT USAGE ON FOREIGN SERVER kafka TO maker;
CREATE USER MAPPING FOR maker SERVER kafka OPTIONS ("sasl.username" 'maker');
CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY);
CREATE TABLE c (id int PRIMARY KEY);
ALTER TABLE a OWNER TO table_owner;
ALTER TABLE b OWNER TO table_owner;
CREATE PUBLICATION theirs FOR TABLE c;
ALTER PUBLICATION theirs OWNER TO publication_owner;
SET SESSION AUTHORIZATION maker;
CALL kafka.create_pipeline('own_a', 'kafka', tables => '{a,b}');
CALL kafka.create_pipeline('own_c', 'kafka', publication => 'theirs');
SQL

my %next = (a => 1, c => 1);

# A test: another row of each table arrives, once, after all before.
sub goes_on
{
	my ($why, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $table (@tables)
	{
		my $last = $next{$table}++;
		my @records;

		query($node, "INSERT INTO $table VALUES ($last)");
		wait_until
		{
			@records = values_of('after.id', consume("own_$table.public.$table"));
			@records && $records[-1] == $last
		}
		"row $last of $table";
		is_deeply(\@records, [ 1 .. $last ], "$why: rows of $table arrive, each once");
	}
	return;
}
goes_on('at first', 'a', 'c');

#
# Another owner
#
query($node, 'ALTER SERVER kafka OWNER TO server_owner');
query($node, 'ALTER PUBLICATION theirs OWNER TO heir');
query($node, 'ALTER TABLE a OWNER TO heir');
goes_on('server, publication and table have another owner', 'a', 'c');
terminate_worker($node, $_) foreach qw(own_a own_c);
goes_on('and after a new start', 'a', 'c');
query($node, 'ALTER PUBLICATION theirs OWNER TO publication_owner');
query($node, 'ALTER TABLE a OWNER TO table_owner');

#
# What a server and a user mapping say is taken up at once
#
my $pid = worker_pid($node, 'own_a');
my $right = quote(broker());
query($node, q(ALTER SERVER kafka OPTIONS (SET "bootstrap.servers" 'localhost:1')));
wait_for_state($node, 'own_a', 'retrying');
wait_until { query($node, q(SELECT failures >= 2 FROM kafka.stat_pipelines WHERE pipeline = 'own_a')) eq 't' } 'a second failure';
query($node, qq(ALTER SERVER kafka OPTIONS (SET "bootstrap.servers" $right)));
wait_for_state($node, 'own_a', 'running');
is(query($node, q(SELECT failures FROM kafka.stat_pipelines WHERE pipeline = 'own_a')), 0,
	'another address is taken up, and old failures do not count');
wait_for_state($node, 'own_c', 'running');
goes_on('a server with its old address again', 'a', 'c');

foreach my $change (q(ALTER USER MAPPING FOR maker SERVER kafka OPTIONS (SET "sasl.username" 'other')),
	'DROP USER MAPPING FOR maker SERVER kafka', q(CREATE USER MAPPING FOR maker SERVER kafka OPTIONS ("sasl.username" 'maker')))
{
	my $before = wait_until { worker_pid($node, 'own_a') } 'a worker';
	my ($what) = $change =~ /^(\w+ USER MAPPING)/;

	query($node, $change);
	wait_until { my $now = worker_pid($node, 'own_a'); $now && $now != $before } "a new worker after $what";
	goes_on($what, 'a');
}

#
# Nothing that a pipeline needs goes with its owner
#
fails_with($node, 'DROP OWNED BY server_owner', qr/cannot drop server kafka because/, 'DROP OWNED by the owner of the server is refused');
fails_with($node, 'DROP OWNED BY server_owner CASCADE', qr/cannot drop server kafka because pipeline "own_/, '… with CASCADE too');
fails_with($node, 'DROP OWNED BY publication_owner', qr/cannot drop publication theirs because pipeline "own_c"/,
	'DROP OWNED by the owner of the publication is refused');
fails_with($node, 'DROP OWNED BY heir, maker',
	qr/cannot drop objects owned by role "maker" because pipeline "own_a" belongs to it.*HINT:  CALL kafka.drop_pipeline\('own_a'\), or give it away with REASSIGN OWNED/s,
	'DROP OWNED by the owner of a pipeline is refused');
fails_with($node, 'SET SESSION AUTHORIZATION heir; DROP OWNED BY maker', qr/permission denied to drop objects/,
	'… and whoever may not do it hears no more than that');
fails_with($node, 'SET session_replication_role = replica; DROP OWNED BY maker', qr/because pipeline "own_a" belongs to it/,
	'… also with event triggers switched off');
fails_with($node, 'REVOKE ALL ON SCHEMA public FROM maker; DROP USER MAPPING FOR maker SERVER kafka; REVOKE USAGE ON FOREIGN SERVER kafka FROM maker; DROP ROLE maker',
	qr/role "maker" cannot be dropped because some objects depend on it\nDETAIL:  privileges for table kafka.pipeline/,
	'DROP ROLE of the owner of a pipeline is refused');
query($node, 'CREATE DATABASE elsewhere');
fails_with($node, 'DROP ROLE maker', qr/"maker" cannot be dropped.*\nDETAIL:  \d+ objects? in database postgres/, '… in any database', 'elsewhere');

# its owner's other things may go
query($node, 'GRANT SELECT ON c TO maker; CREATE USER MAPPING FOR maker SERVER kafka OPTIONS ("sasl.username" $$maker$$)');
is(query($node, q(SELECT bool_and(p.owner = 'maker'::regrole) FROM kafka.pipelines p)), 't', 'the pipelines still belong to it');

#
# Tables
#
query($node, 'INSERT INTO b VALUES (1); ALTER TABLE a OWNER TO heir; DROP OWNED BY table_owner');
is(query($node, q(SELECT count(*) FROM pg_class WHERE relname = 'b')), 0, 'DROP OWNED drops a published table');
is_deeply([ values_of('after.id', consume_until('own_a.public.b', 1)) ], [1], '… whose last row arrives');
goes_on('DROP OWNED by the owner of one table', 'a');
query($node, 'ALTER TABLE a OWNER TO table_owner');

#
# REASSIGN OWNED
#
my (undef, undef, $warning) =
  $node->psql('postgres', 'REASSIGN OWNED BY server_owner, table_owner, publication_owner, maker TO heir');
like($warning, qr/WARNING:  pipeline "own_a" now belongs to role "heir", which has no user mapping for server "kafka"/,
	'REASSIGN OWNED warns of credentials that do not come along');
is(query($node, q(SELECT string_agg(pipeline || ' ' || owner, ', ' ORDER BY pipeline) FROM kafka.pipelines)),
	'own_a heir, own_c heir', '… and gives the pipelines away');
is(query($node,
		q(SELECT (SELECT srvowner::regrole FROM pg_foreign_server), (SELECT pubowner::regrole FROM pg_publication WHERE pubname = 'theirs'), )
		  . q((SELECT relowner::regrole FROM pg_class WHERE relname = 'a'))),
	'heir|heir|heir', '… with server, publication and table');
query($node, 'REASSIGN OWNED BY maker TO heir');
goes_on('what it needs belongs to another role', 'a', 'c');
query($node, 'DROP OWNED BY maker, server_owner, table_owner, publication_owner');
query($node, 'DROP ROLE maker, server_owner, table_owner, publication_owner');
goes_on('and the old ones are gone', 'a', 'c');
terminate_worker($node, $_) foreach qw(own_a own_c);
goes_on('and after a new start', 'a', 'c');
query($node, q(SET SESSION AUTHORIZATION heir; SELECT kafka.alter_pipeline('own_a', '{"checkpoint_interval": "50ms"}')));
goes_on('the new owner alters it', 'a');
query($node, q(ALTER ROLE heir REPLICATION; SET SESSION AUTHORIZATION heir; CALL kafka.pause('own_c'); CALL kafka.resume('own_c')));
goes_on('pauses and resumes it', 'c');
fails_with($node, 'DROP ROLE heir', qr/privileges for table kafka.pipeline/, 'a pipeline holds its new owner');

#
# A restored definition holds its owner too
#
my $dump = "$PostgreSQL::Test::Utils::tmp_check/owners.dump";
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('elsewhere'), $dump ], 'pg_restore');
is($node->safe_psql('elsewhere', q(SELECT string_agg(pipeline || ' ' || owner || ' ' || state, ', ' ORDER BY pipeline) FROM kafka.pipelines)),
	'own_a heir stopped, own_c heir stopped', 'definitions come back with their owner');

# pg_upgrade takes rows along without that; resume makes up for it
query($node, q(DELETE FROM pg_shdepend WHERE classid = 'pg_class'::regclass AND objid = 'kafka.pipeline'::regclass AND refobjid = 'heir'::regrole),
	database => 'elsewhere');
query($node, q(CALL kafka.resume('own_a')), database => 'elsewhere');
is(query($node, q(SELECT count(*) FROM pg_shdepend WHERE objid = 'kafka.pipeline'::regclass AND refobjid = 'heir'::regrole), database => 'elsewhere'),
	1, 'a definition that is resumed here holds its owner');

query($node, q(CALL kafka.drop_pipeline('own_a')));
fails_with($node, 'DROP OWNED BY heir', qr/pipeline "own_c" belongs to it/, 'a role that has lost one of two pipelines is still held');
query($node, q(CALL kafka.drop_pipeline('own_c')));
query($node, 'DROP OWNED BY heir CASCADE');
fails_with($node, 'DROP ROLE heir', qr/DETAIL:  \d+ objects in database elsewhere/, 'one that was restored elsewhere holds it');
fails_with($node, 'DROP OWNED BY heir', qr/pipeline "own_a" belongs to it/, '… and is named there', 'elsewhere');
query($node, "CALL kafka.drop_pipeline('$_')", database => 'elsewhere') foreach qw(own_a own_c);
query($node, 'DROP OWNED BY heir CASCADE', database => 'elsewhere');
query($node, 'DROP ROLE heir');
is(query($node, q(SELECT count(*) FROM pg_replication_slots) . q( WHERE slot_name LIKE 'tk\_%')), 0, 'no slot is left');

# Two that count one role's pipelines at a time
query($node, 'CREATE ROLE pair REPLICATION; GRANT ALL ON FOREIGN DATA WRAPPER transactional_kafka TO pair');
create_server($node);
query($node, 'GRANT USAGE ON FOREIGN SERVER kafka TO pair');
{
	local $ENV{PGOPTIONS} = '-c role=pair';
	my @calls = map { background_sql($node, "CALL kafka.create_pipeline('pair_$_', 'kafka')") } 1 .. 3;
	ok($_->{run}->finish, 'three pipelines of one role are created at a time') or diag $_->{errors} foreach @calls;
}
query($node, q(CALL kafka.drop_pipeline('pair_2')));
is(query($node, q(SELECT count(*) FROM pg_shdepend WHERE refobjid = 'pair'::regrole AND classid = 'pg_class'::regclass)), 1,
	'one dependency for all pipelines of a role');
query($node, "CALL kafka.drop_pipeline('pair_$_')") foreach 1, 3;
query($node, 'DROP OWNED BY pair; DROP ROLE pair');
is(query($node, q(SELECT count(*) FROM pg_shdepend WHERE classid = 'pg_class'::regclass AND objid = 'kafka.pipeline'::regclass AND deptype = 'a')), 0,
	'… that goes with the last');

done_testing();
