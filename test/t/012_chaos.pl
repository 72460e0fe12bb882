# Exactly once under faults in random order, several at a time: of the worker, of PostgreSQL, of the broker, of the
# network between them, and with what an administrator does meanwhile.
#
# After every few of them all is mended, and what has committed must be in Kafka: once, in commit order, each transaction
# whole.  The seed is printed; TK_SEED=… repeats the faults (not their timing), TK_FAULTS=… makes it longer (make chaos).
use strict;
use warnings;

use Proxy;
use Test::More;
use TransactionalKafka;
use Workload;

my $faults   = $ENV{TK_FAULTS} || 16;
my $together = 4;
my $pipeline = 'chaos';
my $proxy    = Proxy->new;
my $broker   = $proxy->broker('own');
my $node     = new_node('main', 'checkpoint_timeout = 30s');

# The workload looks at the broker directly; the pipeline's server is the one behind the proxy.
create_server($node, broker => $proxy->address, options => { 'linger.ms' => 0 });
my $workload = Workload->new($node, $pipeline, broker => $broker->address, options => { checkpoint_interval => '10ms' });

my $answering = 1;    # does the broker?
my $large     = 0;    # how many transactions
my %kinds     = (
	Produce              => 0,
	Fetch                => 1,
	ListOffsets          => 2,
	Metadata             => 3,
	FindCoordinator      => 10,
	ApiVersions          => 18,
	InitProducerId       => 22,
	AddPartitionsToTxn   => 24,
	EndTxn               => 26,
	DescribeTransactions => 65);
my @points = split /\n/, query($node, 'SELECT kafka.failpoints()');

sub one_of { return $_[ int rand @_ ]; }

sub load_anew
{
	$workload->stop;
	$workload->start(rate => 30 + int rand 100);
	return;
}

# What an administrator asks for; a refusal, or no answer while Kafka has none, is an answer.
sub ask
{
	my ($sql) = @_;

	$node->psql('postgres', "SET statement_timeout = '5s'; $sql", stderr => \my $errors);
	return $sql;
}

sub start_again
{
	clear_failpoint($node);
	$node->start;
	load_anew();
	return;
}

sub mend_broker
{
	$broker->resume if $answering eq 'suspended';
	$broker->start  if !$answering;
	$answering = 1;
	return;
}

# Each returns what it did, where its name doesn't say.
my %faults = (
	'the worker is terminated' => sub {
		my $pid = worker_pid($node, $pipeline);

		query($node, "SELECT pg_terminate_backend($pid)") if $pid;
		return $pid ? '' : 'not there';
	},
	'kill -9 of the worker' => sub {
		my $pid = worker_pid($node, $pipeline);

		# it may just be ending by itself
		return 'not there' unless $pid && freeze($pid);
		kill 'KILL', $pid;
		await_crash($node);
		start_again();
		return '';
	},
	'kill -9 of PostgreSQL' => sub {
		crash($node);
		start_again();
		return '';
	},
	'PostgreSQL is restarted' => sub {
		my $mode = one_of('fast', 'immediate');

		$node->stop($mode);
		start_again();
		return $mode;
	},
	'the worker fails' => sub {
		my $failpoint = one_of(@points) . ':' . one_of('error', 'exit') . '@' . (1 + int rand 3);

		set_failpoint($node, $failpoint);
		return $failpoint;
	},
	'kill -9 of the broker' => sub {
		return 'it is down' unless $answering;
		mend_broker();
		between_ends { $broker->kill9 } $node, $pipeline, $broker->address;
		$answering = '';
		return '';
	},
	'the broker is suspended' => sub {
		return 'it is down' unless $answering;
		$broker->suspend;
		$answering = 'suspended';
		return '';
	},
	'the broker is there' => sub { mend_broker(); return ''; },
	'the network' => sub {
		my $rule = one_of('lose-request', 'lose-answer', 'cut-request', 'cut-answer');
		my $kind = one_of(sort keys %kinds);

		$proxy->rule($rule, $kinds{$kind});
		return "$rule $kind";
	},
	'all connections are closed' => sub {
		$proxy->rule('pass');
		$proxy->hang_up;
		return '';
	},
	'pause and resume' => sub {
		ask("CALL kafka.pause('$pipeline')");
		$workload->await_commits(int rand 20);
		ask("CALL kafka.resume('$pipeline')");
		return '';
	},
	'options' => sub {
		my $options = one_of(
			(map { qq({"max_concurrent_checkpoints": $_}) } 1 .. 4),
			(map { qq({"checkpoint_interval": "$_"}) } '0', '5ms', '50ms', '300ms'));

		return ask("SELECT kafka.alter_pipeline('$pipeline', '$options')");
	},
	'an option of the server' => sub { return ask(q{ALTER SERVER kafka OPTIONS (SET "linger.ms" '} . one_of(0, 1, 5) . q{')}); },
	'maintenance' => sub {
		return ask(one_of('VACUUM FULL kafka.checkpoint', 'REINDEX TABLE kafka.checkpoint', 'VACUUM ANALYZE', 'CHECKPOINT',
				'SELECT pg_switch_wal()', 'ALTER TABLE item ALTER note SET STATISTICS 10'));
	},
	'a checkpoint is asked for' => sub { return ask("SELECT kafka.checkpoint('$pipeline', timeout => '1s')"); },
	'a large transaction' => sub {
		my $tx = 100_000 + $large++ . '.0';

		query($node, "BEGIN; INSERT INTO item SELECT ${\ int $tx}, i, '$tx.' || i, 1, 'kept' FROM generate_series(1, 3000) i;"
			  . "INSERT INTO ledger VALUES ('$tx.1', 8); COMMIT");
		return '';
	});

load_anew();
for (my $n = 0; $n < $faults;)
{
	my @happened;

	while (@happened < $together && $n++ < $faults)
	{
		my $fault = one_of(sort keys %faults);

		push @happened, join ': ', grep { $_ ne '' } $fault, $faults{$fault}->();
		note($happened[-1]);

		# the next one comes while it is healing, or a little later
		$workload->await_commits(1 + int rand 40) if one_of(0, 1);
	}
	mend_broker();
	$proxy->rule('pass');
	$proxy->hang_up;
	set_failpoint($node, '');
	$workload->stop;

	# by itself, or called
	start_anew($node, $pipeline) if one_of(0, 1);
	is(query($node, q{SELECT kafka.wait_for(timeout => '120s')}), 't', join('; ', @happened) . ': Kafka gets it all')
	  or last;
	$workload->check('... once, in commit order, each transaction whole') or last;
	load_anew();
}
$workload->stop;
is(query($node, q{SELECT kafka.wait_for(timeout => '120s')}), 't', 'Kafka gets the rest');
$workload->check('... once');
$workload->check_all;
is(logged($node, qr/was terminated by signal (?!9:)|PANIC/), 0, 'no process of the server died of anything else');

done_testing();
