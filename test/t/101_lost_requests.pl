# Requests and answers of the two commits that are lost, late, or never come to their end: a proxy between pipeline and
# broker keeps them back, and one between the broker and itself keeps it from ending a transaction.
#
# That the protocol stands any single loss of any of its requests is tested in 071_half_open; here it is what the
# checkpoint becomes, and what a late request meets.
use strict;
use warnings;

use Test::More;
use KafkaRequest;
use Proxy;
use Scenario;
use TransactionalKafka;
use Workload;

# Kafka's kinds of request
my ($produce, $end_txn, $write_markers, $describe) = (0, 26, 27, 65);

my $proxy   = Proxy->new;
my $between = Proxy->new;
my $broker  = start_broker('own');
put_behind_proxies();

# The workload looks at the broker directly; the pipeline's server is the one behind the proxy.
my $node = new_node('main');
create_server($node, broker => $proxy->address);
my $workload = Workload->new($node, 'lost',
	broker  => $broker->address,
	options => { transaction_timeout => '4s', checkpoint_interval => '20ms', retained_checkpoints => 10000 });
my $scenario = Scenario->new($workload);

# Gives the broker two more listeners, which it says are to be reached where the proxies listen: one for the pipeline, and
# one that brokers talk to each other by, and this one to itself.
sub put_behind_proxies
{
	my $file = $broker->directory . '/server.properties';
	my ($listeners) = PostgreSQL::Test::Utils::slurp_file($file) =~ /^listeners=(.*)/m;
	my ($clients, $brokers) = (Proxy::free_port(), Proxy::free_port());

	$broker->stop;
	PostgreSQL::Test::Utils::append_to_file($file, <<"PROPERTIES");
listeners=$listeners,CLIENTS://$clients,BROKERS://$brokers
 advertised.listeners=PLAINTEXT://${\ $broker->address},CLIENTS://${\ $proxy->address},BROKERS://${\ $between->address}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT
inter.broker.listener.name=BROKERS
PROPERTIES
	$proxy->forward_to($clients);
	$between->forward_to($brokers);
	$broker->start;
	return;
}

# Holds the next checkpoint that has the same transactional id as that one, while its transaction is open.
sub stand_at_next_of
{
	my ($held, $point) = @_;
	my $next;

	foreach (1 .. 10)
	{
		$next = $scenario->stand_at($point);
		last if $next->{transactional_id} eq $held->{transactional_id} && $next->{checkpoint_id} > $held->{checkpoint_id};
		$scenario->go_on;
		$scenario->heals('a checkpoint of the other id');
	}
	return $next;
}

# The broker gets what the proxy kept, now; EndTxn's answer is correlation, throttle, error (none: 0).
sub deliver
{
	my @errors = map { unpack 'x8 s>', $_ } $proxy->deliver;
	return join ' ', @errors;
}

# While the next transaction of the same id is open, the late EndTxn comes: it must not commit that one.
sub late_is_harmless
{
	my ($held, $what) = @_;
	my $next = stand_at_next_of($held, 'after-prepare-commit');

	is($next->{transactional_id}, $held->{transactional_id}, "$what: the next transaction of the same id is open");
	cmp_ok(($next->{producer_epoch} <=> $held->{producer_epoch}) || ($next->{producer_id} <=> $held->{producer_id}), '>', 0,
		'... in a later epoch');
	like(deliver(), qr/^(47|90)$/, '... the late commit comes, and is refused (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)');
	is($scenario->describe($next)->{state}, 'Ongoing', '... what is open stays open');
	my %offset = map { $_->{offset} => 1 } $workload->consume_new('ledger');
	is(scalar(grep { $offset{$_} } $scenario->of($next)), 0, '... no consumer sees a record of it');
	$scenario->go_on;
	$scenario->heals($what);
	$scenario->became($next, 'committed|1|', $what);
	$scenario->same_offsets($next, $what);
	return;
}

subtest 'EndTxn answer lost' => sub {
	my $pid = worker_pid($node, 'lost');
	my $held = $scenario->stand_at('after-prepare-commit');

	$proxy->rule('lose-answer', $end_txn);
	$scenario->go_on;
	wait_until { $proxy->hits } 'a commit', 30;
	$proxy->rule('pass');
	$scenario->heals('EndTxn answer lost');
	$scenario->became($held, 'committed|1|', 'EndTxn answer lost');
	$scenario->same_offsets($held, 'EndTxn answer lost');
	is(worker_pid($node, 'lost'), $pid, '... the same process asked again');
	my $next = stand_at_next_of($held, 'after-prepare-commit');
	cmp_ok($next->{producer_epoch}, '>', $held->{producer_epoch}, '... and took its id anew, for the next transaction');
	$scenario->go_on;
};

subtest 'EndTxn answer lost, and with it the worker' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	$proxy->rule('lose-answer', $end_txn);
	$scenario->go_on;
	wait_until { $proxy->hits } 'a commit', 30;
	$scenario->await_transaction($held, 'CompleteCommit');
	is($scenario->newest->{state}, 'prepared', 'Kafka has committed, nobody here knows');
	$proxy->rule('pass');
	$scenario->replace_worker;
	$scenario->heals('EndTxn answer lost, and with it the worker');
	$scenario->became($held, 'committed|1|already_committed', 'EndTxn answer lost, and with it the worker');
	$scenario->same_offsets($held, 'EndTxn answer lost, and with it the worker');
};

foreach my $how (qw(hold-request hold-and-cut))
{
	my $what = "EndTxn delayed past the next transaction ($how)";

	subtest $what => sub {
		my $held = $scenario->stand_at('after-prepare-commit');

		$proxy->rule($how, $end_txn);
		$scenario->go_on;
		wait_until { $proxy->hits } 'a commit that is kept back', 30;
		$scenario->heals($what);
		$scenario->became($held, 'committed|1|', $what);
		late_is_harmless($held, $what);
	};
}

subtest 'EndTxn delayed past the end of its worker, the re-drive, and the next transaction' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	$proxy->rule('hold-request', $end_txn);
	$scenario->go_on;
	wait_until { $proxy->hits } 'a commit that is kept back', 30;
	$scenario->replace_worker;
	$scenario->heals('EndTxn delayed past its worker');
	$scenario->became($held, 'committed|1|redriven', 'EndTxn delayed past its worker');
	$scenario->same_offsets($held, 'EndTxn delayed past its worker');
	late_is_harmless($held, 'EndTxn delayed past its worker');
};

subtest 'EndTxn of the re-drive delayed past the next transaction' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	$scenario->replace_worker('before-redrive:wait');
	$proxy->rule('hold-request', $end_txn);
	$scenario->go_on;
	wait_until { $proxy->hits } 'the commit of the re-drive', 30;
	$scenario->heals('EndTxn of the re-drive delayed');
	$scenario->became($held, 'committed|1|redriven', 'EndTxn of the re-drive delayed');
	late_is_harmless($held, 'EndTxn of the re-drive delayed');
};

# Not by a restart of the broker, which may leave out the markers (see between_ends); what happens then is chance.  Restarts
# at all steps: 073_broker_restarts.
subtest 'coordinator stuck in mid-EndTxn: PrepareCommit resolves' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');

	# the coordinator decides, but its markers reach no partition
	$between->rule('lose-request', $write_markers);
	$proxy->rule('lose-answer', $end_txn);
	$scenario->go_on;
	wait_until { $between->hits } 'markers on their way', 30;
	$scenario->await_transaction($held, 'PrepareCommit');
	is(scalar $workload->consume_new('ledger'), 0, 'the commit is decided, and no consumer sees anything of it');
	$proxy->rule('pass');
	$scenario->replace_worker('after-progress-read:wait');
	my $log = -s $node->logfile;
	set_failpoint($node, 'before-decide:wait');
	is($scenario->describe($held)->{state}, 'PrepareCommit', 'a start finds it undecided');
	is($scenario->newest->{state}, 'prepared', '... and writes no verdict');

	# the coordinator loses its connection, and makes another one
	$between->rule('pass');
	$between->hang_up;
	$scenario->await('before-decide', $log);
	is($scenario->newest->{state}, 'prepared', '... before it knows that nothing of it is open any more');
	$scenario->go_on;
	$scenario->heals('PrepareCommit');
	$scenario->became($held, 'committed|1|already_committed', 'PrepareCommit');
	$scenario->same_offsets($held, 'PrepareCommit');
};

subtest 'Materialize: broker suspended in EndTxn for longer than anybody waits' => sub {
	my $held = $scenario->stand_at('after-prepare-commit');
	my $log = -s $node->logfile;

	# the commit reaches the broker's socket
	$broker->suspend;
	$scenario->go_on;
	is(query($node, q{SELECT kafka.wait_for(timeout => '2500ms')}), 'f', 'the commit has no answer');
	$scenario->replace_worker;
	wait_until { logged($node, qr/ERROR:  pipeline "lost": Kafka failed while/, $log) } 'a start that failed', 60;
	is($scenario->newest->{state}, 'prepared', 'as long as Kafka does not answer the checkpoint is in doubt');
	$broker->resume;
	$scenario->heals('broker suspended in EndTxn');
	my ($state, $attempt, $outcome) = split /\|/,
	  query($node, "SELECT state, attempt, outcome FROM kafka.checkpoints WHERE checkpoint_id = $held->{checkpoint_id}");

	# whichever was first, the commit in its socket or the end of the transaction's time
	is($state, 'committed', 'broker suspended in EndTxn: resolved');
	if ($outcome eq 'replayed') { is($attempt, 2, '... made a second time'); $scenario->other_offsets($held, 'aborted'); }
	else                        { is($attempt, 1, '... made once'); $scenario->same_offsets($held, $outcome); }
};

subtest 'nobody says which transaction it is' => sub {
	my $held;

	# from here on the coordinator does not answer this question, and after a while is not asked any more
	$proxy->rule('lose-answer', $describe);
	$scenario->heals('no description');
	$held = $scenario->stand_at('after-prepare-commit');
	is(join('|', @$held{qw(state producer_id producer_epoch kafka_start_ms)}), 'prepared|||', 'the row does not say it either');
	$proxy->rule('pass');
	$scenario->replace_worker;
	$scenario->heals('no description, and the worker dies');
	$scenario->became($held, 'committed|2|replayed', 'no description',
		qr/^the coordinator had not described the transaction when it was prepared$/);
	$scenario->other_offsets($held, 'no description');
};

subtest 'one partition\'s delivery fails at flush' => sub {
	my $pid = worker_pid($node, 'lost');
	my $newest = query($node, 'SELECT max(checkpoint_id) FROM kafka.checkpoint');
	my $log = -s $node->logfile;

	# the other one's records are acknowledged; 87 is INVALID_RECORD
	$proxy->rule('fail-answer', $produce, 'lost.ledger', 0, 87);
	set_failpoint($node, 'recovery-start:wait');
	$workload->run(transactions => 5);
	$scenario->await('recovery-start', $log);
	cmp_ok($proxy->hits, '>', 0, 'one partition refuses a batch');
	like(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log), qr/ERROR:  pipeline "lost": Kafka failed while .*"lost\.ledger"/,
		'... the worker ends, naming the topic');
	is(query($node, 'SELECT max(checkpoint_id) FROM kafka.checkpoint'), $newest, '... no checkpoint was prepared');
	is(scalar $workload->consume_new($_), 0, "... no consumer sees anything in $_") foreach qw(stream ledger);
	$proxy->rule('pass');
	$scenario->go_on;
	$scenario->heals('one partition\'s delivery fails at flush');
	isnt(worker_pid($node, 'lost'), $pid, '... made again by another worker');
};

$scenario->ends_well;
done_testing();
