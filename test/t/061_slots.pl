# Which slots are nobody's, and databases that go: a slot is dropped only if a scout has read that no definition claims
# it.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main', 'transactional_kafka.max_pipelines = 8');
create_server($node);

sub slots
{
	my ($database) = @_;
	return query($node,
		q(SELECT coalesce(string_agg(slot_name, ' ' ORDER BY slot_name COLLATE "C"), '') FROM pg_replication_slots WHERE database = ) . quote($database));
}

sub oid { return query($node, 'SELECT oid FROM pg_database WHERE datname = ' . quote($_[0])); }

sub make_slot
{
	my ($name, $database, $plugin) = @_;
	$plugin ||= 'pgoutput';
	query($node, "SELECT pg_create_logical_replication_slot('$name', '$plugin')", database => $database);
	return $name;
}

sub pipeline_in
{
	my ($database, $name) = @_;
	query($node, 'CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)', database => $database);
	create_pipeline($node, $name, tables => ['t'], database => $database);
	return;
}

#
# Definitions in every state, and slots of every kind
#
my $here = oid('postgres');
my $first = make_slot("tk_${here}_9001");
pipeline_in('postgres', $_) foreach qw(running paused failed restored dropping without);
query($node, "CALL kafka.pause('$_')") foreach qw(paused restored dropping without);

# failed: sticky
my ($id) = split /\|/, query($node, q(SELECT pipeline_id FROM kafka.pipeline WHERE name = 'failed'));
query($node, "SET session_replication_role = replica; DROP PUBLICATION tk_${id}_insert");
is_stopped($node, 'failed', 'failed', 'publication "tk_\d+_insert" was dropped');

# restored: a definition without state; dropping: a drop_pipeline() that did not end; without: a row without its pipeline
query($node, q(DELETE FROM kafka.pipeline_state s USING kafka.pipeline p WHERE p.pipeline_id = s.pipeline_id AND name = 'restored'));
query($node, q(UPDATE kafka.pipeline SET dropping = true, enabled = false WHERE name = 'dropping'));
my $nobodys = pipeline_field($node, 'without', 'slot_name');
query($node, q(DELETE FROM kafka.pipeline WHERE name = 'without'));
my @claimed = map { pipeline_field($node, $_, 'slot_name') } qw(running paused failed restored dropping);
my @other = (
	make_slot("tk_${here}_9002", undef, 'test_decoding'),    # another plugin
	make_slot("tk_${here}_09003"),                           # a number that is written otherwise
	make_slot("tk_${here}_0"), make_slot("tk_${here}_9004_x"), make_slot("tk_${here}_99999999999"),
	make_slot('tk_1_9005'),                                  # of this database, named as of another one
	make_slot('mine'));
query($node, "SELECT pg_create_physical_replication_slot('tk_${here}_9006')");
my $last = make_slot("tk_${here}_9007");

$node->restart;
wait_until { my $slots = slots('postgres'); !grep { $slots =~ /\b$_\b/ } $first, $last, $nobodys } 'the slots that are nobody\'s to go', 60;
is(slots('postgres'), join(' ', sort @claimed, @other), 'slots of all definitions, and of others, stay');
is(query($node, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tk_${here}_9006'"), 1, '… a physical one too');
wait_for_state($node, 'running', 'running');
query($node, q(CALL kafka.drop_pipeline('dropping')));
is(query($node, q(SELECT count(*) FROM kafka.pipeline WHERE name = 'dropping')), 0, 'a drop_pipeline() that did not end is called again');
query($node, "CALL kafka.drop_pipeline('$_')") foreach qw(paused failed restored running);
is(slots('postgres'), join(' ', sort @other), '… and each pipeline takes its slot along');
query($node, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots");

#
# A scout that can't look proves nothing
#
query($node, "CREATE DATABASE $_") foreach qw(closed crowded);
create_server($node, database => $_) foreach qw(closed crowded);
pipeline_in('closed', 'closed_runs');
pipeline_in('crowded', 'crowded_runs');
my ($closed, $crowded) = map { query($node, 'SELECT slot_name FROM kafka.pipelines', database => $_) } qw(closed crowded);
my $orphan = make_slot('tk_' . oid('closed') . '_9001', 'closed');
query($node, 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
query($node, 'ALTER DATABASE crowded CONNECTION LIMIT 0');
make_slot("tk_${here}_9001");
$node->restart;
wait_until { slots('postgres') eq '' } 'a slot that is nobody\'s in a database that can be looked into', 60;
is(slots('closed'), join(' ', sort $closed, $orphan), 'in a database that allows no connection no slot is dropped');
query($node, 'INSERT INTO t VALUES (1)', database => 'crowded');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), database => 'crowded'), 't', 'a connection limit of 0 is no obstacle to a pipeline');
is(slots('crowded'), $crowded, '… and its slot is the same');
query($node, 'ALTER DATABASE closed ALLOW_CONNECTIONS true');
wait_until { slots('closed') eq $closed } 'the orphan of a database that is open again to go', 60;
query($node, 'INSERT INTO t VALUES (1)', database => 'closed');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), database => 'closed'), 't', 'a pipeline of a database that was closed goes on');
is_deeply([ values_of('after.id', consume_until('closed_runs.public.t', 1)) ], [1], '… and what it sends arrives once');

# closed while a pipeline runs; and one that an interrupted DROP DATABASE has left
query($node, 'CREATE DATABASE invalid');
query($node, q(UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'invalid'));
query($node, 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
my $log = -s $node->logfile;
make_slot("tk_${here}_9001");
$node->restart;
wait_until { slots('postgres') eq '' } 'a slot that is nobody\'s to go', 60;
make_slot("tk_${here}_9001");
query($node, 'ALTER DATABASE postgres CONNECTION LIMIT -1');
wait_until { slots('postgres') eq '' } 'one that is looked at after all databases to go', 60;
is(logged($node, qr/FATAL:  (database "closed" is not currently|cannot connect to invalid)/, $log), 0,
	'no scout knocks at a database that can\'t be connected to');
query($node, 'ALTER DATABASE closed ALLOW_CONNECTIONS true');
wait_until { query($node, 'SELECT state FROM kafka.pipelines', database => 'closed') eq 'running' } 'a pipeline to start when its database opens', 60;
query($node, 'DROP DATABASE invalid');

#
# What a new pipeline may cost
#
foreach my $case ([ '-1', 1 ], [ '1GB', 0 ])
{
	my ($limit, $notices) = @$case;

	query($node, "ALTER SYSTEM SET max_slot_wal_keep_size = '$limit'; SELECT pg_reload_conf()");
	wait_until { query($node, 'SHOW max_slot_wal_keep_size') eq $limit } 'the setting';
	my (undef, undef, $stderr) = $node->psql('postgres', q(CALL kafka.create_pipeline('bounded', 'kafka')));
	is(scalar(() = $stderr =~ /NOTICE:  WAL that pipeline "bounded" keeps is not bounded\nDETAIL:  max_slot_wal_keep_size is -1: .*until the disk is full\.\nHINT:  Set max_slot_wal_keep_size/g),
		$notices, "max_slot_wal_keep_size = $limit: create_pipeline() tells " . ($notices ? 'once what it can cost' : 'nothing'));
	query($node, q(CALL kafka.drop_pipeline('bounded')));
}
query($node, 'ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()');

#
# DROP DATABASE
#
fails_with($node, 'DROP DATABASE closed', qr/database "closed" is in use by pipeline "closed_runs" of transactional_kafka.*HINT:  Connect to it and CALL kafka.pause\('closed_runs'\) or kafka.drop_pipeline/s,
	'a database with a running pipeline is not dropped');
fails_with($node, 'DROP DATABASE closed WITH (FORCE)', qr/database "closed" is in use by pipeline "closed_runs"/, '… with FORCE neither');
is(query($node, q(SELECT state FROM kafka.pipelines), database => 'closed'), 'running', '… and nothing happened to the pipeline');
query($node, 'CREATE ROLE stranger');
fails_with($node, 'SET SESSION AUTHORIZATION stranger; DROP DATABASE closed', qr/must be owner of database closed/, '… and whoever may not drop it hears no more than that');

# README's way
my $way = <<'SQL';
\c closed
SELECT format('CALL kafka.pause(%L)', pipeline) FROM kafka.pipelines \gexec
\c postgres
DROP DATABASE closed WITH (FORCE);
SQL
my $errors;
ok(IPC::Run::run([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') ], '<', \$way, '>', \my $output, '2>', \$errors),
	'README\'s way to drop a database with pipelines')
  or diag $errors;
is(query($node, q(SELECT count(*) FROM pg_database WHERE datname = 'closed')), 0, '… drops it');
is(query($node, "SELECT count(*) FROM pg_replication_slots WHERE slot_name IN ('$closed', '$orphan')"), 0, '… with its slots');
query($node, q(CALL kafka.drop_pipeline('crowded_runs')), database => 'crowded');
query($node, 'DROP DATABASE crowded');

# Stopped in each way.  Twice more pipelines than the server can have at a time: nothing of the dropped ones is kept.
foreach my $round (1 .. 3)
{
	query($node, 'CREATE DATABASE doomed');
	create_server($node, database => 'doomed');
	pipeline_in('doomed', "doomed_$_") foreach 1 .. 5;
	is(query($node, 'SELECT count(*) FROM kafka.stat_pipelines WHERE pid IS NOT NULL', database => 'doomed'), 5, "round $round: five pipelines run");

	# 1, 2: sticky; 3, 4: paused; 5: its Kafka is away
	query($node, join(';', 'SET session_replication_role = replica', map { "DROP PUBLICATION tk_${_}_insert" } 1, 2), database => 'doomed');
	query($node, "CALL kafka.pause('doomed_$_')", database => 'doomed') foreach 3, 4;
	wait_until { query($node, q(SELECT count(*) FROM kafka.pipelines WHERE state = 'failed'), database => 'doomed') eq '2' } 'two sticky states';
	query($node, q(ALTER SERVER kafka OPTIONS (SET "bootstrap.servers" 'localhost:1')), database => 'doomed');
	wait_until { query($node, q(SELECT state FROM kafka.pipelines WHERE pipeline = 'doomed_5'), database => 'doomed') eq 'retrying' } 'one that is retried';

	# FORCE hits or misses a process of the last one
	wait_until { ($node->psql('postgres', 'DROP DATABASE doomed WITH (FORCE)'))[0] == 0 } 'the database to be dropped between two attempts', 60;
	is(query($node, 'SELECT count(*) FROM pg_replication_slots'), 0, '… and its slots are gone with it');
}
is(query($node, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%')), 0, 'no process is left');
pipeline_in('postgres', "again_$_") foreach 1 .. 8;
is(query($node, q(SELECT count(*) FROM kafka.pipelines WHERE state = 'running')), 8, 'all places for pipelines are free again');
query($node, "CALL kafka.drop_pipeline('again_$_')") foreach 1 .. 8;

done_testing();
