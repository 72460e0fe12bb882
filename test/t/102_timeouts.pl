# What Kafka itself does to a pipeline's transactions and records as time goes by: it ends transactions, forgets ids, and
# compacts the progress topic.
#
# Tested elsewhere: a worker that is too slow at each step heals (070_outages); a transaction that outlives
# transaction_timeout twice, N consecutive failures (092_policies).  Here it is what the checkpoint becomes.
use strict;
use warnings;

use List::Util qw(max);
use Test::More;
use Scenario;
use TransactionalKafka;
use Workload;

my $broker = start_broker('own', 'transactional.id.expiration.ms=5000',
	'transaction.remove.expired.transaction.cleanup.interval.ms=200', 'log.cleaner.backoff.ms=100');
my $node     = new_node('main');
my $workload = Workload->new($node, 'late',
	broker  => $broker->address,
	options => { transaction_timeout => '3s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });
my $scenario = Scenario->new($workload);
my $timed_out = qr/^the transactional id is producer \d+, epoch \d+ now, and was .*: the transaction timed out or was fenced$/;

# How many processes have begun to run since then, and how many errors they had.
sub starts { return logged($node, qr/LOG:  starting logical decoding for slot "tk_/, $_[0]); }
sub errors { return logged($node, qr/ERROR:  pipeline "late"/, $_[0]); }

# Since when: (size of the log, number of alarms)
sub now { return (-s $node->logfile, $scenario->stat_of('alarms')); }

# One restart, one alarm; the log says so once too.
sub is_once
{
	my ($held, $log, $alarms) = @_;
	my $told = qr/pipeline "late" found checkpoint $held->{checkpoint_id} prepared; its Kafka transaction is not committed/;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(starts($log), 1, '... by one restart');
	is($scenario->stat_of('alarms'), $alarms + 1, '... and one alarm');
	is(logged($node, $told, $log), 1, '... which the log tells once');
	return;
}

subtest 'FLINK-8086: transaction timed out in Kafka before the commit, the worker lives' => sub {
	my @since = now();
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->await_transaction($held, 'CompleteAbort');
	$scenario->go_on;
	$scenario->heals('FLINK-8086');
	$scenario->became($held, 'committed|2|replayed', 'FLINK-8086', $timed_out);
	$scenario->other_offsets($held, 'FLINK-8086');
	is_once($held, @since);
};

subtest 'transaction timed out in Kafka before the re-drive' => sub {
	my @since = now();
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->replace_worker('after-progress-read:wait');
	$scenario->await_transaction($held, 'CompleteAbort');
	$scenario->go_on;
	$scenario->heals('timed out before the re-drive');
	$scenario->became($held, 'committed|2|replayed', 'timed out before the re-drive', $timed_out);
	$scenario->other_offsets($held, 'timed out before the re-drive');
	is_once($held, @since);
};

# 105 is TRANSACTIONAL_ID_NOT_FOUND; to requests in its name the coordinator says 49, INVALID_PRODUCER_ID_MAPPING.
sub await_expiration
{
	my (@held) = @_;

	wait_until { !grep { $scenario->describe($_)->{error} != 105 } @held } 'the id to expire', 60;
	return;
}

subtest 'FLINK-39072: id expired (49) before the re-drive' => sub {
	my @since = now();
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->replace_worker('after-progress-read:wait');
	await_expiration($held);
	$scenario->go_on;
	$scenario->heals('id expired');
	$scenario->became($held, 'committed|2|replayed', 'id expired', qr/^the coordinator no longer knows the transactional id$/);
	$scenario->other_offsets($held, 'id expired');
	is_once($held, @since);
};

subtest 'FLINK-39072: ids expired (49) under an idle pipeline' => sub {
	my @ids = split /\n/, query($node, q{SELECT transactional_id FROM kafka.kafka_transactions WHERE pipeline = 'late'});
	my $log = -s $node->logfile;

	await_expiration(map { { transactional_id => $_ } } @ids);
	is(scalar @ids, 2, 'all ids of the pool are forgotten');
	is(errors($log), 0, '... which an idle pipeline does not notice');
	$scenario->heals('ids expired under an idle pipeline');
	cmp_ok(starts($log), '<=', 1, '... by one restart at most');
	is(query($node, q{SELECT count(*) FROM kafka.checkpoints WHERE state <> 'committed'
		AND checkpoint_id < (SELECT max(checkpoint_id) FROM kafka.checkpoints)}), 0, '... no checkpoint is in doubt');
};

subtest 'Materialize: compaction of the progress topic' => sub {
	my $topic = pipeline_field($node, 'late', 'progress_topic');
	my $records = sub { return consume($topic, broker => $broker->address, isolation => 'read_uncommitted') };

	kafka_tool('ConfigCommand', $broker->address, '--alter', '--topic', $topic, '--add-config',
		'segment.ms=100,min.cleanable.dirty.ratio=0,max.compaction.lag.ms=1,delete.retention.ms=0');
	my @before = $records->();
	cmp_ok(scalar @before, '>', 10, 'the progress topic has records');

	# the newest segment is never compacted: only what comes later makes it an older one
	wait_until { $workload->run(transactions => 2); ($records->())[0]->{offset} > $before[-1]->{offset} } 'compaction', 60;
	my $held = $scenario->stand_at('after-kafka-commit');
	my $newest = ($records->())[-1]->{offset};
	$scenario->replace_worker;
	$scenario->heals('compaction of the progress topic');
	$scenario->became($held, 'committed|1|already_committed', 'compaction of the progress topic');
	$scenario->same_offsets($held, 'compaction of the progress topic');
	cmp_ok($newest, '>', $before[-1]->{offset}, '... by what the newest record said');
};

$scenario->ends_well;
done_testing();
