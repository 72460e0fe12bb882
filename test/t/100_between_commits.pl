# Between PostgreSQL's commit and Kafka's: what becomes of a checkpoint when the worker dies there, and when somebody else
# reaches for its transaction meanwhile.  Each scenario is named as issue and CASES.md name it.
#
# Scenarios that are tested elsewhere:
#   each step, error, exit and SIGKILL                          010_failpoints
#   die between Kafka's commit and the mark, crash of the server 010_failpoints (after-kafka-commit: already_committed)
#   coordinator (broker) dies in mid-EndTxn                      073_broker_restarts; stays in it: 101_lost_requests
#   one partition missing, oversized records                    020_bad_input, 040_recovery
#   Materialize: two instances with one id                      040_recovery_copies; with one in doubt: 103_zombies
#   Materialize: progress topic emptied by delete-records        040_recovery (emptied)
#   SeaTunnel #11541, one record, checkpoint at once             041_positions
#   N consecutive failures, longer than transaction_timeout twice 092_policies
#   one partition's delivery fails at flush                      101_lost_requests
#   timed out before the re-drive, id expired                    102_timeouts
#   a standby promoted, the old primary as a zombie              103_zombies
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use KafkaRequest;
use Scenario;
use TransactionalKafka;
use Workload;

my $node     = new_node('main');
my $workload = Workload->new($node, 'between',
	options => { transaction_timeout => '60s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });
my $scenario = Scenario->new($workload);

# A consumer of what others wrote meanwhile: nothing of it may be committed by us.
create_topic('between.foreign');

sub is_unseen
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ consume('between.foreign') ], [], "$what: no consumer sees what the other one wrote");
	return;
}

subtest 'die between prepare and COMMIT' => sub {
	my $held = $scenario->stand_at('before-prepare-commit');

	is($held->{checkpoint_id}, '', 'no row is there yet');
	my @open = @{ $held->{offsets} };
	crash($node);
	clear_failpoint($node);
	$node->start;
	$scenario->heals('die between prepare and COMMIT');
	my %checked = map { $_ => 1 } @{ $workload->{checked}->{ledger} };
	cmp_ok(scalar @open, '>', 0, 'the broker had records of it');
	is(scalar(grep { $checked{$_} } @open), 0, '... which were aborted, and produced again');
	is(query($node, q{SELECT count(*) FROM kafka.checkpoints WHERE outcome IS NOT NULL OR attempt > 1 OR state = 'aborted'}),
		0, '... no checkpoint was in doubt');
};

subtest 'die between COMMIT and Kafka\'s commit' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my $found = $scenario->describe($held);

	is($held->{state}, 'prepared', 'the row is prepared');
	is(join('|', @$held{qw(producer_id producer_epoch kafka_start_ms)}), join('|', @$found{qw(producer_id epoch start)}),
		'... and says which Kafka transaction it is');
	is($found->{state}, 'Ongoing', '... which is open');
	$scenario->replace_worker;
	$scenario->heals('die between COMMIT and Kafka\'s commit');
	$scenario->became($held, 'committed|1|redriven', 're-drive');
	$scenario->same_offsets($held, 're-drive');

	# What a process of before the start may still send
	my @of = ($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)});
	is(end_transaction(@of, 1), 90, 'zombie worker: its commit is refused');
	is(end_transaction(@of, 0), 90, '... its abort too');
	is(add_partition(@of, 'between.foreign', 0), 47, '... it can begin no transaction');
	isnt(send_record(@of, 'between.foreign', 0, 'zombie'), 0, '... nor write anything');
	is_unseen('zombie worker');
};

subtest 'duplicate completion' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->replace_worker('after-redrive:wait');
	is(end_transaction($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)}, 1), 0,
		'a second commit of the same transaction is none');
	is($scenario->newest->{state}, 'prepared', 'the start dies after the re-drive: the row is still prepared');
	$scenario->replace_worker;
	$scenario->heals('duplicate completion');
	$scenario->became($held, 'committed|1|already_committed', 'duplicate completion');
	$scenario->same_offsets($held, 'duplicate completion');
};

#
# Somebody else
#

# A transaction of the same producer id and epoch, which is not the checkpoint's
sub open_another
{
	my ($held) = @_;
	my @of = ($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)});

	is(add_partition(@of, 'between.foreign', 0), 0, 'the next transaction of the same id is open');
	is(send_record(@of, 'between.foreign', 0, 'of the next one'), 0, '... with a record');
	return;
}

my %reasons = (
	fenced  => qr/^the transactional id is producer \d+, epoch \d+ now, and was .*: the transaction timed out or was fenced$/,
	ended   => qr/^the transaction has ended already: CompleteAbort$/,
	another => qr/^another transaction of the same producer is open: it began at \d+, the row's at \d+$/);

subtest 'foreign InitProducerId on a pending id, the worker lives' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my $pid = worker_pid($node, 'between');

	my ($error) = take_over($workload->{broker}, $held->{transactional_id});
	is($error, 0, 'somebody else takes the id over');
	$scenario->go_on;
	$scenario->heals('foreign InitProducerId, the worker lives');
	isnt(worker_pid($node, 'between'), $pid, 'its worker was fenced, and another one came');
	$scenario->became($held, 'committed|2|replayed', 'foreign InitProducerId, the worker lives', $reasons{fenced});
	$scenario->other_offsets($held, 'foreign InitProducerId, the worker lives');
};

subtest 'foreign InitProducerId on a pending id, with a transaction of its own: librdkafka\'s, of another program' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my ($input, $output) = ('', '');
	my $foreign;

	$scenario->replace_worker('after-progress-read:wait');
	$foreign = IPC::Run::start([ qw(kcat -P -t between.foreign -b), $workload->{broker},
			'-X', "transactional.id=$held->{transactional_id}" ], '<', \$input, '>&', \$output);
	# it sends once it has read a few kB, and keeps its transaction open as long as there may come more
	$input = "of another program\n" x 20000;
	wait_until { $foreign->pump_nb; consume('between.foreign', isolation => 'read_uncommitted') > 0 } 'a foreign record', 30;
	is($scenario->describe($held)->{state}, 'Ongoing', 'another program has a transaction open by our id');
	$scenario->go_on;
	$scenario->heals('foreign transaction on a pending id');
	$scenario->became($held, 'committed|2|replayed', 'foreign transaction on a pending id', $reasons{fenced});
	$scenario->other_offsets($held, 'foreign transaction on a pending id');

	# it would commit at the end of its input, if it has not noticed before (and reads no more: an exception here)
	ok(!eval { $foreign->finish }, 'the other program is fenced: it can\'t commit');
	$foreign->kill_kill;
	is_unseen('foreign transaction on a pending id');
};

subtest 'transaction aborted by an admin, the worker lives' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	is(end_transaction($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)}, 0), 0, 'it is aborted');
	$scenario->go_on;
	$scenario->heals('aborted by an admin, the worker lives');
	$scenario->became($held, 'committed|2|replayed', 'aborted by an admin, the worker lives', $reasons{ended});
	$scenario->other_offsets($held, 'aborted by an admin, the worker lives');
};

subtest 'transaction aborted by an admin, with Kafka\'s own tool, between two workers' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->replace_worker('after-progress-read:wait');
	kafka_tool('TransactionsCommand', $workload->{broker}, 'forceTerminateTransaction',
		'--transactionalId', $held->{transactional_id});
	isnt($scenario->describe($held)->{state}, 'Ongoing', 'it is aborted');
	$scenario->go_on;
	$scenario->heals('aborted by an admin');
	$scenario->became($held, 'committed|2|replayed', 'aborted by an admin', $reasons{fenced});
	$scenario->other_offsets($held, 'aborted by an admin');
};

subtest 'FLINK-8132: crash after EndTxn(k), with k+1 already open on the same id' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my @of = ($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)});

	# before the start reads what Kafka has
	$scenario->replace_worker('recovery-start:wait');
	is(end_transaction(@of, 1), 0, 'k is committed');
	open_another($held);
	$scenario->go_on;
	$scenario->heals('FLINK-8132');
	$scenario->became($held, 'committed|1|already_committed', 'FLINK-8132');
	$scenario->same_offsets($held, 'FLINK-8132');
	is_unseen('FLINK-8132: k+1 is not committed by the re-drive');
};

subtest 'FLINK-8132, where k was aborted: another transaction with the same producer id and epoch is never touched' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my @of = ($workload->{broker}, @$held{qw(transactional_id producer_id producer_epoch)});

	$scenario->replace_worker('after-progress-read:wait');
	is(end_transaction(@of, 0), 0, 'k is aborted');
	open_another($held);
	my $found = $scenario->describe($held);
	is(join('|', @$found{qw(state producer_id epoch)}), join('|', 'Ongoing', @$held{qw(producer_id producer_epoch)}),
		'only its start tells the two apart');
	$scenario->go_on;
	$scenario->heals('FLINK-8132, aborted');
	$scenario->became($held, 'committed|2|replayed', 'FLINK-8132, aborted', $reasons{another});
	$scenario->other_offsets($held, 'FLINK-8132, aborted');
	is_unseen('FLINK-8132, aborted: k+1 is not committed by the re-drive');
};

subtest 'FLINK-31363: nothing to send is no checkpoint and no Kafka transaction, and the slot still moves' => sub {
	my @ids = split /\n/, query($node, 'SELECT DISTINCT transactional_id FROM kafka.checkpoints ORDER BY 1');
	my $slot = 'SELECT confirmed_flush_lsn FROM pg_replication_slots JOIN kafka.pipelines USING (slot_name)';
	my $seen = sub {
		my @of_kafka = map { describe_transaction($workload->{broker}, $_) } @ids;
		my @progress = consume(pipeline_field($node, 'between', 'progress_topic'), isolation => 'read_uncommitted');

		return [ query($node, 'SELECT max(checkpoint_id), count(*) FROM kafka.checkpoints'), @of_kafka, scalar @progress ];
	};

	is(scalar @ids, 2, 'two transactional ids');
	wait_until { query($node, q{SELECT count(*) FROM kafka.checkpoint WHERE state = 'prepared'}) eq '0' } 'an idle pipeline';
	my ($before, $from) = ($seen->(), query($node, $slot));
	query($node, 'CREATE TABLE elsewhere AS SELECT generate_series(1, 10000)');
	my $end = query($node, 'SELECT pg_current_wal_flush_lsn()');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'all that was written is covered');
	wait_until { query($node, "$slot WHERE confirmed_flush_lsn >= '$end'") ne '' } 'the slot behind it', 30;
	isnt(query($node, $slot), $from, 'the slot has moved');
	is_deeply($seen->(), $before, '... and neither the coordinator nor kafka.checkpoints nor the progress topic knows of it');
};

$scenario->ends_well;
done_testing();
