# Position and restart: public bug reports of the tools that do this job, as inputs and right results (CASES.md).
# "x1" there is "exactly once for a read_committed consumer" here.
use strict;
use warnings;

use IPC::Run ();
use List::Util qw(max shuffle);
use Test::More;
use TransactionalKafka;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : time;
srand $seed;
note "seed: TK_SEED=$seed";

my $node = new_node('main');
create_server($node);

sub tables
{
	query($node, "CREATE TABLE $_ (id int PRIMARY KEY)") foreach @_;
	return;
}

# A test: the topic has exactly these ids, in this order.
sub holds
{
	my ($topic, $ids, $what, %consumer) = @_;
	my $last = $ids->[-1];
	my @records = consume_until($topic, sub { my @seen = values_of('after.id', @_); grep { $_ == $last } @seen }, %consumer);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply([ values_of('after.id', @records) ], $ids, $what);
}

sub drop
{
	query($node, "CALL kafka.drop_pipeline('$_')") foreach @_;
	return;
}

# Waits for words of a psql that runs by itself.
sub hear
{
	my ($call, $pattern) = @_;

	wait_until { $call->{run}->pump_nb; $call->{errors} =~ $pattern } "psql to say $pattern";
	return;
}

sub slot_field
{
	my ($name, $field) = @_;
	return query($node,
		"SELECT $field FROM pg_replication_slots WHERE slot_name = " . quote(pipeline_field($node, $name, 'slot_name')));
}

subtest 'dbz#76, dbz#51: a transaction that was open while the worker ended arrives whole, a sent one not again' => sub {
	tables(qw(t_long t_short));
	create_pipeline($node, 'open', tables => [ 't_long', 't_short' ]);
	my $n = 0;

	foreach my $end ('terminate', 'error', 'restart')
	{
		my $a = $node->background_psql('postgres');
		my $base = 10 * $n++;

		$a->query_safe("BEGIN; INSERT INTO t_long SELECT generate_series($base + 1, $base + 5)");
		query($node, "INSERT INTO t_short VALUES ($n)");
		holds('open.public.t_short', [ 1 .. $n ], 'the short one arrives while the long one is open') if $end ne 'terminate';
		$a->query_safe("INSERT INTO t_long SELECT generate_series($base + 6, $base + 10)");
		if ($end eq 'terminate')
		{
			terminate_worker($node, 'open');
		}
		elsif ($end eq 'error')
		{
			my $log = -s $node->logfile;

			set_failpoint($node, 'recovery-start:error');
			start_anew($node, 'open');
			wait_until { logged($node, qr/fail-point "recovery-start"/, $log) } 'a start that fails';
			set_failpoint($node, '');
			start_anew($node, 'open');
		}
		else
		{
			query($node, q(CALL kafka.pause('open')));
			query($node, q(CALL kafka.resume('open')));
		}
		$a->query_safe('COMMIT');
		$a->quit;
		holds('open.public.t_long', [ 1 .. 10 * $n ], "$end: every row of the long transaction, once");
		holds('open.public.t_short', [ 1 .. $n ], "$end: the short one, once");
	}

	# A crash of the server takes the open transaction with it.
	my $a = $node->background_psql('postgres');
	$a->query_safe('BEGIN; INSERT INTO t_long SELECT generate_series(101, 105)');
	query($node, 'INSERT INTO t_short VALUES (90)');
	crash($node);
	eval { $a->quit };
	$node->start;
	query($node, 'INSERT INTO t_long VALUES (200)');
	holds('open.public.t_long', [ 1 .. 30, 200 ], 'crash: nothing of a transaction that never committed');
	holds('open.public.t_short', [ 1 .. 3, 90 ], 'crash: what was committed, once');
	drop('open');
	return;
};

subtest 'DBZ-2288, DBZ-862: a transaction older than the slot is waited for, and nothing half of it is sent' => sub {
	tables('older');
	my $t1 = $node->background_psql('postgres');
	my $xid = $t1->query_safe('BEGIN; INSERT INTO older VALUES (1); SELECT pg_current_xact_id()');
	my $call = background_sql($node, q(CALL kafka.create_pipeline('older', 'kafka', '{older}')));

	hear($call, qr/NOTICE:  pipeline "older" waits for transaction $xid to end/);
	$t1->query_safe('INSERT INTO older VALUES (10)');
	$call->{run}->pump_nb;
	ok($call->{run}->pumpable, 'create_pipeline waits');
	$t1->query_safe('COMMIT');
	$t1->quit;
	ok($call->{run}->finish, 'create_pipeline returns once it is over');
	query($node, 'INSERT INTO older VALUES (2)');
	holds('older.public.older', [2], 'what began after the return is captured, what was open before is not sent in part');
	drop('older');
	return;
};

subtest 'DBZ-862: create_pipeline can be cancelled while it waits; the definition stays and starts when it can' => sub {
	tables('cancelled');
	my $t1 = $node->background_psql('postgres');
	my $xid = $t1->query_safe('BEGIN; INSERT INTO cancelled VALUES (1); SELECT pg_current_xact_id()');
	my $call = background_sql($node, q(CALL kafka.create_pipeline('cancelled', 'kafka', '{cancelled}')));

	hear($call, qr/waits for transaction $xid to end/);
	query($node, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL kafka.create_pipeline(%'});
	$call->{run}->finish;
	like($call->{errors}, qr/ERROR:  canceling statement due to user request/, 'cancelled');
	is(state($node, 'cancelled'), 'starting', 'the definition stays');
	$t1->query_safe('COMMIT');
	$t1->quit;
	wait_for_state($node, 'cancelled', 'running');
	query($node, 'INSERT INTO cancelled VALUES (2)');
	holds('cancelled.public.cancelled', [2], 'and captures');

	# "SELECT 1; CALL" in one message is a transaction block too
	foreach my $block ('BEGIN; %s', 'SELECT 1; %s', 'BEGIN; DO $$BEGIN %s; END$$')
	{
		my $call_inside = background_sql($node, sprintf $block, q(CALL kafka.create_pipeline('block', 'kafka', '{cancelled}')));

		ok(!$call_inside->{run}->finish, "refused: $block");
		like($call_inside->{errors}, qr/create_pipeline\(\) cannot run inside a transaction block.*HINT: /s, 'with a hint');
	}
	is(query($node, q(SELECT count(*) FROM kafka.pipelines WHERE pipeline = 'block')), 0, 'and nothing was defined');
	drop('cancelled');
	return;
};

subtest 'DBZ-1684: a publication made after its tables had WAL, while another pipeline lags, is captured from then on' => sub {
	tables(qw(lagging published));
	create_pipeline($node, 'lagging', tables => ['lagging']);
	query($node, q(CALL kafka.pause('lagging')));
	query($node, 'INSERT INTO lagging VALUES (1); INSERT INTO published VALUES (1)');
	query($node, 'CREATE PUBLICATION late FOR TABLE published; INSERT INTO published VALUES (2)');
	create_pipeline($node, 'late', publication => 'late');
	query($node, 'INSERT INTO published VALUES (3)');
	holds('late.public.published', [3], 'from create_pipeline on');
	terminate_worker($node, 'late');
	query($node, 'INSERT INTO published VALUES (4)');
	holds('late.public.published', [ 3, 4 ], 'after a restart too');
	query($node, q(CALL kafka.resume('lagging')));
	holds('lagging.public.lagging', [1], 'the lagging one catches up');
	drop('late', 'lagging');
	query($node, 'DROP PUBLICATION late');
	return;
};

subtest 'airbyte#15214, DBZ-1766: the slot never passes a transaction that Kafka does not have' => sub {
	my @points = qw(after-begin after-append checkpoint-triggered after-progress-append after-flush before-prepare-commit
	  after-prepare-commit after-kafka-commit after-slot-confirm);
	my $rounds = $ENV{TK_ROUNDS} || 25;
	my ($n, $passed) = (0, 0);
	my %end;

	tables('ack');
	create_pipeline($node, 'ack', tables => ['ack'], options => { checkpoint_interval => '0' });
	foreach my $round (1 .. $rounds)
	{
		my $point = $points[ rand @points ];
		my $visit = $point eq 'after-append' ? 1 + int rand 4 : 1;
		my $log = -s $node->logfile;
		my @ids = map { ++$n } 1 .. 4 + int rand 3;

		set_failpoint($node, "$point:" . (rand() < 0.5 ? 'exit' : 'error') . "\@$visit");
		start_anew($node, 'ack');

		# each its own transaction; the position after it is at or beyond its end
		my @ends = split /\n/, query($node,
			join ";\n", map { ("INSERT INTO ack VALUES ($_)", q(SELECT pg_current_wal_insert_lsn() - '0/0')) } @ids);
		@end{@ids} = @ends;
		wait_until { logged($node, qr/fail-point "$point"/, $log) } "fail-point $point";

		# The slot first: Kafka may get more in between, but never less.
		my $confirmed = slot_field('ack', q(confirmed_flush_lsn - '0/0'));
		my %held = map { ($_ => 1) } values_of('after.id', consume('ack.public.ack'));
		my @lost = grep { $end{$_} <= $confirmed && !$held{$_} } keys %end;

		is_deeply(\@lost, [], "round $round: passed, and not in Kafka") if @lost;
		$passed++ unless @lost;
	}
	is($passed, $rounds, "$rounds times killed between send and confirmation: nothing unacknowledged was confirmed");
	set_failpoint($node, '');
	start_anew($node, 'ack');
	holds('ack.public.ack', [ 1 .. $n ], "all of $n rows, once, in order");
	is(query($node, q(SELECT count(*) FROM kafka.checkpoints WHERE pipeline = 'ack' AND state = 'prepared')) <= 1,
		1, 'at most one checkpoint is in doubt');
	drop('ack');
	return;
};

subtest 'airbyte#15214: while Kafka does not answer nothing is confirmed, not by a restart either' => sub {
	my $broker = start_broker('silent');

	tables('silent');
	create_server($node, name => 'silent', broker => $broker->address);
	create_pipeline($node, 'silent', tables => ['silent'], server => 'silent');
	query($node, 'INSERT INTO silent VALUES (1)');
	holds('silent.public.silent', [1], 'it runs', broker => $broker->address);
	$broker->suspend;
	query($node, 'INSERT INTO silent SELECT generate_series(2, 100)');
	my $end = query($node, 'SELECT pg_current_wal_insert_lsn()');
	is(query($node, q(SELECT kafka.wait_for(pipeline => 'silent', timeout => '1s'))), 'f', 'not in Kafka');
	is(slot_field('silent', "confirmed_flush_lsn < '$end'"), 't', 'not confirmed');
	terminate_worker($node, 'silent');
	wait_until { worker_pid($node, 'silent') } 'the next worker';
	is(slot_field('silent', "confirmed_flush_lsn < '$end'"), 't', 'not confirmed by a new start');
	crash($node);
	$node->start;
	is(slot_field('silent', "confirmed_flush_lsn < '$end'"), 't', 'nor by a crash');
	$broker->resume;
	start_anew($node, 'silent');
	holds('silent.public.silent', [ 1 .. 100 ], 'once it answers, everything arrives once', broker => $broker->address);
	drop('silent');
	$broker->kill9;
	return;
};

subtest 'dbz#1863: a slot that is ahead of the last checkpoint, because only unpublished tables changed, is no error' => sub {
	tables(qw(rare elsewhere));
	create_pipeline($node, 'rare', tables => ['rare']);
	query($node, 'INSERT INTO rare VALUES (1)');
	holds('rare.public.rare', [1], 'one row');

	my $n = 1;
	foreach my $restart (sub { $node->restart }, sub { crash($node); $node->start }, sub { terminate_worker($node, 'rare') })
	{
		query($node, 'INSERT INTO elsewhere SELECT generate_series(' . (1000 * $n) . ', ' . (1000 * $n + 999) . ')');
		my $checkpoints = query($node, q(SELECT max(checkpoint_id), max(end_lsn) FROM kafka.checkpoints WHERE pipeline = 'rare'));
		is(query($node, q(SELECT kafka.wait_for(pipeline => 'rare', timeout => '60s'))), 't', 'all of that is covered');
		is(slot_field('rare', q(confirmed_flush_lsn > (SELECT max(end_lsn) FROM kafka.checkpoints WHERE pipeline = 'rare'))),
			't', 'the slot is ahead of the checkpoint');
		is(query($node, q(SELECT max(checkpoint_id), max(end_lsn) FROM kafka.checkpoints WHERE pipeline = 'rare')),
			$checkpoints, 'for which no checkpoint was made');
		$restart->();
		wait_for_state($node, 'rare', 'running');
		query($node, 'INSERT INTO rare VALUES (' . ++$n . ')');
		holds('rare.public.rare', [ 1 .. $n ], 'it starts and goes on');
	}
	drop('rare');
	return;
};

subtest 'SeaTunnel #11541: a checkpoint asked for right after a record includes it' => sub {
	my $before;

	tables('asked');

	# Nobody but checkpoint() would send the second one.
	create_pipeline($node, 'asked', tables => ['asked'], options => { checkpoint_interval => '10min' });
	foreach my $i (1 .. 10)
	{
		my $id = query($node, "INSERT INTO asked VALUES ($i)", timeout => 60) . query($node, q(SELECT kafka.checkpoint('asked')));

		is($id, $i, "checkpoint $i");
		is(query($node, "SELECT state, records, transactions FROM kafka.checkpoints WHERE pipeline = 'asked' AND checkpoint_id = $id"),
			'committed|1|1', 'is committed and holds the record');
		holds('asked.public.asked', [ 1 .. $i ], 'so Kafka does');
	}

	# the session that has just committed
	is(query($node, q(INSERT INTO asked VALUES (11); SELECT kafka.checkpoint('asked'))), 11, 'in one session');
	holds('asked.public.asked', [ 1 .. 11 ], 'with its own commit');

	is(query($node, q(SELECT kafka.checkpoint('asked'))), 11, 'with nothing to send it is the last one');
	is(query($node, q(SELECT count(*) FROM kafka.checkpoints WHERE pipeline = 'asked')), 11, 'and none is made');
	drop('asked');
	return;
};

subtest 'wal2json#46: a transaction of 200000 rows is one Kafka transaction' => sub {
	my $rows = 200_000;
	my $count = sub {
		my ($isolation) = @_;
		my $output = '';

		IPC::Run::run([ qw(kcat -C -q -e -u -o beginning -t big.public.big -b), broker(),
				'-X', "isolation.level=$isolation", '-X', 'allow.auto.create.topics=false', '-f', '%k\n' ],
			'<', \undef, '>', \$output) or die 'kcat failed';
		return $output;
	};

	tables('big');
	create_pipeline($node, 'big', tables => ['big'], options => { envelope => 'plain' });
	my $log = -s $node->logfile;
	set_failpoint($node, 'after-flush:wait');
	query($node, "INSERT INTO big SELECT generate_series(1, $rows)");
	wait_until { logged($node, qr/fail-point "after-flush" waits/, $log) } 'the acknowledgement of all';
	is(scalar(() = $count->('read_uncommitted') =~ /\n/g), $rows, 'the broker has every record');
	is($count->('read_committed'), '', 'and nobody sees one');
	set_failpoint($node, '');
	my $keys = wait_until { $count->('read_committed') } 'the commit';
	ok($keys eq join('', map { qq({"id":$_}\n) } 1 .. $rows), 'then all at once, in order');
	is(query($node, q(SELECT checkpoint_id, transactions, records FROM kafka.checkpoints WHERE pipeline = 'big')),
		"1|1|$rows", 'by one checkpoint');
	drop('big');
	return;
};

subtest 'subtransactions: what was released counts, in order; what was rolled back never was' => sub {
	tables('sub');
	create_pipeline($node, 'sub', tables => ['sub']);
	query($node, <<'SQL');
BEGIN;
INSERT INTO sub VALUES (1);
SAVEPOINT a;
	INSERT INTO sub VALUES (-1);
	SAVEPOINT b;
		INSERT INTO sub VALUES (-2);
	RELEASE b;
ROLLBACK TO a;
	INSERT INTO sub VALUES (2);
	SAVEPOINT b;
		INSERT INTO sub VALUES (3);
		SAVEPOINT c;
			INSERT INTO sub VALUES (-3);
		ROLLBACK TO c;
		INSERT INTO sub VALUES (4);
	RELEASE b;
INSERT INTO sub VALUES (5);
DO $$
BEGIN
	FOR i IN 1 .. 200 LOOP
		BEGIN
			INSERT INTO sub VALUES (5 + i);
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'never mind';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
COMMIT;
BEGIN; INSERT INTO sub VALUES (-4); ROLLBACK;
BEGIN; SAVEPOINT a; INSERT INTO sub VALUES (-5); RELEASE a; ROLLBACK;
BEGIN; SAVEPOINT a; INSERT INTO sub VALUES (1000); PREPARE TRANSACTION 'yes';
BEGIN; SAVEPOINT a; INSERT INTO sub VALUES (-6); PREPARE TRANSACTION 'no';
INSERT INTO sub VALUES (500);
COMMIT PREPARED 'yes';
ROLLBACK PREPARED 'no';
INSERT INTO sub VALUES (2000);
SQL
	holds('sub.public.sub', [ 1 .. 5, (map { 5 + 2 * $_ - 1 } 1 .. 100), 500, 1000, 2000 ],
		'in the order of the statements and of the commits');
	my @records = consume('sub.public.sub');
	my %transactions = map { ($_ => 1) } (values_of('source.txId', @records))[ 0 .. 104 ];
	is(scalar keys %transactions, 1, 'under one transaction id');
	drop('sub');
	return;
};

subtest 'transactions arrive in the order of their commits, each whole, across tables' => sub {
	my @tables = qw(order_a order_b order_c);
	my @sessions = map { { psql => $node->background_psql('postgres'), open => [] } } 1 .. 3;
	my ($n, @expected) = (0);

	tables(@tables);
	create_pipeline($node, 'order', tables => \@tables, options => { topic_partitions => 1 });
	query($node, qq(SELECT kafka.set_table('order', '$_', '{"topic": "order.all"}'))) foreach @tables;
	foreach my $step (1 .. 200)
	{
		my $session = $sessions[ rand @sessions ];
		my $sql = @{ $session->{open} } ? '' : 'BEGIN; ';

		if (@{ $session->{open} } && rand() < 0.25)
		{
			my $commits = rand() < 0.8;

			$session->{psql}->query_safe($commits ? 'COMMIT' : 'ROLLBACK');
			push @expected, @{ $session->{open} } if $commits;
			$session->{open} = [];
			terminate_worker($node, 'order') if rand() < 0.05;
			next;
		}
		$n++;
		$session->{psql}->query_safe($sql . 'INSERT INTO ' . $tables[ rand @tables ] . " VALUES ($n)");
		push @{ $session->{open} }, $n;
	}
	foreach my $session (@sessions)
	{
		$session->{psql}->query_safe('COMMIT') if @{ $session->{open} };
		push @expected, @{ $session->{open} };
		$session->{psql}->quit;
	}
	query($node, 'INSERT INTO order_a VALUES (' . ++$n . ')');
	holds('order.all', [ @expected, $n ], scalar(@expected) . ' rows of interleaved transactions over three tables');
	drop('order');
	return;
};

subtest 'dbz#633: the counters of transaction metadata start anew with the transaction after a kill in its middle' => sub {
	tables(qw(meta_a meta_b));
	create_pipeline($node, 'meta', tables => [ 'meta_a', 'meta_b' ], options => { transaction_metadata => JSON::PP::true() });
	query($node, q(CALL kafka.pause('meta')));
	query($node, 'DO $$BEGIN FOR i IN 1 .. 150 LOOP INSERT INTO meta_a VALUES (i); INSERT INTO meta_b VALUES (i); END LOOP; END$$');

	# BEGIN is a record too
	my $log = -s $node->logfile;
	set_failpoint($node, 'after-append:exit@151');
	background_sql($node, q(CALL kafka.resume('meta')))->{run}->finish;
	wait_until { logged($node, qr/fail-point "after-append" ends/, $log) } 'a kill after 150 rows';
	is_deeply([ consume('meta.transaction') ], [], 'nothing is committed');
	set_failpoint($node, '');
	start_anew($node, 'meta');

	my @markers = consume_until('meta.transaction', 2);
	my ($id) = values_of('id', $markers[0]);
	is_deeply([ values_of('status', @markers) ], [ 'BEGIN', 'END' ], 'one BEGIN, one END');
	is_deeply([ values_of('id', @markers) ], [ $id, $id ], 'of one transaction');
	is_deeply([ values_of('event_count', @markers) ], [ undef, 300 ], '300 events');
	is_deeply(
		[ map { { %$_ } } @{ (values_of('data_collections', $markers[1]))[0] } ],
		[ map { { data_collection => "public.$_", event_count => 150 } } qw(meta_a meta_b) ],
		'150 of each table');

	my %records = map { ($_ => [ consume("meta.public.$_") ]) } qw(meta_a meta_b);
	foreach my $table (qw(meta_a meta_b))
	{
		is_deeply([ values_of('transaction.data_collection_order', @{ $records{$table} }) ], [ 1 .. 150 ],
			"$table: data_collection_order 1 .. 150");
		is_deeply([ values_of('transaction.total_order', @{ $records{$table} }) ],
			[ map { 2 * $_ - ($table eq 'meta_a' ? 1 : 0) } 1 .. 150 ], "$table: its half of total_order 1 .. 300");
		is_deeply([ grep { $_ ne $id } values_of('transaction.id', @{ $records{$table} }) ], [], "$table: in that transaction");
	}
	drop('meta');
	return;
};

done_testing();
