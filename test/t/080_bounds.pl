# Large and many: transactions that are larger than any checkpoint, a value of 64 MB, a thousand tables, thousands of
# temporary tables beside a pipeline, a broker that is slow.  All arrives once, in order, whole; a transaction of
# PostgreSQL is never cut, however large; the worker's memory has a bound; the worker is the same to the end.
#
# TK_SCALE: 1 = the sizes that are spoken of here ("make bounds"); without it the same in small.  What is measured is
# printed, not judged; memory is judged in both.
use strict;
use warnings;

use IPC::Run ();
use MIME::Base64 qw(decode_base64);
use Digest::MD5 qw(md5_hex);
use POSIX ();
use Test::More;
use TransactionalKafka;
use KafkaLog;
use Proxy;

use constant MB => 1024 * 1024;

my $scale = $ENV{TK_SCALE} || 0.02;
my $rows  = 5_000_000 * $scale;
my $bound = 150;                                   # MB of private memory
my $ticks = POSIX::sysconf(&POSIX::_SC_CLK_TCK);
my $groups = 0;

my $proxy  = Proxy->new;
my $broker = $proxy->broker('behind');
my $direct = $broker->address;
my $node   = new_node('main', "max_wal_size = 4GB\nmax_locks_per_transaction = 256\n");
create_server($node, broker => $direct);
create_server($node, name => 'slow', broker => $proxy->address);

#
# What the tests below share
#

# Private memory of a process, in MB; of one that has gone, 0
sub memory
{
	my ($pid) = @_;

	open my $status, '<', "/proc/$pid/status" or return 0;
	foreach my $line (<$status>)
	{
		return $1 / 1024 if $line =~ /^RssAnon:\s+(\d+) kB/;
	}
	return 0;
}

# CPU seconds of a process with all its threads, or of one thread; and of the children that it has buried
sub cpu
{
	my ($pid, $thread) = @_;
	my ($rest) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/" . ($thread ? "task/$thread/" : '') . 'stat') =~ /\) (.*)/s;
	my @field = split ' ', $rest;
	my ($own, $children) = map { ($field[$_] + $field[ $_ + 1 ]) / $ticks } 11, 13;

	return wantarray ? ($own, $children) : $own;
}

# Runs statements in a session, one transaction each; returns the most memory that the pipeline's worker had meanwhile.
sub peak_during
{
	my ($pipeline, @statements) = @_;
	my $pid  = worker_pid($node, $pipeline);
	my $peak = 0;
	my ($output, $errors) = ('', '');
	my $session = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), map { ('-c', $_) } @statements ],
		'<', \undef, '>', \$output, '2>', \$errors);

	wait_until
	{
		my $now = memory($pid);
		$peak = $now if $now > $peak;
		$session->pump_nb;
		!$session->pumpable;
	}
	"the end of @statements", 600;
	$session->finish or die "@statements: $errors";
	return $peak;
}

# SQL that waits until Kafka has all of the pipeline; for psql with the statements that make it
sub awaiting_all
{
	my ($pipeline) = @_;
	return "DO \$\$ BEGIN ASSERT kafka.wait_for(pipeline => '$pipeline', timeout => '10min'); END \$\$";
}

# Calls a function for each record of a topic (or of all that match a ^pattern) with its fields: "%k %s" and the like.
# Fields must not contain tabs.
sub each_record
{
	my ($topic, $fields, $function, @settings) = @_;
	my @from = $topic =~ /^\^/ ? ('-G', "bounds.$$." . ++$groups, $topic) : ('-C', '-t', $topic, '-o', 'beginning');

	open my $kcat, '-|', 'kcat', '-b', $direct, '-q', '-e', '-u', '-f', join("\t", @$fields) . '\n',
	  '-X', 'isolation.level=read_committed', '-X', 'auto.offset.reset=earliest', map({ ('-X', $_) } @settings), @from
	  or die "kcat: $!";
	my $n = 0;
	while (my $line = <$kcat>)
	{
		chomp $line;
		$n++;
		$function->(split /\t/, $line, -1);
	}
	close $kcat or die "kcat failed: $?";
	return $n;
}

# One test: the only partition of a topic holds rows 1 to $last, as a function makes them of their number: each once, in
# order, whole.  Their offsets go to a list.
sub holds
{
	my ($topic, $last, $row, $name, $offsets) = @_;
	my $next = 1;
	my $wrong;

	each_record($topic, [ '%k', '%s', '%o' ],
		sub {
			my ($key, $value, $offset) = @_;
			my $whole = $row->($next);

			$offsets->[$next] = $offset if $offsets;

			# what debezium adds says when it was made
			$wrong ||= "record $next is: $key $value"
			  unless $key eq qq({"id":$next}) && ($value eq $whole || index($value, qq({"before":null,"after":$whole,)) == 0);
			$next++;
		});
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($wrong || 'records up to ' . ($next - 1), "records up to $last", $name);
}

# The worker that began is the one that is there, and nothing went wrong.
my %worker;

sub begun
{
	my ($pipeline) = @_;
	wait_for_state($node, $pipeline, 'running');
	$worker{$pipeline} = worker_pid($node, $pipeline);
	return;
}

sub undisturbed
{
	my ($pipeline) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(
		query($node, "SELECT state, pid, failures FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'"),
		"running|$worker{$pipeline}|0", "$pipeline: the same worker, without a failure");
}

sub checkpoints
{
	my ($pipeline) = @_;
	return query($node, "SELECT checkpoints FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'");
}

#
# Transactions that are larger than a checkpoint
#
# Of each subtransaction that went to disk PostgreSQL has 4096 changes in memory while it decodes: 50 of those of rows as
# here are 50 MB.
#
foreach my $kind ([ 'large', "$rows rows" ], [ 'nested', '50 subtransactions of ' . $rows / 50 . ' rows' ])
{
	my ($name, $what) = @$kind;
	my $topic  = "$name.public.$name";
	my $each   = $rows / 50;
	my $pad    = 'p' x 60;
	my $insert = "INSERT INTO $name SELECT i, (i - 1) / $each, '$pad' FROM";

	query($node, "CREATE TABLE $name (id int PRIMARY KEY, of int, pad text)");
	create_pipeline($node, $name,
		tables  => [$name],
		options => {
			envelope => $name eq 'large' ? 'debezium' : 'plain', topic_partitions => 1,
			checkpoint_interval => '20ms', checkpoint_max_records => 1000, checkpoint_max_bytes => '1MB'
		});
	begun($name);
	my $peak = peak_during($name,
		$name eq 'large' ? "$insert generate_series(1, $rows) i"
		: "DO \$\$ BEGIN FOR s IN 0 .. 49 LOOP BEGIN $insert generate_series(s * $each + 1, (s + 1) * $each) i; "
		  . 'EXCEPTION WHEN division_by_zero THEN RAISE; END; END LOOP; END $$',
		awaiting_all($name));
	cmp_ok($peak, '<=', $bound, sprintf '%s: %.0f MB of private memory', $what, $peak);
	diag(sprintf '%s: %.0f MB of private memory', $what, $peak);
	holds($topic, $rows, sub { return qq({"id":$_[0],"of":) . int(($_[0] - 1) / $each) . qq(,"pad":"$pad"}); },
		"$what: each once, in order, whole");

	my $log = KafkaLog->new($direct, $topic);
	$log->read_on;
	is($log->transactions, 1, "$what: one Kafka transaction");
	is($log->transaction_of($rows - 1), $log->transaction_of(0), '... which holds them all');

	query($node, "INSERT INTO $name VALUES (0, 0, '')");
	query($node, awaiting_all($name));
	$log->read_on;
	is($log->transactions, 2, '... and what comes next is another one');
	undisturbed($name);
	query($node, "CALL kafka.drop_pipeline('$name')");
	query($node, "DROP TABLE $name");
}

#
# A broker that is slower than the WAL: what waits for it waits in the WAL, not in memory.
#
{
	# Those that PostgreSQL decodes from disk and those that it has in memory; of both, more than librdkafka's queue holds
	# by either of its bounds, with headers: all that can be full is, at a time.
	my @sizes = (90_000, 50_000, 50_000) x ($scale < 1 ? 1 : 3);
	my $what  = 'a slow broker';
	my $pad   = 'p' x 440;
	my ($last, @first, @insert, @offset) = (0);

	foreach my $size (@sizes)
	{
		push @first, $last + 1;
		$last += $size;
		push @insert, "INSERT INTO slow SELECT i, '$pad' FROM generate_series($first[-1], $last) i";
	}
	query($node, 'CREATE TABLE slow (id int PRIMARY KEY, pad text)');
	create_pipeline($node, 'slow',
		server  => 'slow',
		tables  => ['slow'],
		options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '1s' });
	begun('slow');
	$proxy->slow_down(10 * MB);
	my $peak = peak_during('slow', @insert,
		q{DO $$ BEGIN ASSERT NOT kafka.wait_for(pipeline => 'slow', timeout => '0'); END $$},
		awaiting_all('slow'));
	cmp_ok($peak, '<=', $bound, sprintf '%s: commits don\'t wait for it, and it takes %.0f MB of private memory', $what, $peak);
	diag(sprintf '%s: %.0f MB of private memory', $what, $peak);
	holds('slow.public.slow', $last, sub { return qq({"id":$_[0],"pad":"$pad"}); },
		"$what: transactions of @sizes rows: each row once, in order, whole", \@offset);
	my $log = KafkaLog->new($direct, 'slow.public.slow');
	$log->read_on;
	foreach my $i (0 .. $#sizes)
	{
		is($log->transaction_of($offset[ $first[$i] + $sizes[$i] - 1 ]), $log->transaction_of($offset[ $first[$i] ]) || 'one',
			"... the one from row $first[$i] on in one Kafka transaction");
	}
	undisturbed('slow');
	$proxy->slow_down(0);
	query($node, q{CALL kafka.drop_pipeline('slow')});
}

#
# A value of 64 MB
#
{
	my $size = 64 * MB * $scale > 2 * MB ? int(64 * MB * $scale) : 2 * MB;
	my $what = sprintf 'a value of %.0f MB', $size / MB;
	my $value =
	  "(SELECT string_agg(decode(md5(i::text), 'hex'), '') FROM generate_series(1, ($size + 15) / 16) i)";

	create_server($node, name => 'large', broker => $direct);
	query($node, 'CREATE TABLE value (id int PRIMARY KEY, v bytea)');
	create_pipeline($node, 'value',
		server  => 'large',
		tables  => ['value'],
		options => {
			envelope     => 'plain', topic_partitions => 1,
			# Kafka's own default; the tests' broker has less
			topic_config => { 'segment.bytes' => '1073741824' }
		});
	begun('value');
	query($node, $_) foreach q{INSERT INTO value VALUES (1, 'small')}, awaiting_all('value'), "INSERT INTO value VALUES (2, $value)",
	  q{INSERT INTO value VALUES (3, 'small')};

	# each of the limits on its way, from near to far
	is_stopped($node, 'value', 'failed',
		qr/topic "value\.public\.value": a record of table "public\.value" \(key \{"id":2\}\) of \d+ bytes is larger than message\.max\.bytes/);
	query($node, q{ALTER SERVER large OPTIONS (ADD "message.max.bytes" '100000000')});
	query($node, q{ALTER SERVER large OPTIONS (ADD "queue.buffering.max.kbytes" '1024')});
	$node->psql('postgres', q{CALL kafka.resume('value')});
	is_stopped($node, 'value', 'failed',
		qr/topic "value\.public\.value": a record of table "public\.value" \(key \{"id":2\}\) of \d+ bytes is larger than queue\.buffering\.max\.kbytes/);
	query($node, q{ALTER SERVER large OPTIONS (DROP "queue.buffering.max.kbytes")});
	$node->psql('postgres', q{CALL kafka.resume('value')});
	is_stopped($node, 'value', 'failed',
		qr/topic "value\.public\.value": a record of table "public\.value" \(key \{"id":2\}\) of \d+ bytes is larger than max\.message\.bytes/);
	my @keys;
	each_record('value.public.value', ['%k'], sub { push @keys, @_ });
	is("@keys", '{"id":1}', "$what: what comes after it waits for it");

	kafka_tool('ConfigCommand', $direct, '--alter', '--entity-type', 'topics', '--entity-name', 'value.public.value',
		'--add-config', 'max.message.bytes=100000000');
	query($node, q{CALL kafka.resume('value')});
	begun('value');
	my $peak = peak_during('value', awaiting_all('value'), "INSERT INTO value SELECT 4, v FROM value WHERE id = 2", awaiting_all('value'));

	my @seen;
	each_record('value.public.value', ['%s'],
		sub {
			my ($id, $v) = $_[0] =~ /^\{"id":(\d+),"v":"([^"]*)"\}$/;
			push @seen, "$id " . md5_hex(decode_base64($v));
		},
		'fetch.message.max.bytes=100000000', 'receive.message.max.bytes=200000000');
	is(join("\n", @seen), query($node, q{SELECT id || ' ' || md5(v) FROM value ORDER BY id}), "$what: once, in order, whole");

	# As pieces in WAL (1), put together (1), as text (2), in pgoutput's message (2), in the record as base64 (4/3), and
	# librdkafka's copy of that (4/3): at worst all at once, and for a moment.
	cmp_ok($peak, '<=', $bound + 9 * $size / MB, sprintf '%s: %.0f MB of private memory', $what, $peak);
	diag(sprintf '%s: %.0f MB of private memory', $what, $peak);
	undisturbed('value');
	my $after = peak_during('value', q{INSERT INTO value VALUES (5, 'small')}, awaiting_all('value'));
	cmp_ok($after, '<=', $bound, sprintf '%s: %.0f MB of private memory afterwards', $what, $after);
	diag(sprintf '%s: %.0f MB of private memory afterwards', $what, $after);
	query($node, q{CALL kafka.drop_pipeline('value')});
}

#
# A thousand tables
#
{
	my $n = 1000 * $scale > 20 ? 1000 * $scale : 20;
	my $rounds = $scale < 1 ? 100 : 300;
	my $measure = sub {
		my ($what, $script) = @_;
		my $pid = $worker{many};
		my $cpu = sub { return (scalar(cpu($pid)), scalar(cpu($pid, $pid)), checkpoints('many')); };
		my @before = $cpu->();

		$node->safe_psql('postgres', $script);
		my @after = $cpu->();
		my ($all, $main, $checkpoints) = map { $after[$_] - $before[$_] } 0 .. 2;
		diag(sprintf '%d tables, %s: %.0f us of CPU a checkpoint, %.0f in the main thread (%d checkpoints)',
			$n, $what, 1e6 * $all / $checkpoints, 1e6 * $main / $checkpoints, $checkpoints);
		return;
	};
	my $insert = sub { my ($table) = @_; return "INSERT INTO many_$table VALUES (nextval('many_id'));\n"; };
	my $sent   = "SELECT kafka.wait_for(pipeline => 'many');\n";

	query($node, 'CREATE SEQUENCE many_id');
	query($node, join '', map { "CREATE TABLE many_$_ (id int PRIMARY KEY, note text);\n" } 1 .. $n);
	my $begin = time;
	create_pipeline($node, 'many',
		tables  => [ map { "many_$_" } 1 .. $n ],
		options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '0' });
	begun('many');
	diag(sprintf '%d tables: pipeline and topics made in %d s', $n, time - $begin);

	$measure->('one of them touched, always the same', join '', map { $insert->(1) . $sent } 1 .. $rounds);
	$measure->('one of them touched, another each time', join '', map { $insert->($_ % $n + 1) . $sent } 1 .. $rounds);
	$measure->('all of them touched', join '',
		map { "BEGIN;\n" . join('', map { $insert->($_) } 1 .. $n) . "COMMIT;\n" . $sent } 1 .. 3);
	my $peak = peak_during('many', awaiting_all('many'));
	cmp_ok($peak, '<=', $bound, sprintf '%d tables: %.0f MB of private memory', $n, $peak);

	my %seen;
	each_record('^many\.public\.many_', [ '%t', '%k' ], sub { push @{ $seen{ $_[0] } }, $_[1]; });
	my %want;
	push @{ $want{"many.public.$_->[0]"} }, qq({"id":$_->[1]})
	  foreach map { [ split /\|/ ] } split /\n/,
	  query($node, join(' UNION ALL ', map { "SELECT 'many_$_', id FROM many_$_" } 1 .. $n) . ' ORDER BY 2');
	is_deeply(\%seen, \%want, "$n tables: all rows, each once, in order");
	undisturbed('many');
	query($node, q{CALL kafka.drop_pipeline('many')});
}

#
# Temporary tables, by many sessions at once
#
{
	my $sessions = 8;
	my $rounds   = $scale < 1 ? 2 : 5;
	my $each     = $scale < 1 ? 20 : 10_000 / ($sessions * 2 * $rounds);    # of each kind, in a round
	my $offset   = -s $node->logfile;
	my %script   = (
		'ON COMMIT DROP' => 'BEGIN; CREATE TEMP TABLE x (id int PRIMARY KEY, note text) ON COMMIT DROP; '
		  . q{INSERT INTO x VALUES (1, 'x'); INSERT INTO beside (note) VALUES ('x'); COMMIT;},
		'DROP TABLE' => 'CREATE TEMP TABLE x (id int PRIMARY KEY, note text); '
		  . q{INSERT INTO beside (note) VALUES ('x'); DROP TABLE x;});
	my %cost;

	query($node, 'CREATE TABLE beside (id serial PRIMARY KEY, note text)');
	create_pipeline($node, 'beside',
		tables => ['beside'], options => { envelope => 'plain', topic_partitions => 1 });
	begun('beside');
	my ($postmaster) = split /\n/, PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid');
	my $before_all = cpu($worker{beside});
	my $before_main = cpu($worker{beside}, $worker{beside});
	my $peak = 0;
	my $transactions = 0;
	foreach my $round (1 .. $rounds)
	{
		foreach my $kind (sort keys %script)
		{
			foreach my $triggers ($round % 2 ? ('ENABLE', 'DISABLE') : ('DISABLE', 'ENABLE'))
			{
				my $file = "$PostgreSQL::Test::Utils::tmp_check/temporary.pgbench";
				my $output;

				query($node, "ALTER EVENT TRIGGER transactional_kafka_$_ $triggers") foreach 'drop', 'alter';
				unlink $file;
				PostgreSQL::Test::Utils::append_to_file($file, $script{$kind} =~ s/; */;\n/gr);
				my $before = (cpu($postmaster))[1];
				ok(IPC::Run::run([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', $sessions, '-t', $each,
							'-f', $file, 'postgres' ], '<', \undef, '>&', \$output, IPC::Run::timeout(300)),
					"$sessions sessions, each with $each temporary tables ($kind), event triggers: $triggers") or diag($output);
				wait_until { query($node, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'}) eq '0' }
				'the end of the sessions';
				$cost{$kind}->{$triggers} += 1e6 * ((cpu($postmaster))[1] - $before) / ($sessions * $each * $rounds);
				$transactions += $sessions * $each;
			}
		}
	}
	query($node, "ALTER EVENT TRIGGER transactional_kafka_$_ ENABLE") foreach 'drop', 'alter';
	$peak = peak_during('beside', awaiting_all('beside'));
	cmp_ok($peak, '<=', $bound, sprintf 'temporary tables: %.0f MB of private memory', $peak);
	diag(sprintf 'temporary table, %s: %.0f us of CPU with event triggers, %.0f without (%+.1f %%)',
		$_, @{ $cost{$_} }{qw(ENABLE DISABLE)}, 100 * ($cost{$_}->{ENABLE} / $cost{$_}->{DISABLE} - 1)) foreach sort keys %script;
	diag(sprintf 'temporary tables: %.0f us of CPU each in the worker, %.0f in its main thread',
		map { 1e6 * $_ / $transactions } cpu($worker{beside}) - $before_all,
		cpu($worker{beside}, $worker{beside}) - $before_main);

	my (@ids, $last, $disorder);
	each_record('beside.public.beside', [ '%k', '%h' ],
		sub {
			my ($key, $headers) = @_;
			my ($lsn) = $headers =~ /pg\.lsn=(\d+)/;
			$disorder ||= "$key at $lsn comes after $last" if defined $last && $lsn <= $last;
			$last = $lsn;
			push @ids, $key =~ /(\d+)/;
		});
	is($disorder, undef, 'temporary tables beside: what is published comes in the order of commits');
	is(join(' ', sort { $a <=> $b } @ids), query($node, q{SELECT string_agg(id::text, ' ' ORDER BY id) FROM beside}),
		'... each row once');
	is(scalar(@ids), $transactions, '... of each transaction');
	is(logged($node, qr/ERROR:|FATAL:|deadlock/, $offset), 0, '... no error, no deadlock');
	undisturbed('beside');

	# What makes them cheap does not hide what matters: in a transaction that dropped temporary tables before, and after
	# an event trigger that drops something itself
	my $drop = 'BEGIN; CREATE TEMP TABLE x (id int); DROP TABLE x; DROP SERVER kafka; COMMIT;';
	my $is_kept = sub {
		my ($name) = @_;
		my $errors;
		$node->psql('postgres', $drop, stderr => \$errors);
		return like($errors, qr/cannot drop server kafka because pipeline "beside" uses it/, $name);
	};
	$is_kept->('a server in use is kept, by a transaction that has dropped temporary tables too');
	query($node, <<'SQL');
CREATE FUNCTION drop_once() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('test.nested', true) IS DISTINCT FROM 'on' THEN
		PERFORM set_config('test.nested', 'on', true);
		CREATE TEMP TABLE y (id int);
		DROP TABLE y;
		PERFORM set_config('test.nested', 'off', true);
	END IF;
END $$;
CREATE EVENT TRIGGER a_first ON sql_drop EXECUTE FUNCTION drop_once();
SQL
	$is_kept->('... and after an event trigger that does the same');
	query($node, 'DROP EVENT TRIGGER a_first');
}

is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
