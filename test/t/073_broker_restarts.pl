# The broker dies in the middle of a commit, at each step of it, in each way, again and again: all arrives once, in commit
# order, by itself.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use Workload;

my $broker   = start_broker('own');
my $address  = $broker->address;
my $node     = new_node('main');
my $workload = Workload->new($node, 'restarts',
	broker  => $address,
	options => { transaction_timeout => '60s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });
my $offset;

# By itself, if nobody did anything; all that was committed is there.
sub heals
{
	my ($what) = @_;

	$workload->heals($what);
	is(query($node, q{SELECT state, reason FROM kafka.pipelines}), 'running|', "$what: and the reason is gone");
	return;
}

#
# Restarts in the middle of a commit, one after the other
#
foreach my $point (qw(after-flush before-kafka-commit after-kafka-commit))
{
	foreach my $how (qw(restart kill9 suspend))
	{
		$offset = -s $node->logfile;
		set_failpoint($node, "$point:wait");
		$workload->run(transactions => 5);
		wait_until { logged($node, qr/fail-point "$point" waits/, $offset) } "the worker at $point";

		# suspended: the worker's next request is on its way when the broker dies
		$broker->$how;
		set_failpoint($node, '');
		if ($how eq 'suspend')
		{
			is(query($node, q{SELECT kafka.wait_for(timeout => '200ms')}), 'f', "$point: a request without an answer")
			  if $point ne 'after-kafka-commit';
			$broker->kill9;
		}
		$broker->start if $how ne 'restart';
		heals("$point, $how of the broker");
	}
}

# So often that no start comes to its end
$workload->start(rate => 40);
foreach (1 .. 4)
{
	$workload->await_commits(10);
	between_ends { $broker->kill9 } $node, 'restarts', $address;
	$broker->start;
}
$workload->await_progress(10);
$workload->stop;
heals('a broker that dies again and again');

is(logged($node, qr/stops as|has stopped/), 0, 'no outage has stopped the pipeline');
is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
$workload->check_all;
done_testing();
