# Exactly once, whatever step of the protocol the worker fails at: every fail-point that the library names, with an
# error, with the process's end, and with SIGKILL, which crashes the whole server.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;
use Workload;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : time;
srand $seed;
my $concurrent = 1 + int(rand(3));
note "seed: TK_SEED=$seed, max_concurrent_checkpoints=$concurrent";

my $pipeline = 'failpoints';
my $node     = new_node('main');
my $workload =
  Workload->new($node, $pipeline,
	options => { checkpoint_interval => '5ms', retained_checkpoints => 10000, max_concurrent_checkpoints => $concurrent });

#
# Ways to make a worker come by a fail-point.  Each returns once that has happened, or can't happen any more by it.
#

my ($point, $action, $armed_at);    # of this round

# The worker has failed where it should: its last words say so.
sub hit { return logged($node, qr/fail-point "\Q$point\E"/, $armed_at); }

sub until_hit_or
{
	my ($passed, $what) = @_;

	wait_until { hit() || eval { $passed->() } } "$point:$action or $what", 60;
	return;
}

sub all_covered { return query($node, q{SELECT kafka.wait_for(timeout => '0')}) eq 't'; }

# The pipeline runs, in a process that was not there before.
sub runs_anew
{
	my ($old) = @_;
	my $pid = worker_pid($node, $pipeline);

	return $pid && $pid ne ($old || '') && state($node, $pipeline) eq 'running';
}

# Checkpoint after checkpoint.
sub by_workload
{
	$workload->run;
	until_hit_or(\&all_covered, 'all in Kafka');
	return;
}

# Recovery, where it matters most: from a checkpoint that is prepared, and that Kafka has or has not committed (only
# then it is re-driven).
sub by_recovery
{
	my $where = $action eq 'kill' && $point !~ /redrive/ ? 'after-kafka-commit' : 'after-prepare-commit';
	my $offset = -s $node->logfile;
	my $pid;

	return if $point eq $where;
	set_failpoint($node, "$where:wait");
	$workload->run;
	wait_until { logged($node, qr/fail-point "$where" waits/, $offset) } "$where";

	# the next process shall meet the fail-point, not this one
	query($node, "ALTER SYSTEM SET transactional_kafka.failpoints = '$point:$action'");
	$pid = terminate_worker($node, $pipeline);
	set_failpoint($node, "$point:$action");
	eval { start_anew($node, $pipeline) };
	until_hit_or(sub { runs_anew($pid) }, 'recovery');
	return;
}

# A stop as it should be.
sub by_orderly_stop
{
	my $pid = worker_pid($node, $pipeline);

	# an error here: the server has crashed under it
	eval { start_anew($node, $pipeline) };
	until_hit_or(sub { runs_anew($pid) }, 'a new start');
	return;
}

# What a pipeline does a second after all has been sent.
sub by_idling
{
	by_workload();
	until_hit_or(sub { query($node, q{SELECT count(*) FROM kafka.checkpoint WHERE state = 'prepared'}) eq '0' },
		'the mark of the last checkpoint');
	return;
}

# The first start of a pipeline: another one is made, on the same tables, and once it is there it captures all.
sub by_creation
{
	my $other  = 'other_' . ++$workload->{others};
	my $output = '';
	my $call   = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c',
			"CALL kafka.create_pipeline('$other', 'kafka', tables => '{ledger}')" ],
		'<', \undef, '>&', \$output, IPC::Run::timeout(60));

	until_hit_or(sub { $call->pump_nb; !$call->pumpable }, 'the new pipeline');
	return sub {
		# whatever the call says by now: the definition is there, and starts by itself
		$call->finish;
		wait_for_state($node, $other, 'running', 60);
		$workload->run;
		my $run  = $workload->{run};
		my @want = split /\n/, query($node, "SELECT tx FROM ledger WHERE tx LIKE '$run.%' ORDER BY tx");
		my @got  = consume_until("$other.public.ledger",
			sub { @want <= grep { /^$run\./ } values_of('after.tx', @_) }, timeout => 60);

		is_deeply([ sort grep { /^$run\./ } values_of('after.tx', @got) ], \@want,
			"$point:$action: what committed after the pipeline was made is in it once");
		query($node, "CALL kafka.drop_pipeline('$other')");
	};
}

my %ways = (
	workload => \&by_workload,
	recovery => \&by_recovery,
	stop     => \&by_orderly_stop,
	idling   => \&by_idling,
	creation => \&by_creation
);
my %way_of;    # fail-point => the way that led to it before

sub fail_once
{
	my @ways = qw(workload idling recovery stop creation);
	my @finish;

	# it may have been luck, so the others come after it
	@ways = ($way_of{$point}, grep { $_ ne $way_of{$point} } @ways) if $way_of{$point};

	$armed_at = -s $node->logfile;
	# an error here: the worker was faster than we, and the server has crashed already
	eval { set_failpoint($node, "$point:$action") };
	foreach my $way (@ways)
	{
		last if hit();
		push @finish, grep { ref } $ways{$way}->();
		$way_of{$point} = $way if hit();
	}
	ok(hit(), "$point:$action is met") or diag('tried: ' . join ', ', @ways);

	if ($action eq 'kill' && hit())
	{
		await_crash($node);
		clear_failpoint($node);
		$node->start;
	}
	else
	{
		# the stream goes on meanwhile
		$workload->run(transactions => 5);
		set_failpoint($node, '');
		# after an error an operator lends a hand, after an exit it is the launcher's turn
		start_anew($node, $pipeline) if $action eq 'error';
	}
	$workload->run(transactions => 5);
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', "$point:$action: Kafka gets it all");
	$workload->check("$point:$action: once, in commit order, each transaction whole");
	$_->() for @finish;
	return;
}

my @points = split /\n/, query($node, 'SELECT kafka.failpoints()');
cmp_ok(scalar @points, '>=', 12, 'the library is built with fail-points');
foreach my $name (@points)
{
	foreach my $how (qw(error exit kill))
	{
		($point, $action) = ($name, $how);
		fail_once();
	}
}

# In the middle of a transaction: at any record of it.
foreach my $i (1 .. 4)
{
	my $visit = 1 + int(rand(80));

	($point, $action) = ('after-append', "exit\@$visit");
	$armed_at = -s $node->logfile;
	set_failpoint($node, "$point:$action");
	# records are counted from the process's start
	by_orderly_stop();
	$workload->run;
	wait_until { hit() } "record $visit", 60;
	set_failpoint($node, '');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', "$point:$action: Kafka gets it all");
	$workload->check("$point:$action: once, in commit order, each transaction whole");
}

#
# kill -9 of the server while the worker stands exactly between two steps
#

sub stand_at
{
	($point, $action) = ($_[0], 'wait');
	$armed_at = -s $node->logfile;
	set_failpoint($node, "$point:$action");
	$workload->run;
	wait_until { logged($node, qr/fail-point "\Q$point\E" waits/, $armed_at) } "the worker at $point";
	return;
}

sub crash_and_go_on
{
	crash($node);
	clear_failpoint($node);
	$node->start;
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', "crash at $point: Kafka gets it all");
	$workload->check("crash at $point: once, in commit order, each transaction whole");
	return;
}

my $newest = q{FROM kafka.checkpoint ORDER BY checkpoint_id DESC LIMIT 1};

stand_at('after-prepare-commit');
my ($id, $state) = split /\|/, query($node, "SELECT checkpoint_id, state $newest");
is($state, 'prepared', 'between prepare and Kafka\'s commit: the row says prepared');
cmp_ok(scalar $workload->consume_new('stream', isolation => 'read_uncommitted'), '>', 0, '... the broker has records');
is(scalar $workload->consume_new('stream'), 0, '... no consumer sees one');
crash_and_go_on();
is(query($node, "SELECT state, attempt, outcome, outcome_reason FROM kafka.checkpoints WHERE checkpoint_id = $id"),
	'committed|1|redriven|', '... the start has committed the checkpoint\'s transaction');

stand_at('after-kafka-commit');
my $seen;
($id, $state) = split /\|/, query($node, "SELECT checkpoint_id, state $newest");
is($state, 'prepared', 'between Kafka\'s commit and the mark: the row says prepared');
wait_until { $seen = $workload->consume_new('ledger') } 'what Kafka has committed';
is(query($node, "SELECT transactions FROM kafka.checkpoint WHERE checkpoint_id = $id"), $seen,
	'... consumers see its transactions');
crash_and_go_on();
is(query($node, "SELECT state, attempt, outcome, transactions FROM kafka.checkpoints WHERE checkpoint_id = $id"),
	"committed|1|already_committed|$seen", '... the checkpoint was committed then, and is not made again');

#
# All of it
#

$workload->check_all;
my ($committed, $transactions, $records) = split /\|/,
  query($node, q{SELECT count(*), sum(transactions), sum(records) FROM kafka.checkpoints WHERE state = 'committed'});
is($committed, $workload->{log}->{ledger}->transactions,
	'each Kafka transaction is a committed row of kafka.checkpoints');
is($transactions, scalar @{ $workload->{checked}->{ledger} }, '... which counts its transactions');
is($records, $transactions + @{ $workload->{checked}->{stream} }, '... and its records');

done_testing();
