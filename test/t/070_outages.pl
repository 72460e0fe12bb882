# Kafka is away: at the server's start, under load, for longer than its transactions live, and for a moment.  PostgreSQL
# goes on, the view says what is the matter, the WAL stays, and when Kafka is back everything arrives by itself, once, in
# commit order.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use Workload;

# A broker that ends transactions over their time before it has found the leaders of its partitions again writes no
# marker for them, and they stay open for ever (Kafka's bug).  So it first looks at them some seconds after its start, as
# it does where that is not set (10 s).
my $broker = start_broker('own', 'transaction.abort.timed.out.transaction.cleanup.interval.ms=5000');
my $address  = $broker->address;
my $node     = new_node('main', "log_line_prefix = '%n '\n");
my $workload = Workload->new($node, 'outage',
	broker  => $address,
	options => { transaction_timeout => '4s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });

sub status
{
	my ($name) = @_;
	my ($live, $stat) = map { query($node, "SELECT state, reason FROM kafka.$_ WHERE pipeline = '$name'") }
	  qw(pipelines stat_pipelines);

	return $live eq $stat ? $live : "$live, but stat_pipelines: $stat";
}

# The view says so, with the reason, in both views.
sub retries_because
{
	my ($pattern, $what) = @_;
	my $status = '';

	eval { wait_until { ($status = status('outage')) =~ /^retrying\|.*$pattern/ } $what, 60 };
	return like($status, qr/^retrying\|.*$pattern/, "$what: the views say why");
}

# By itself, if nobody did anything; all that was committed is there.
sub heals
{
	my ($what) = @_;

	$workload->heals($what, '60s');
	is(status('outage'), 'running|', "$what: and the reason is gone");
	return;
}

sub position
{
	return query($node, q{SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name LIKE 'tk\_%'});
}

#
# At the server's start
#
$broker->stop;
my $offset = -s $node->logfile;
$node->restart;
pass('Kafka is down: the server starts');
ok($workload->run, '... sessions write');
retries_because('Kafka failed while looking for the progress topic: .*refused', 'Kafka is down at the start');
is(query($node, q{SELECT kafka.wait_for(timeout => '0')}), 'f', '... nothing of it is said to be in Kafka');

# The pauses between starts grow: 1 s, 2 s, ...; each start fails once and says so once.
wait_until { query($node, q{SELECT failures FROM kafka.stat_pipelines}) >= 3 } 'three failures', 90;
my @failed = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~
  /^(\d+\.\d+) ERROR:  pipeline "outage": Kafka failed while looking for the progress topic/mg;
cmp_ok(scalar @failed, '<=', query($node, q{SELECT failures FROM kafka.stat_pipelines}), '... each failure is told once');
foreach my $i (1 .. 2)
{
	cmp_ok($failed[$i] - $failed[ $i - 1 ], '>=', 2**($i - 1), "... failure $i is followed by a pause that doubles");
}
$broker->start;
heals('Kafka comes after the server');

#
# For longer than its transactions live, under load
#
foreach my $how (qw(stop suspend kill9))
{
	$workload->start(rate => 40);
	$workload->await_progress(20);
	my $log = -s $node->logfile;

	# Once with a commit that comes after it, and before the next transaction's records: what librdkafka gives up of these
	# is no answer of Kafka's.
	if ($how eq 'stop')
	{
		$workload->stop;
		is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'a pipeline that has nothing to do');
		set_failpoint($node, 'before-kafka-commit:wait');
		query($node, q{BEGIN; INSERT INTO item VALUES (1000, 1, '1000.0.1', 1, 'kept'); INSERT INTO ledger VALUES ('1000.0.1', 8); COMMIT});
		wait_until { logged($node, qr/fail-point "before-kafka-commit" waits/, $log) } 'a checkpoint that is prepared';
	}
	between_ends { $broker->$how } $node, 'outage', $address;
	set_failpoint($node, '');
	$workload->start(rate => 40) if $how eq 'stop';
	retries_because('(no answer from Kafka|Kafka failed) while ', "$how of the broker under load");
	my $at = position();
	$workload->await_commits(60);
	pass("$how: commits don't wait for Kafka");
	is(position(), $at, '... and the WAL from the last checkpoint on is kept');

	# a commit that is waited for, by those who want to
	is(query($node, q{SELECT kafka.wait_for(timeout => '10ms')}), 'f', '... wait_for() does not say that it is there');

	# the broker's transactions of before the outage are over their time, and so is what librdkafka has waited
	# (a commit that was on its way is waited for by the same process, for checkpoint_timeout)
	wait_until
	{
		logged($node, qr/ERROR:  pipeline "outage": Kafka failed while/, $offset) > @failed
		  || pipeline_field($node, 'outage', 'reason') =~ /while committing a transaction/
	}
	'a start that failed', 60;
	is(logged($node, qr/has an answer from Kafka again/, $log), 0, '... nothing is taken for an answer of Kafka');
	$offset = -s $node->logfile;
	@failed = ();
	$how eq 'suspend' ? $broker->resume : $broker->start;
	$workload->await_progress(20);
	$workload->stop;
	heals("$how of the broker under load");
}

#
# Shorter than that: nothing starts anew
#
my $pid = worker_pid($node, 'outage');
set_failpoint($node, 'after-flush:wait');
$offset = -s $node->logfile;
$workload->run;
wait_until { logged($node, qr/fail-point "after-flush" waits/, $offset) } 'records in an open Kafka transaction';
$broker->suspend;
set_failpoint($node, '');
is(query($node, q{SELECT kafka.wait_for(timeout => '1s')}), 'f', 'a broker that hangs for a moment');
$broker->resume;
heals('a broker that hung for a moment');
is(worker_pid($node, 'outage'), $pid, '... was waited for by the same process');

#
# Kafka ends the transaction of a worker that is too slow (FLINK-8086)
#
foreach my $point (qw(after-append after-flush after-prepare-commit))
{
	my $state;

	$offset = -s $node->logfile;
	set_failpoint($node, "$point:wait");
	$workload->run;
	wait_until { logged($node, qr/fail-point "$point" waits/, $offset) } "the worker at $point";
	my $id = query($node, q{SELECT max(checkpoint_id) FROM kafka.checkpoints WHERE state = 'prepared'});
	is($id ne '' ? 1 : 0, $point eq 'after-prepare-commit' ? 1 : 0, "$point: whether a checkpoint is prepared");
	my @ids = query($node, q{SELECT DISTINCT transactional_id FROM kafka.checkpoints}) =~ /(\S+)/g;
	my $list = sub {
		return kafka_tool('TransactionsCommand', $address, 'list');
	};

	# one that is open is Ongoing; its time over, it is aborted by the broker
	wait_until { $state = $list->(); $state !~ /Ongoing|Prepare/ } 'the end of its transaction by the broker', 60;
	# (and the next checkpoint's, if that had begun)
	cmp_ok(scalar(grep { $state =~ /\Q$_\E\s.*CompleteAbort/ } @ids), '>=', 1, "$point: the broker has aborted it");
	set_failpoint($node, '');
	heals("$point: a transaction that the broker has ended");
	next unless $id ne '';
	is(query($node, "SELECT state, attempt > 1 FROM kafka.checkpoints WHERE checkpoint_id = $id"), 'committed|t',
		'... the checkpoint was made a second time');
}

is(logged($node, qr/stops as|has stopped/), 0, 'no outage has stopped the pipeline');
is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
$workload->check_all;
done_testing();
