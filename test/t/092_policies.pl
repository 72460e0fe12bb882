# Policies of the checkpoint coordinator: failures in a row, transactions that take too long, the pool, and what
# wait_for() promises.
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run qw(start pump finish timeout);
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
query($node, 'CREATE EXTENSION transactional_kafka');
create_server($node);
query($node, "CREATE TABLE $_ (id int PRIMARY KEY)") foreach qw(failing slow pool);

# The states that Kafka's coordinator says of the pipeline's transactional ids.
sub states
{
	my ($pipeline) = @_;

	return query($node, "SELECT string_agg(state, ' ' ORDER BY transactional_id) FROM kafka.kafka_transactions "
		  . "WHERE pipeline = '$pipeline'");
}

#
# tolerable_failed_checkpoints
#
create_pipeline($node, 'failing', tables => ['failing'], options => { tolerable_failed_checkpoints => 2 });
my $log = -s $node->logfile;
set_failpoint($node, 'after-flush:error');
query($node, 'INSERT INTO failing VALUES (1)');
wait_for_state($node, 'failing', 'failed', 60);
like(pipeline_field($node, 'failing', 'reason'),
	qr/^3 checkpoints in a row have failed \(tolerable_failed_checkpoints is 2\); the last one: fail-point "after-flush"/,
	'the third failure in a row is one too many');
is(logged($node, qr/ERROR:  fail-point "after-flush"/, $log), 3, '... and not the second');
set_failpoint($node, '');
query($node, q(CALL kafka.resume('failing')));
wait_for_state($node, 'failing', 'running');
is_sent('failing', [1]);

# Two, then one that succeeds: the count begins anew.
foreach my $round (1, 2)
{
	$log = -s $node->logfile;
	set_failpoint($node, 'after-flush:error');
	query($node, 'INSERT INTO failing VALUES (10 + ' . $round . ')');
	wait_until { logged($node, qr/ERROR:  fail-point "after-flush"/, $log) >= 2 } 'two failures', 60;
	set_failpoint($node, '');
	start_anew($node, 'failing');
	is(query($node, q(SELECT kafka.wait_for(pipeline => 'failing', timeout => '60s'))), 't', 'two failures in a row are tolerated');
}
query($node, q(CALL kafka.drop_pipeline('failing')));

#
# A transaction that takes longer than transaction_timeout, though Kafka answers
#
create_pipeline($node, 'slow', tables => ['slow'], options => { transaction_timeout => '1s', checkpoint_timeout => '1s' });
foreach my $time (1, 2)
{
	$log = -s $node->logfile;
	set_failpoint($node, 'after-append:wait');
	if ($time == 1) { query($node, 'INSERT INTO slow VALUES (20)'); }
	else { start_anew($node, 'slow'); }
	wait_until { logged($node, qr/fail-point "after-append" waits/, $log) } 'an open transaction', 60;
	wait_until { states('slow') =~ /CompleteAbort/ } 'the broker to abort it', 60;
	set_failpoint($node, '');
	if ($time == 1)
	{
		wait_until { logged($node, qr/pipeline "slow": Kafka failed/, $log) } 'the failure', 60;
		isnt(state($node, 'slow'), 'failed', 'the first time it is tried again');
	}
}
wait_for_state($node, 'slow', 'failed', 60);
like(pipeline_field($node, 'slow', 'reason'),
	qr/^checkpoint \d+ \(\d+ transactions, 1 records, \d+ bytes so far\) was not done within transaction_timeout \(1000 ms\), for the second time/,
	'... the second time it stops, and names it, its size and the setting');
query($node, q(SELECT kafka.alter_pipeline('slow', '{"transaction_timeout": null}'); CALL kafka.resume('slow')));
wait_for_state($node, 'slow', 'running');
is_sent('slow', [20]);
query($node, q(CALL kafka.drop_pipeline('slow')));

my ($result, $out, $error) = $node->psql('postgres',
	q(CALL kafka.create_pipeline('too_long', 'kafka', '{slow}', options => '{"transaction_timeout": "20min"}')));
isnt($result, 0, 'a transaction_timeout above the limit of the broker');
like($error, qr/Transaction timeout is larger than the maximum value allowed by the broker/, '... is an error that says so');
query($node, q(CALL kafka.drop_pipeline('too_long')));

#
# max_concurrent_checkpoints
#
create_pipeline($node, 'pool', tables => ['pool'],
	options => { max_concurrent_checkpoints => 3, checkpoint_interval => 0, topic_partitions => 1 });
is(query($node, q(SELECT count(*) FROM kafka.kafka_transactions WHERE pipeline = 'pool')), 4, 'one transactional id more');
query($node, 'INSERT INTO pool SELECT 100 + i FROM generate_series(1, 50) i');
my %used;
foreach my $i (1 .. 8)
{
	query($node, "INSERT INTO pool VALUES (200 + $i); SELECT kafka.wait_for(pipeline => 'pool')");
}
$used{$_}++ foreach split /\n/, query($node, q(SELECT transactional_id FROM kafka.checkpoints WHERE pipeline = 'pool'));
is(scalar keys %used, 4, '... and all of them are used in turn');

# Fewer, while one is open and cannot end: it is aborted, and pins nobody's last stable offset.
set_failpoint($node, 'after-append:wait');
query($node, 'INSERT INTO pool VALUES (300)');
wait_until { states('pool') =~ /Ongoing/ } 'an open transaction', 60;
query($node, q(SELECT kafka.alter_pipeline('pool', '{"max_concurrent_checkpoints": 1}')));
set_failpoint($node, '');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'pool', timeout => '60s'))), 't', 'the pool becomes smaller while it runs');
wait_until { states('pool') !~ /Ongoing|Prepare/ } 'no transaction that is open', 60;
is_sent('pool', [ 101 .. 150, 201 .. 208, 300 ]);

#
# wait_for(): a read_committed consumer reads the record at once.
#
my $program = "$PostgreSQL::Test::Utils::tmp_check/last_stable_offset";
my @flags   = split ' ', `pkg-config --cflags --libs rdkafka`;
is(system('cc', '-o', $program, dirname(__FILE__) . '/last_stable_offset.c', @flags), 0, 'the consumer is compiled');
my ($question, $answer) = ('', '');
my $consumer = start([ $program, broker(), 'pool.public.pool' ], '<', \$question, '>', \$answer, timeout(600));
my $session = $node->background_psql('postgres');

sub readable
{
	$answer = '';
	$question .= "\n";
	pump $consumer until $answer =~ /(\d+)\n/;
	return $1;
}

my $before = readable();
my $late   = 0;
foreach my $i (1 .. 1000)
{
	$session->query_safe("INSERT INTO pool VALUES (1000 + $i)");
	$session->query_safe(q(SELECT kafka.wait_for(pipeline => 'pool')));
	my $now = readable();
	# the record and its marker
	$late++ if $now < $before + 2;
	$before = $now;
}
is($late, 0, 'after wait_for() the record is visible, 1000 times');
$session->quit;
finish $consumer;

$node->stop;
done_testing();
