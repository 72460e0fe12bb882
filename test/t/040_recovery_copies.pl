# More than one server with the same pipeline: copies beside the original, promoted standbys; and synchronous standbys,
# which see to it that Kafka never holds what a promotion would lose.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

my $primary = new_node('primary');
create_server($primary);
table_pipeline($primary, 'p');
my $rows = 1;
my $standby = PostgreSQL::Test::Cluster->new('standby');
my $behind = PostgreSQL::Test::Cluster->new('behind');
$primary->backup('online');
$standby->init_from_backup($primary, 'online', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

sub insert
{
	query($primary, 'INSERT INTO p VALUES (' . ++$rows . ')');
	return;
}

sub sent
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent('p', [ 1 .. $rows ]);
}

subtest 'what a synchronous standby has not flushed does not reach Kafka' => sub {
	query($primary, q(ALTER SYSTEM SET synchronous_standby_names = 'standby'));
	$primary->reload;
	wait_until { query($primary, q(SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby')) eq 'sync' }
	'a synchronous standby';
	insert();
	sent();

	$standby->stop;
	query($primary, 'SET synchronous_commit = local; INSERT INTO p VALUES (' . ++$rows . ')');

	# A cancelled wait is a local commit too.
	my $waiting = background_sql($primary, 'INSERT INTO p VALUES (' . ++$rows . ')');
	my $pid = wait_until { query($primary, q(SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep')) }
	'a commit that waits for the standby';
	query($primary, "SELECT pg_cancel_backend($pid)");
	$waiting->{run}->finish;
	like($waiting->{errors}, qr/canceling wait for synchronous replication/, 'a wait is cancelled');
	is(query($primary, 'SELECT count(*) FROM p'), $rows, 'both rows are committed here');

	is(query($primary, q(SELECT kafka.wait_for(timeout => '1s'))), 'f', 'but not in Kafka');
	my @records = consume('p.public.p', isolation => 'read_uncommitted');
	is_deeply([ values_of('after.id', @records) ], [ 1 .. $rows - 2 ], 'not even in an open Kafka transaction');

	# The worker doesn't forget that by a new start.
	terminate_worker($primary, 'p');
	wait_for_state($primary, 'p', 'running');
	is(query($primary, q(SELECT kafka.wait_for(timeout => '1s'))), 'f', 'after a new start neither');
	is_deeply([ values_of('after.id', consume('p.public.p')) ], [ 1 .. $rows - 2 ], 'nothing was sent');

	$standby->start;
	sent();
	is(query($primary, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'once the standby has it, Kafka gets it');

	$standby->stop;
	query($primary, 'SET synchronous_commit = local; INSERT INTO p VALUES (' . ++$rows . ')');
	query($primary, 'ALTER SYSTEM RESET synchronous_standby_names');
	$primary->reload;
	sent();
	$standby->start;
	return;
};

subtest 'a copy of a running server beside the original stops as diverged; the original goes on undisturbed' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('online_copy');
	my $worker = worker_pid($primary, 'p');

	$primary->backup('running');
	$copy->init_from_backup($primary, 'running');
	insert();
	sent();
	$copy->start;
	is_stopped($copy, 'p', 'diverged', 'Kafka holds checkpoint \d+ .*newest that this server knows');
	query($copy, 'INSERT INTO p VALUES (1000000)');
	insert();
	sent();
	$copy->restart;
	is_stopped($copy, 'p', 'diverged', 'newest that this server knows');
	resume_stops($copy, 'p', 'diverged', 'newest that this server knows');
	insert();
	sent();
	is(worker_pid($primary, 'p'), $worker, 'its worker never noticed');
	$copy->stop;
	return;
};

subtest 'a standby promoted without the newest transactions that Kafka holds stops as diverged' => sub {
	$behind->init_from_backup($primary, 'online', has_streaming => 1);
	$behind->start;
	$primary->wait_for_catchup($behind);
	$behind->stop;
	insert();
	sent();
	$primary->wait_for_catchup($standby);
	$primary->stop;
	$behind->start;
	$behind->promote;
	is_stopped($behind, 'p', 'diverged',
		'Kafka holds transactions up to [0-9A-F]+/[0-9A-F]+ of timeline 1, but this server left that timeline at [0-9A-F]+/[0-9A-F]+');
	$behind->stop;
	return;
};

subtest 'before version 17 a promoted standby has no slot: slot_lost, and it stays so' => sub {
	# From 17 on the slot would have to be one that is synchronized; this one is not.
	$standby->promote;
	is_stopped($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	query($standby, 'INSERT INTO p VALUES (2000000)');
	$standby->restart;
	is_stopped($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	resume_stops($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	$standby->stop;

	# It has left Kafka as it was.
	$primary->start;
	wait_for_state($primary, 'p', 'running');
	insert();
	sent();
	return;
};

subtest 'a cold copy started beside the original, which has started since, is fenced and touches nothing' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('cold_copy');

	$primary->stop;
	$primary->backup_fs_cold('cold');
	$primary->start;
	wait_for_state($primary, 'p', 'running');
	insert();
	sent();
	my $worker = worker_pid($primary, 'p');

	$copy->init_from_backup($primary, 'cold');
	$copy->start;
	is_stopped($copy, 'p', 'fenced', 'another live instance of this database owns the pipeline');
	query($copy, 'INSERT INTO p VALUES (3000000)');
	$copy->restart;
	is_stopped($copy, 'p', 'fenced', 'another live instance');
	resume_stops($copy, 'p', 'fenced', 'another live instance');
	insert();
	sent();
	is(worker_pid($primary, 'p'), $worker, 'the original never noticed');
	$copy->stop;
	return;
};

subtest 'of two equal copies the first to start owns the pipeline, and the other never steals it back' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('equal_copy');

	$primary->stop;
	$primary->backup_fs_cold('equal');
	$copy->init_from_backup($primary, 'equal');
	$copy->start;
	wait_for_state($copy, 'p', 'running');
	my $worker = worker_pid($copy, 'p');
	query($copy, 'INSERT INTO p VALUES (' . ++$rows . ')');
	sent();

	$primary->start;
	is_stopped($primary, 'p', 'fenced', 'another live instance of this database owns the pipeline');
	query($primary, 'INSERT INTO p VALUES (4000000)');
	resume_stops($primary, 'p', 'fenced', 'another live instance');
	query($copy, 'INSERT INTO p VALUES (' . ++$rows . ')');
	sent();
	is(worker_pid($copy, 'p'), $worker, 'the owner never noticed');
	$copy->stop;
	return;
};
$primary->stop;

done_testing();
