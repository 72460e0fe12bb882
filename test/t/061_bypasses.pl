# What a pipeline needs is dropped although the event trigger would refuse it: the pipeline stops at once and says what
# it misses, nothing is tried again and again, drop_pipeline() still does its work, and nothing stays behind.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

use PostgreSQL::Test::Utils;

my $node = new_node('main');

# Two ways to switch event triggers off
my %bypass = (
	disable => sub {
		return "ALTER EVENT TRIGGER transactional_kafka_drop DISABLE; $_[0]; ALTER EVENT TRIGGER transactional_kafka_drop ENABLE";
	},
	replica => sub { return "SET session_replication_role = replica; $_[0]; RESET session_replication_role"; });

# A test: of this pipeline there is neither row, slot, publication nor process.
sub nothing_left
{
	my ($name, $id, $slot) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is( query($node,
			join ' UNION ALL ',
			"SELECT 'slot' FROM pg_replication_slots WHERE slot_name = '$slot'",
			"SELECT pubname FROM pg_publication WHERE pubname ~ '^tk_${id}_'",
			"SELECT backend_type FROM pg_stat_activity WHERE backend_type = 'transactional_kafka pipeline $name'",
			map { "SELECT '$_' FROM kafka.$_ WHERE pipeline_id = $id" } qw(pipeline pipeline_table pipeline_state checkpoint)),
		'',
		"$name: drop_pipeline leaves nothing behind");
	return;
}

sub identify
{
	my ($name) = @_;
	return split /\|/, query($node,
		"SELECT pipeline_id, slot_name FROM kafka.pipeline p JOIN kafka.pipelines ON pipeline = name WHERE name = '$name'");
}

my $n = 0;
foreach my $way (sort keys %bypass)
{
	foreach my $case (
		[ 'server', 'DROP SERVER s CASCADE', 'server "s" was dropped' ],
		[ 'owned by', 'ALTER SERVER s OWNER TO owner; DROP OWNED BY owner CASCADE', 'server "s" was dropped' ],
		[ 'publication', 'DROP PUBLICATION theirs', 'publication "theirs" was dropped' ],
		[ 'own publication', 'DROP PUBLICATION tk_ID_insert', 'its publication "tk_\d+_insert" was dropped' ])
	{
		my ($what, $sql, $reason) = @$case;
		my $name = 'bypass_' . ++$n;

		create_server($node, name => 's');
		query($node, "CREATE TABLE $name (id int PRIMARY KEY); CREATE ROLE owner; CREATE PUBLICATION theirs FOR TABLE $name");
		create_pipeline($node, $name, server => 's', $what eq 'publication' ? (publication => 'theirs') : (tables => [$name]));
		query($node, "INSERT INTO $name VALUES (1)");
		is_sent($name, [1]);
		my ($id, $slot) = identify($name);

		my $log = -s $node->logfile;
		query($node, $bypass{$way}->($sql =~ s/ID/$id/r));
		is_stopped($node, $name, 'failed', "^$reason");
		query($node, "INSERT INTO $name VALUES (2)");
		is(query($node, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$slot' AND NOT active"), 1,
			"$name: $what dropped ($way): its slot stays while its row does");
		resume_stops($node, $name, 'failed', $reason);
		is(logged($node, qr/ERROR:  pipeline "$name" stops as failed/, $log), 2, "$name: it was tried once, and once by resume");

		$node->restart;
		is_stopped($node, $name, 'failed', "^$reason");
		is(logged($node, qr/ERROR:  pipeline "$name" stops as failed/, $log), 2, "$name: … and not again by a new start of the server");
		query($node, "CALL kafka.drop_pipeline('$name')");
		nothing_left($name, $id, $slot);
		query($node, "DROP TABLE $name; DROP PUBLICATION IF EXISTS theirs; DROP SERVER IF EXISTS s; DROP ROLE owner");
	}
}

#
# Without Kafka, paused
#
create_server($node, name => 's', broker => 'localhost:1');
create_pipeline($node, 'away', server => 's');
create_pipeline($node, 'paused', server => 's');
query($node, q(CALL kafka.pause('paused')));
wait_for_state($node, 'away', 'retrying');
my %ids = map { $_ => [ identify($_) ] } qw(away paused);
query($node, $bypass{replica}->('DROP SERVER s'));
is_stopped($node, 'away', 'failed', qr/^server "s" was dropped/);
is(state($node, 'paused'), 'stopped', 'a paused pipeline stays paused');
resume_stops($node, 'paused', 'failed', 'server "s" was dropped');
foreach (qw(away paused))
{
	query($node, "CALL kafka.drop_pipeline('$_')");
	nothing_left($_, @{ $ids{$_} });
}

#
# Tables
#
create_server($node);
query($node, 'CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)');
create_pipeline($node, 'tables', tables => [ 'shop.t', 'u' ]);
my ($id, $slot) = identify('tables');
query($node, q(SELECT kafka.set_table('tables', 'shop.t', '{"topic": "bypass_given"}')));
wait_for_state($node, 'tables', 'running');
query($node, q(CALL kafka.pause('tables')));
query($node, 'INSERT INTO shop.t VALUES (1)');
query($node, $bypass{replica}->('DROP SCHEMA shop CASCADE'));
is(query($node, "SELECT count(*) FROM kafka.pipeline_table WHERE pipeline_id = $id"), 2, 'a table is dropped, unseen');
is(pipeline_field($node, 'tables', 'tables'), '{u}', '… the view knows');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/bypasses.dump";
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump works');
query($node, 'CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), $dump ], '… and what it wrote can be restored');
is($node->safe_psql('restored', 'SELECT "table" FROM kafka.pipeline_table'), 'u', '… without the table that is gone');
query($node, q(CALL kafka.resume('tables')));
is_deeply([ values_of('after.id', consume_until('bypass_given', 1)) ], [1], 'its last row goes where its settings say');
query($node, 'INSERT INTO u VALUES (1)');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', '… and the pipeline goes on');
query($node, q(SELECT kafka.checkpoint('tables')));
terminate_worker($node, 'tables');
wait_for_state($node, 'tables', 'running');
is(query($node, "SELECT \"table\" FROM kafka.pipeline_table WHERE pipeline_id = $id"), 'u', '… its row goes at the start after that');
query($node, 'DROP DATABASE restored');

#
# The foreign-data wrapper, the schema, the extension's owner
#
my ($status, undef, $stderr) = $node->psql('postgres', $bypass{replica}->('DROP FOREIGN DATA WRAPPER transactional_kafka CASCADE'));
isnt($status, 0, 'the foreign-data wrapper does not go without the extension');
like($stderr, qr/cannot drop foreign-data wrapper transactional_kafka because extension transactional_kafka requires it/, '… and PostgreSQL says so');
is(state($node, 'tables'), 'running', '… which is no harm to the pipeline');

my @all = (
	[ 'DROP SCHEMA … CASCADE', 'DROP SCHEMA kafka CASCADE', '' ],
	[ 'DROP OWNED … CASCADE', 'DROP OWNED BY installer CASCADE', 'installer' ],
	[ 'DROP EXTENSION … CASCADE with event triggers off', $bypass{replica}->('DROP EXTENSION transactional_kafka CASCADE'), '' ]);
foreach my $case (@all)
{
	my ($what, $sql, $role) = @$case;

	query($node, 'DROP EXTENSION IF EXISTS transactional_kafka CASCADE; DROP SCHEMA IF EXISTS kafka CASCADE');
	query($node, 'CREATE ROLE installer SUPERUSER; SET ROLE installer; CREATE EXTENSION transactional_kafka') if $role;
	query($node, 'DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY)');
	create_server($node);
	create_pipeline($node, "all_running", tables => ['t']);
	create_pipeline($node, "all_paused", tables => ['t']);
	query($node, q(CALL kafka.pause('all_paused')));
	is(query($node, 'SELECT count(*) FROM kafka.pipelines JOIN pg_replication_slots USING (slot_name)'), 2, "before $what there are slots");
	my $log = -s $node->logfile;
	query($node, $sql);
	is(query($node, q(SELECT count(*) FROM pg_extension WHERE extname = 'transactional_kafka')), 0, "$what takes the extension along");
	wait_until
	{
		query($node, q(SELECT (SELECT count(*) FROM pg_replication_slots) + )
			  . q((SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%'))) eq '0'
	}
	'slots and workers to go', 60;
	pass('… and slots and workers');
	is(query($node, q(SELECT count(*) FROM pg_publication WHERE pubname ~ '^tk_')), 0, '… and publications');
	is(query($node, q(SELECT count(*) FROM pg_shdepend WHERE classid = 'pg_class'::regclass AND dbid <> 0 AND NOT EXISTS )
			  . q((SELECT FROM pg_class c WHERE c.oid = objid) AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database()))),
		0, '… and what held the owners');
}

done_testing();
