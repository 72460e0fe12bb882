# A workload that a pipeline captures, and the check that all of it arrived in Kafka exactly once, in commit order, each
# transaction whole.
#
# The workload is a pgbench script: transactions over several tables, by several clients at a time, with savepoints,
# partial and whole rollbacks, inserts, updates, key changes and deletes.  A row says which transaction wrote it
# (<run>.<client>.<number>) and which step of it; what must never be seen is written as "never".  Every transaction that
# commits ends with a row of the ledger.
#
# What must arrive, and in which order, is told by PostgreSQL alone: a second slot, with the server's own plugin
# test_decoding.  All tables but the ledger share one topic, the ledger has its own, each with one partition: so every
# Kafka transaction that has any of our records has some in both.
package Workload;

use strict;
use warnings;

use IPC::Run ();
use JSON::PP ();
use KafkaLog;
use Test::More;
use TransactionalKafka;

my $json = JSON::PP->new->canonical->allow_nonref;
my %columns = (account => ['id'], item => [ 'account', 'line' ], ledger => ['tx']);    # of the keys
my @topics = ('stream', 'ledger');

# The transaction; :run and :n are variables of each pgbench client.
my $tx   = q{(:run || '.' || :client_id || '.' || :n)};
my $note = q{CASE WHEN :outcome = 1 THEN 'never' ELSE 'kept' END};
my $script = <<"SQL";
\\set n :n + 1
\\set outcome random(1, 5)
\\set shared random(1, 5)
\\set line random(1, 12)
\\set other random(1, 12)
BEGIN;
INSERT INTO account VALUES (:shared, $tx, 1, $note)
	ON CONFLICT (id) DO UPDATE SET tx = excluded.tx, step = excluded.step, note = excluded.note;
INSERT INTO item VALUES (:client_id, :line, $tx, 2, $note)
	ON CONFLICT (account, line) DO UPDATE SET tx = excluded.tx, step = excluded.step, note = excluded.note;
SAVEPOINT discarded;
UPDATE account SET tx = $tx, step = 3, note = 'never' WHERE id = :shared;
INSERT INTO item VALUES (:client_id, 300 + :n, $tx, 4, 'never');
DELETE FROM item WHERE account = :client_id AND line = :other;
ROLLBACK TO SAVEPOINT discarded;
SAVEPOINT kept;
UPDATE item SET line = line + 100, tx = $tx, step = 5, note = $note WHERE account = :client_id AND line = :line
	AND NOT EXISTS (SELECT FROM item WHERE account = :client_id AND line = :line + 100);
RELEASE SAVEPOINT kept;
DELETE FROM item WHERE account = :client_id AND line = 100 + :other;
UPDATE account SET tx = $tx, step = 7, note = $note WHERE id = :shared;
INSERT INTO ledger VALUES ($tx, 8);
\\if :outcome = 1
ROLLBACK;
\\else
COMMIT;
\\endif
SQL

# Makes tables, the oracle and the pipeline that is to be tested: Workload->new($node, 'pipeline', broker =>, options =>)
sub new
{
	my ($class, $node, $pipeline, %o) = @_;
	my $self = bless {
		node     => $node,
		pipeline => $pipeline,
		broker   => $o{broker} || broker(),
		seed     => $ENV{TK_SEED} || 1 + int(rand(1_000_000)),
		run      => 0,
		script   => "$PostgreSQL::Test::Utils::tmp_check/$pipeline.pgbench",
		from     => {},                                               # topic => the offset after what was checked
		expected => [],                                               # transactions: all that the oracle told
		told     => 0,                                                # position where the last of them ends
	}, $class;

	$self->{log} = { map { $_ => KafkaLog->new($self->{broker}, "$pipeline.$_") } @topics };
	diag("seed: TK_SEED=$self->{seed}");
	srand $self->{seed};
	PostgreSQL::Test::Utils::append_to_file($self->{script}, $script);
	create_server($node, broker => $self->{broker});
	query($node, <<'SQL');
CREATE TABLE account (id int PRIMARY KEY, tx text NOT NULL, step int NOT NULL, note text);
CREATE TABLE item (account int, line int, tx text NOT NULL, step int NOT NULL, note text, PRIMARY KEY (account, line));
CREATE TABLE ledger (tx text PRIMARY KEY, step int NOT NULL);
SQL
	query($node, q{SELECT FROM pg_create_logical_replication_slot('oracle', 'test_decoding')});
	create_pipeline($node, $pipeline,
		tables  => [ 'account', 'item', 'ledger' ],
		options => { metadata_headers => 'true', topic_partitions => 1, %{ $o{options} || {} } });
	my $name = quote($pipeline);
	with_new_worker {
		query($node, <<"SQL");
SELECT kafka.set_table($name, 'account', '{"topic": "$pipeline.stream"}'),
	kafka.set_table($name, 'item', '{"topic": "$pipeline.stream"}'),
	kafka.set_table($name, 'ledger', '{"topic": "$pipeline.ledger"}')
SQL
	}
	$node, $pipeline;
	return $self;
}

sub pgbench
{
	my ($self, %o) = @_;
	my $node = $self->{node};

	$self->{run}++;
	return [ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', 2, '-f', $self->{script},
		'--random-seed', $self->{seed} + $self->{run}, '-D', "run=$self->{run}", '-D', 'n=0',
		($o{rate} ? ('-T', 3600, '-R', $o{rate}) : ('-t', $o{transactions} || 12)), 'postgres' ];
}

# So many transactions of each of the two clients, one run.  False if the server did not let it come to its end.
sub run
{
	my ($self, %o) = @_;
	my $output = '';

	return IPC::Run::run($self->pgbench(%o), '<', \undef, '>&', \$output, IPC::Run::timeout(60));
}

# Load that goes on until stop().
sub start
{
	my ($self, %o) = @_;

	$self->{output} = '';
	$self->{load} = IPC::Run::start($self->pgbench(rate => $o{rate} || 50), '<', \undef, '>&', \$self->{output});
	return;
}

# Ends the load, if it is not over with the server's end; returns once nothing of it can commit any more.
sub stop
{
	my ($self) = @_;
	my $load = delete $self->{load} or return;

	$load->signal('TERM') if $load->pumpable;
	eval { $load->finish };
	wait_until { query($self->{node}, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'}) eq '0' }
	'the end of the load';
	return;
}

sub committed { my ($self) = @_; return query($self->{node}, 'SELECT count(*) FROM ledger'); }

# Returns once the load has committed so many more.
sub await_commits
{
	my ($self, $more) = @_;
	my $goal = $self->committed + $more;

	wait_until { $self->committed >= $goal } "$more more commits", 60;
	return;
}

# Returns once the worker has got so many more transactions into Kafka.
sub await_progress
{
	my ($self, $more) = @_;
	my $sent = sub {
		query($self->{node},
			'SELECT coalesce(max(transactions), 0) FROM kafka.stat_pipelines WHERE pipeline = ' . quote($self->{pipeline}));
	};
	my $goal = $sent->() + $more;

	wait_until { $sent->() >= $goal } "$more more transactions in Kafka", 60;
	return;
}

#
# What must arrive
#

# A position in the WAL, as a number.
sub position
{
	my ($lsn) = @_;
	my ($high, $low) = split m{/}, $lsn;
	return (hex($high) << 32) + hex($low);
}

# Its transactions since the last call: { xid, end => position, records => [text, ...] }
sub ask_oracle
{
	my ($self) = @_;
	my $changes = query($self->{node},
		q{SELECT lsn, data FROM pg_logical_slot_get_changes('oracle', NULL, NULL, 'skip-empty-xacts', '1')});
	my (@transactions, $current);

	foreach my $line (split /\n/, $changes)
	{
		my ($lsn, $data) = split /\|/, $line, 2;

		if ($data =~ /^BEGIN (\d+)/)
		{
			$current = { xid => $1, records => [] };
		}
		elsif ($data =~ /^COMMIT/)
		{
			# a crash may have set the oracle's slot back, and it tells some again
			next unless position($lsn) > $self->{told} && @{ $current->{records} };
			$current->{end} = $self->{told} = position($lsn);
			$current->{records}->[-1] .= ' last';
			push @transactions, $current;
		}
		elsif ($data =~ /^table public\.(account|item|ledger): (\w+): (.*)$/)
		{
			my $seq = @{ $current->{records} };
			push @{ $current->{records} }, map { join ' ', $current->{xid}, ++$seq, $_ } expected_records($1, $2, $3);
		}
	}
	push @{ $self->{expected} }, @transactions;
	return @transactions;
}

# What one of test_decoding's changes is in Kafka: "table op key before after", and "tombstone key".
sub expected_records
{
	my ($table, $operation, $rest) = @_;
	my ($old, $new) = $rest =~ /^old-key: (.*) new-tuple: (.*)$/ ? map { columns($_) } $1, $2 : (undef, columns($rest));
	my $key = sub { my ($row) = @_; return { map { $_ => $row->{$_} } @{ $columns{$table} } }; };
	my $event = sub { return join ' ', $table, $_[0], map { defined $_ ? $json->encode($_) : 'null' } @_[ 1 .. 3 ]; };
	my @delete = map { ($event->('d', $_, $_, undef), 'tombstone ' . $json->encode($_)) } $key->($old || $new);

	return @delete if $operation eq 'DELETE';
	return $event->('c', $key->($new), undef, $new) if $operation eq 'INSERT';
	return $event->('u', $key->($new), undef, $new) unless $old;
	return (@delete, $event->('c', $key->($new), undef, $new));
}

sub columns
{
	my ($text) = @_;
	my %row;

	while ($text =~ /(\w+)\[(\w+)\]:(?:'((?:[^']|'')*)'|(\S+))/g)
	{
		$row{$1} = defined $3 ? $3 : $4 eq 'null' ? undef : $4 + 0;
	}
	return \%row;
}

#
# What did
#

# Records of a topic that have not been checked yet, also those of transactions that are not (isolation => ...).
sub consume_new
{
	my ($self, $topic, %o) = @_;
	return consume("$self->{pipeline}.$topic", broker => $self->{broker}, from => $self->{from}->{$topic}, %o);
}

# Adds to a record what it says: value, and text, in the oracle's words.
sub understand
{
	my ($record) = @_;
	my $headers = $record->{headers};
	my $value = $record->{value} = defined $record->{payload} ? $json->decode($record->{payload}) : undef;
	my $key = $json->encode($json->decode($record->{key}));
	my @words = ($headers->{'pg.xid'}, $headers->{'pg.seq'});

	push @words, $value
	  ? ($value->{source}->{table}, $value->{op}, $key, map { $json->encode($_) } @$value{qw(before after)})
	  : ('tombstone', $key);
	push @words, 'last' if ($headers->{'pg.last'} || '') eq 'true';
	$record->{key_text} = $key;
	$record->{text} = join ' ', @words;
	return;
}

# After a fault: some more of it, and all that there is arrives, within so much time ('90s').
sub heals
{
	my ($self, $what, $time) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->run(transactions => 3);
	is(query($self->{node}, "SELECT kafka.wait_for(timeout => '" . ($time || '90s') . "')"), 't', "$what: Kafka gets it all");
	$self->check("$what: once, in commit order, each transaction whole");
	return;
}

# One test: all that committed since the last check is in Kafka, once, in commit order, each transaction whole.
# The pipeline must be up to date (kafka.wait_for), the load stopped.
sub check
{
	my ($self, $name) = @_;
	my @transactions = $self->ask_oracle;
	my @expected = map { @{ $_->{records} } } @transactions;
	my %new;

	# a commit is acknowledged a moment before it is visible
	eval {
		wait_until {
			%new = map { $_ => [ $self->consume_new($_) ] } @topics;
			@{ $new{stream} } + @{ $new{ledger} } >= @expected;
		}
		'the records', 20;
	};
	understand($_) foreach map { @{ $new{$_} } } @topics;
	my @problems = $self->problems(\@expected, \%new);

	foreach my $topic (@topics)
	{
		next unless @{ $new{$topic} };
		$self->{from}->{$topic} = $new{$topic}->[-1]->{offset} + 1;
		push @{ $self->{checked}->{$topic} }, map { $_->{offset} } @{ $new{$topic} };
		$self->apply($_) foreach @{ $new{$topic} };
	}
	return is(join("\n", @problems), '', $name . ' (' . @transactions . ' transactions)');
}

# Makes the tables that the records make.
sub apply
{
	my ($self, $record) = @_;
	my $value = $record->{value} or return;
	my $table = $self->{tables}->{ $value->{source}->{table} } ||= {};

	if ($value->{after}) { $table->{ $record->{key_text} } = $json->encode($value->{after}); }
	else                 { delete $table->{ $record->{key_text} }; }
	return;
}

# At the end: nothing has come in between what was checked part by part, the records make the tables as they are, and
# no Kafka transaction has reached one topic only.
sub check_all
{
	my ($self) = @_;

	foreach my $topic (@topics)
	{
		is(join(' ', $self->committed_offsets($topic)), join(' ', @{ $self->{checked}->{$topic} }),
			"topic $topic holds what was checked");
	}
	foreach my $table (sort keys %columns)
	{
		my $rows = $json->decode(query($self->{node}, "SELECT coalesce(json_agg(t), '[]') FROM $table t"));
		is(join("\n", sort values %{ $self->{tables}->{$table} }), join("\n", sort map { $json->encode($_) } @$rows),
			"table $table is what its records make of it");
	}
	is($self->{log}->{ledger}->transactions, $self->{log}->{stream}->transactions,
		'each Kafka transaction is in both topics');
	return;
}

# Offsets of all committed records: consume(), for many.
sub committed_offsets
{
	my ($self, $topic) = @_;
	my $output;

	IPC::Run::run([ qw(kcat -C -q -e -u -o beginning -f), '%o ', '-t', "$self->{pipeline}.$topic", '-b', $self->{broker},
			'-X', 'isolation.level=read_committed' ],
		'>', \$output, IPC::Run::timeout(60)) or die 'kcat failed';
	return split ' ', $output;
}

sub problems
{
	my ($self, $expected, $topics) = @_;
	my @problems;
	my $place = sub {
		my $h = $_[0]->{headers};
		return sprintf '%020s %010d', $h->{'pg.lsn'}, $h->{'pg.seq'};
	};

	# in each partition: in the order of commits, and of the changes of each
	foreach my $topic (@topics)
	{
		my @records = @{ $topics->{$topic} };
		foreach my $i (1 .. $#records)
		{
			my ($a, $b) = @records[ $i - 1, $i ];
			push @problems, "out of order in $topic at offset $b->{offset}: " . $b->{text}
			  if $place->($a) ge $place->($b);
		}
	}

	# over all partitions: exactly what the oracle told
	my @actual = map { $_->{text} } sort { $place->($a) cmp $place->($b) } map { @{ $topics->{$_} } } @topics;
	my %count;
	$count{$_}++ foreach @actual;
	push @problems, map { "$count{$_} times: $_" } grep { $count{$_} > 1 } sort keys %count;
	$count{$_}-- foreach @$expected;
	push @problems, map { "missing: $_" } grep { $count{$_} < 0 } sort keys %count;
	push @problems, map { "unexpected: $_" } grep { $count{$_} > 0 } sort keys %count;
	foreach my $i (0 .. $#actual)
	{
		next if $i > $#{$expected} || $actual[$i] eq $expected->[$i];
		push @problems, "in place $i is: $actual[$i], expected: $expected->[$i]";
		last;
	}

	push @problems, never_or_disorder($topics), $self->torn($topics);
	splice @problems, 20, @problems - 20, '...' if @problems > 20;
	return @problems;
}

# What the clients' own numbers say, whatever the oracle thinks.
sub never_or_disorder
{
	my ($topics) = @_;
	my (@problems, %number, %step);

	foreach my $record (@{ $topics->{stream} }, @{ $topics->{ledger} })
	{
		my $row = ($record->{value} || {})->{after} or next;
		my ($transaction, $step) = ($row->{tx}, $row->{step});

		push @problems, 'rolled back: ' . $record->{text} if ($row->{note} || '') eq 'never';
		push @problems, 'not after an earlier step: ' . $record->{text} if $step <= ($step{$transaction} || 0);
		$step{$transaction} = $step;
	}
	foreach my $record (@{ $topics->{ledger} })
	{
		my ($client, $number) = $record->{value}->{after}->{tx} =~ /^(\d+\.\d+)\.(\d+)$/;

		push @problems, 'not after the earlier one of its client: ' . $record->{text}
		  if $number <= ($number{$client} || 0);
		$number{$client} = $number;
	}
	return @problems;
}

# Transactions of which some records are in one of Kafka's transactions, some in another.
sub torn
{
	my ($self, $topics) = @_;
	my (%in, @problems);

	foreach my $topic (@topics)
	{
		my $log = $self->{log}->{$topic};

		$log->read_on;
		foreach my $record (@{ $topics->{$topic} })
		{
			my $in = $log->transaction_of($record->{offset}) || 'none';
			my $first = $in{ $record->{headers}->{'pg.lsn'} } ||= $in;

			push @problems, "in Kafka transaction $in, others of its transaction in $first: " . $record->{text}
			  if $in eq 'none' || $in ne $first;
		}
	}
	return @problems;
}

1;
