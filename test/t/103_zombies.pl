# Two servers with one pipeline and one checkpoint in doubt: a standby is promoted while the old primary lives on, and a
# copy takes over while the original is in the middle of its start.  The one that is late writes nothing any more.
#
# The same without a checkpoint in doubt: 040_recovery_copies.
use strict;
use warnings;

use Test::More;
use KafkaRequest;
use TransactionalKafka;

# The newest checkpoint's row
sub newest
{
	my ($node, $columns) = @_;
	return query($node, "SELECT $columns FROM kafka.checkpoints ORDER BY checkpoint_id DESC LIMIT 1");
}

sub is_open
{
	my ($id, $expected, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(describe_transaction(broker(), $id)->{state}, $expected, $what);
}

# Three rows of one transaction, the checkpoint of which is held at a fail-point; returns its transactional id.
sub stand_at
{
	my ($node, $table, $from, $point) = @_;
	my $log = -s $node->logfile;

	set_failpoint($node, "$point:wait");
	query($node, "INSERT INTO $table SELECT generate_series($from, $from + 2)");
	wait_until { logged($node, qr/fail-point "$point" waits/, $log) } "the worker at $point";
	return newest($node, 'transactional_id');
}

sub ids_of
{
	my ($table, %o) = @_;
	return [ values_of('after.id', consume("$table.public.$table", %o)) ];
}

subtest 'a physical standby promoted, the old primary still alive as a zombie' => sub {
	my $primary = new_node('primary');
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	create_server($primary);
	table_pipeline($primary, 'promoted');
	$primary->backup('online');
	$standby->init_from_backup($primary, 'online', has_streaming => 1);
	$standby->start;

	# 2 .. 4 are prepared here and there, and not committed in Kafka
	my $id = stand_at($primary, 'promoted', 2, 'after-prepare-commit');
	$primary->wait_for_catchup($standby);
	$standby->promote;
	is_stopped($standby, 'promoted', 'slot_lost', 'its replication slot was dropped');
	is(newest($standby, 'state, outcome, outcome_reason'), 'prepared||', 'the promoted server writes no verdict');
	is_open($id, 'Ongoing', '... and does not touch the transaction, which was prepared on another timeline');
	resume_stops($standby, 'promoted', 'slot_lost', 'its replication slot was dropped');
	is_open($id, 'Ongoing', '... not by a further try either');

	# the operator takes over
	my ($status, undef, $messages) =
	  $standby->psql('postgres', q{CALL kafka.accept_position('promoted', pg_current_wal_flush_lsn())});
	is($status, 0, 'accept_position takes over') or diag $messages;
	like($messages, qr/gets a new replication slot\n.*committed before it is ready and are not in Kafka are not sent/,
		'... and says what that costs');
	is(state($standby, 'promoted'), 'running', '... the promoted server runs');
	is(query($standby, q{SELECT state, outcome, outcome_reason FROM kafka.checkpoints WHERE state = 'aborted'}),
		'aborted||kafka.accept_position() went on without it', '... the checkpoint in doubt is aborted, with its reason');
	query($standby, 'INSERT INTO promoted VALUES (100)');
	is_sent('promoted', [ 1, 100 ]);

	# the zombie goes on where it was
	query($primary, 'INSERT INTO promoted VALUES (5)');
	set_failpoint($primary, '');
	is_stopped($primary, 'promoted', 'diverged', 'was written on timeline 2 .*no ancestor of this server\'s timeline 1');
	resume_stops($primary, 'promoted', 'diverged', 'timeline 2');
	query($standby, 'INSERT INTO promoted VALUES (101)');
	is_sent('promoted', [ 1, 100, 101 ]);
	is(logged($standby, qr/ERROR:  pipeline "promoted": Kafka failed/), 0, 'the promoted server never noticed');
	$standby->stop;
	$primary->stop;
};

# Materialize: two instances with one id
subtest 'a zombie worker in the middle of its re-drive; two instances with one id, one checkpoint in doubt' => sub {
	my $original = new_node('original');
	my $copy = PostgreSQL::Test::Cluster->new('copy');
	my $log;

	create_server($original);
	table_pipeline($original, 'twin');
	my $id = stand_at($original, 'twin', 2, 'after-prepare-commit');
	my @offsets = map { $_->{offset} } consume('twin.public.twin', isolation => 'read_uncommitted');
	crash($original);
	$original->backup_fs_cold('equal');
	$copy->init_from_backup($original, 'equal');
	clear_failpoint($_) foreach $original, $copy;

	# the original has judged that it may go on, and is about to commit what it had prepared
	$original->append_conf('postgresql.conf', "transactional_kafka.failpoints = 'before-redrive:wait'");
	$log = -s $original->logfile;
	$original->start;
	wait_until { logged($original, qr/fail-point "before-redrive" waits/, $log) } 'the original before its re-drive';
	$copy->start;
	wait_for_state($copy, 'twin', 'running');
	is(query($copy, 'SELECT state, attempt, outcome FROM kafka.checkpoints WHERE outcome IS NOT NULL'), 'committed|1|redriven',
		'the copy commits the checkpoint in doubt');
	is_sent('twin', [ 1 .. 4 ]);
	is_deeply([ map { $_->{offset} } consume('twin.public.twin') ], \@offsets, '... the same offsets');

	# the copy's next transaction of that id is open when the original goes on
	foreach (1 .. 2)
	{
		last if stand_at($copy, 'twin', query($copy, 'SELECT max(id) + 1 FROM twin'), 'after-prepare-commit') eq $id;
		set_failpoint($copy, '');
		query($copy, q{SELECT kafka.wait_for(timeout => '60s')});
	}
	is(newest($copy, 'transactional_id'), $id, 'the copy has the next transaction of that id open');
	my $rows = query($copy, 'SELECT max(id) FROM twin');
	my $visible = ids_of('twin');
	$log = -s $original->logfile;
	set_failpoint($original, 'before-decide:wait');
	wait_until { logged($original, qr/fail-point "before-decide" waits/, $log) } 'the original after its re-drive';
	like(PostgreSQL::Test::Utils::slurp_file($original->logfile, $log),
		qr/found checkpoint \d+ prepared; its Kafka transaction is not committed by this start/, 'the zombie commits nothing');
	is_deeply(ids_of('twin'), $visible, '... no consumer sees what the copy has open');
	set_failpoint($original, '');
	is_stopped($original, 'twin', 'fenced', 'another live instance of this database owns the pipeline');
	is(newest($original, 'state, outcome'), 'prepared|', '... the zombie writes no verdict');
	query($original, 'INSERT INTO twin VALUES (1000)');
	resume_stops($original, 'twin', 'fenced', 'another live instance');

	# what the zombie has aborted by fencing is sent again
	set_failpoint($copy, '');
	query($copy, "INSERT INTO twin VALUES ($rows + 1)");
	is_sent('twin', [ 1 .. $rows + 1 ]);
	is(state($copy, 'twin'), 'running', 'the copy goes on');
	$copy->stop;
	$original->stop;
};

done_testing();
