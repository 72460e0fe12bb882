# Exactly once under a load that goes on while PostgreSQL, the broker, or both are killed, stopped or suspended.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use Workload;

my $pipeline = 'crashes';
my $broker   = start_broker('own');
my $node     = new_node('main');
my $workload = Workload->new($node, $pipeline,
	broker  => $broker->address,
	options => { checkpoint_interval => '20ms', max_concurrent_checkpoints => 3 });

# Ends the load; then everything is in Kafka, once.
sub all_arrives
{
	my ($after) = @_;

	$workload->stop;
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', "$after: Kafka gets it all");
	$workload->check("$after: once, in commit order, each transaction whole");
	return;
}

sub offset_of_last { my (@records) = @_; return @records ? $records[-1]->{offset} : -1; }

# pause and resume
$workload->start;
$workload->await_progress(30);
my $read = query($node, "SELECT read_lsn FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'");
query($node, "CALL kafka.pause('$pipeline')");
is(pipeline_field($node, $pipeline, 'state, enabled'), 'stopped|f', 'a paused pipeline says so');
is(worker_pid($node, $pipeline), undef, '... and has no process');
is(query($node, 'SELECT state FROM kafka.checkpoint ORDER BY checkpoint_id DESC LIMIT 1'), 'committed',
	'pause ends at a committed checkpoint');
my @paused;
wait_until { @paused = map { scalar(my @records = $workload->consume_new($_)) } qw(stream ledger); $paused[1] >= 30 }
'what was sent before the pause';
my @sent = map { $_->{headers}->{'pg.xid'} } $workload->consume_new('ledger');
foreach my $topic (qw(stream ledger))
{
	is(offset_of_last($workload->consume_new($topic, isolation => 'read_uncommitted')),
		offset_of_last($workload->consume_new($topic)), "$topic holds nothing that is not committed");
}
$workload->await_commits(50);
is_deeply([ map { $_->{headers}->{'pg.xid'} } $workload->consume_new('ledger') ], \@sent, 'nothing comes during a pause');
query($node, "CALL kafka.resume('$pipeline')");
is(state($node, $pipeline), 'running', 'a resumed pipeline runs');
$workload->await_progress(30);
all_arrives('pause and resume');

# all that the worker had read before the pause was in Kafka when it ended
my %sent = map { $_ => 1 } @sent;
my @read = grep { $_->{end} <= Workload::position($read) } @{ $workload->{expected} };
cmp_ok(scalar @read, '>=', 30, 'before the pause the worker had read some');
is_deeply([ grep { !$sent{ $_->{xid} } } @read ], [], '... and when it ended, that was in Kafka');

# the worker, again and again
$workload->start;
foreach my $i (1 .. 5)
{
	$workload->await_progress(20);
	terminate_worker($node, $pipeline);
}
all_arrives('5 × pg_terminate_backend of the worker');

# the server, in order
$workload->start;
$workload->await_progress(30);
$node->stop('fast');
$node->start;
$workload->stop;
$workload->start;
$workload->await_progress(30);
all_arrives('fast restart of PostgreSQL');

# the server, all its processes at once
foreach my $i (1 .. 2)
{
	$workload->start;
	$workload->await_progress(20 + int(rand(50)));
	crash($node);
	$node->start;
	$workload->stop;
	$workload->start;
	$workload->await_progress(20);
	all_arrives("kill -9 of PostgreSQL, no. $i");
}

# the broker
$workload->start;
$workload->await_progress(30);
between_ends { $broker->kill9 } $node, $pipeline, $broker->address;
$workload->await_commits(50);
$broker->start;
$workload->await_progress(100);
all_arrives('kill -9 of the broker');

# the broker, which does not answer and does not close connections either
$workload->start;
$workload->await_progress(30);
$broker->suspend;
$workload->await_commits(150);
$broker->resume;
$workload->await_progress(150);
all_arrives('a suspended broker');

# both; the server is back first
$workload->start;
$workload->await_progress(30);
crash($node);
$broker->kill9;
$node->start;
$workload->stop;
$workload->start;
$workload->await_commits(20);
$broker->start;
start_anew($node, $pipeline);
$workload->await_progress(30);
all_arrives('kill -9 of PostgreSQL and of the broker');

$workload->check_all;

done_testing();
