# What the tests of failures between the two commits share: a workload's pipeline that is held at a step of a checkpoint
# while something goes wrong, and what has become of that checkpoint.
#
#   my $scenario = Scenario->new($workload);
#   my $held = $scenario->stand_at('after-prepare-commit');     the row of kafka.checkpoint, as a hash, and more (below)
#   $scenario->replace_worker;                                  its process ends there, the next one starts
#   $scenario->heals('what happened');                          all is in Kafka once, in commit order, whole
#   $scenario->same_offsets($held, 'what happened');            the broker's own records of it were committed
#   $scenario->became($held, 'committed|1|redriven', 'what happened');
package Scenario;

use strict;
use warnings;

use Test::More;
use KafkaRequest;
use TransactionalKafka;

sub new
{
	my ($class, $workload) = @_;
	return bless { workload => $workload, map { $_ => $workload->{$_} } qw(node pipeline broker) }, $class;
}

# The newest checkpoint, as { column => value }; nulls are '', and so is everything if there is none.
sub newest
{
	my ($self) = @_;
	my @columns = qw(checkpoint_id state attempt transactional_id producer_id producer_epoch kafka_start_ms transactions records);
	my %row;

	my @values = split /\|/,
	  query($self->{node}, 'SELECT ' . join(', ', @columns) . ' FROM kafka.checkpoint ORDER BY checkpoint_id DESC LIMIT 1'), -1;

	@row{@columns} = @values ? @values : ('') x @columns;
	return \%row;
}

# Runs the workload until the worker waits at a fail-point in a checkpoint.  What is returned has beside the newest row's
# columns: offsets, those of the ledger's records that the broker has and nobody has checked yet, committed or not.
sub stand_at
{
	my ($self, $point) = @_;
	my $log = -s $self->{node}->logfile;

	set_failpoint($self->{node}, "$point:wait");
	$self->{workload}->run(transactions => 5);
	$self->await($point, $log);
	my $held = $self->newest;
	$held->{offsets} = [ map { $_->{offset} } $self->{workload}->consume_new('ledger', isolation => 'read_uncommitted') ];
	return $held;
}

sub await
{
	my ($self, $point, $log) = @_;

	wait_until { logged($self->{node}, qr/fail-point "\Q$point\E" waits/, $log) } "the worker at $point", 60;
	return;
}

# The worker ends where it is, and the launcher starts the next one, which meets this fail-point.
sub replace_worker
{
	my ($self, $failpoint) = @_;
	my $setting = defined $failpoint ? $failpoint : '';
	my $log = -s $self->{node}->logfile;

	# the next process shall meet it, not this one
	query($self->{node}, 'ALTER SYSTEM SET transactional_kafka.failpoints = ' . quote($setting));
	terminate_worker($self->{node}, $self->{pipeline});
	set_failpoint($self->{node}, $setting);
	$self->await($1, $log) if $setting =~ /^(.*):wait/;
	return;
}

sub go_on { my ($self) = @_; set_failpoint($self->{node}, ''); return; }

# By itself, if nobody did anything.
sub heals
{
	my ($self, $what) = @_;
	my $node = $self->{node};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->{workload}->heals($what);
	is(query($node, 'SELECT state, reason FROM kafka.pipelines WHERE pipeline = ' . quote($self->{pipeline})), 'running|',
		'... and the pipeline runs, without a complaint');
	return;
}

# What the view says of that checkpoint: "state|attempt|outcome", and a reason like this; without one given, none.
sub became
{
	my ($self, $held, $expected, $what, $reason) = @_;
	my ($row, $why) = query($self->{node}, 'SELECT state, attempt, outcome, outcome_reason FROM kafka.checkpoints '
		  . "WHERE checkpoint_id = $held->{checkpoint_id}") =~ /^(.*?\|.*?\|.*?)\|(.*)$/;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($row, $expected, "$what: the checkpoint is $expected");
	return like($why, defined $reason ? $reason : qr/^$/, '... with its reason');
}

# The offsets of its ledger records, one a transaction.  Those are the first ones: the next checkpoint's, which the broker
# may have too, come behind them.
sub of
{
	my ($self, $held) = @_;
	my @offsets = @{ $held->{offsets} };

	splice @offsets, $held->{transactions} if @offsets > $held->{transactions};
	return @offsets;
}

# How many of them were committed there.
sub kept
{
	my ($self, $held) = @_;
	my %checked = map { $_ => 1 } @{ $self->{workload}->{checked}->{ledger} };

	return scalar grep { $checked{$_} } $self->of($held);
}

sub same_offsets
{
	my ($self, $held, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($held->{transactions}, '>', 0, "$what: the checkpoint had transactions");
	return is($self->kept($held), $held->{transactions}, '... whose records are committed where they were: the same offsets');
}

sub other_offsets
{
	my ($self, $held, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok(scalar @{ $held->{offsets} }, '>', 0, "$what: the broker had records of the checkpoint");
	return is($self->kept($held), 0, '... of which none was committed: they were produced again, at other offsets');
}

# What Kafka's coordinator says of the checkpoint's transactional id.
sub describe { my ($self, $held) = @_; return describe_transaction($self->{broker}, $held->{transactional_id}); }

sub await_transaction
{
	my ($self, $held, $state) = @_;
	my $found;

	wait_until { $found = $self->describe($held); $found->{state} eq $state } "$state of $held->{transactional_id}", 60;
	return $found;
}

# A column of the pipeline's statistics.
sub stat_of
{
	my ($self, $column) = @_;
	return query($self->{node}, "SELECT $column FROM kafka.stat_checkpoints WHERE pipeline = " . quote($self->{pipeline}));
}

# No sticky state, no crash of a process; the counters say what the rows say.
sub ends_well
{
	my ($self) = @_;
	my $outcomes = q{SELECT count(*) FILTER (WHERE outcome = 'redriven'), count(*) FILTER (WHERE outcome = 'already_committed'),
		count(*) FILTER (WHERE outcome = 'replayed') FROM kafka.checkpoints};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($self->stat_of('redriven, already_committed, replayed'), query($self->{node}, $outcomes), 'the counters of outcomes');
	is(logged($self->{node}, qr/stops as|has stopped/), 0, 'nothing of it has stopped the pipeline');
	is(logged($self->{node}, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
	$self->{workload}->check_all;
	return;
}

1;
