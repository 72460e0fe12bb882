# Between pipeline and broker is a network: requests and answers vanish while the connection stays open, or it is cut in
# the middle of one.  Whatever is lost, in particular the answer to a commit, all arrives once, in commit order.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use Proxy;
use Workload;

# Kafka's kinds of request
my %kinds = (Produce => 0, Metadata => 3, InitProducerId => 22, AddPartitionsToTxn => 24, EndTxn => 26);
my @rules = qw(lose-request lose-answer cut-request cut-answer);

my $proxy  = Proxy->new;
my $broker = $proxy->broker('proxied');
my $direct = $broker->address;

# The workload looks at the broker directly; the pipeline's server is the one behind the proxy.
my $node = new_node('main');
create_server($node, broker => $proxy->address);
my $workload = Workload->new($node, 'half_open',
	broker  => $direct,
	options => { transaction_timeout => '4s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });

$workload->heals('through the proxy');
foreach my $kind (sort keys %kinds)
{
	foreach my $rule (@rules)
	{
		my $what = "$kind, $rule";

		$proxy->rule($rule, $kinds{$kind});
		$workload->run(transactions => 3);
		# what only a start sends
		query($node, q{SELECT kafka.alter_pipeline('half_open', '{}')}) if $kind =~ /InitProducerId|Metadata/;
		wait_until { $proxy->hits } $what, 60;
		cmp_ok($proxy->hits, '>', 0, "$what: met");
		$proxy->rule('pass');
		$workload->heals($what);
	}
}

#
# The answer to a commit is lost for good: its worker ends before another one comes.
#
foreach my $rule (qw(lose-request lose-answer))
{
	$proxy->rule($rule, $kinds{EndTxn});
	$workload->run(transactions => 3);
	wait_until { $proxy->hits } 'a commit', 60;
	my ($id, $state) = split /\|/,
	  query($node, q{SELECT checkpoint_id, state FROM kafka.checkpoint ORDER BY checkpoint_id DESC LIMIT 1});
	is($state, 'prepared', "EndTxn, $rule: the worker does not know whether Kafka has the checkpoint");
	if ($rule eq 'lose-answer')
	{
		# it has
		my $seen;
		wait_until { $seen = $workload->consume_new('ledger') } 'the commit that was not confirmed', 30;
		cmp_ok($seen, '>', 0, '... consumers do');
	}
	else
	{
		is(scalar $workload->consume_new('ledger'), 0, '... consumers see nothing of it');
	}
	$proxy->rule('pass');
	terminate_worker($node, 'half_open');
	$workload->heals("EndTxn, $rule, and the end of its worker");
	is(query($node, "SELECT state, attempt, outcome FROM kafka.checkpoints WHERE checkpoint_id = $id"),
		'committed|1|' . ($rule eq 'lose-answer' ? 'already_committed' : 'redriven'),
		'... the start has committed it, unless Kafka had done so already');
}

#
# Nothing comes back at all: said in time, and a stop does not wait for it.
#
$workload->start(rate => 40);
$workload->await_progress(10);
$proxy->rule('lose-answer', $kinds{Produce});
wait_for_state($node, 'half_open', 'retrying', 60);
like(pipeline_field($node, 'half_open', 'reason'), qr/(no answer from Kafka|Kafka failed) while /,
	'no answers: the view says so');
$workload->await_commits(40);
pass('... commits go on');
$proxy->rule('pass');
$workload->await_progress(10);
$workload->stop;
$workload->heals('no answers for a while');

is(logged($node, qr/stops as|has stopped/), 0, 'nothing of it has stopped the pipeline');
is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
$workload->check_all;
done_testing();
