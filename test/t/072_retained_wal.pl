# The WAL that a pipeline keeps while it is stopped or Kafka is away: the server's log warns of it when that begins and
# while it grows, names what to do, and what happens when the slot is given up (max_slot_wal_keep_size) is undone by one
# call.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

my $broker  = start_broker('own');
my $address = $broker->address;
my $node    = new_node('main', "min_wal_size = 32MB\nmax_wal_size = 64MB\n");

create_server($node);
create_server($node, name => 'away', broker => $address);

# So many MB of WAL that nobody wants
sub write_wal
{
	my ($megabytes) = @_;

	query($node, "SELECT count(pg_logical_emit_message(false, 'filler', repeat('x', 1024 * 1024)))"
		. "FROM generate_series(1, $megabytes)");
	return;
}

my $log = 0;

# The last warning of this pipeline's WAL: (state, MB, whole text), since forget()
sub warning
{
	my ($name, $more_than) = @_;
	my $pattern = qr/WARNING:  pipeline "$name" of database "postgres" \((\w+)\) keeps (\d+) MB of WAL\n(.*\n.*)\n/;

	return wait_until {
		my @all = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log) =~ /$pattern/g;
		@all && $all[-2] > ($more_than || 0) ? [ @all[ -3 .. -1 ] ] : undef;
	}
	"a warning of $name\'s WAL", 60;
}

sub warnings_of { return logged($node, qr/WARNING:  pipeline "$_[0]" of database/, $log); }
sub forget      { $log = -s $node->logfile; return; }

sub set
{
	my ($name, $value) = @_;

	query($node, "ALTER SYSTEM SET $name = " . quote($value));
	$node->reload;
	wait_until { query($node, "SHOW $name") eq $value } "$name = $value";
	return;
}

#
# A stop says that WAL is kept
#
is(query($node, 'SHOW transactional_kafka.retained_wal_warning'), '1GB', 'by default it takes 1 GB to warn again');
table_pipeline($node, 'paused');
table_pipeline($node, 'failed');
table_pipeline($node, 'cut_off', server => 'away', broker => $address);
forget();
query($node, q{CALL kafka.pause('paused')});
wait_until
{
	logged($node, qr/WARNING:  pipeline "paused" is paused: the server keeps all WAL from its position on\n.*HINT:  .*kafka\.resume\(\).*kafka\.drop_pipeline\(\)/, $log)
}
'a warning that a pause keeps WAL';
pass('a pause says that WAL is kept, and what to do');
forget();
kafka_tool('TopicCommand', undef, '--delete', '--topic', 'failed.public.failed');
query($node, q{SELECT kafka.alter_pipeline('failed', '{"create_topics": false}')});
wait_for_state($node, 'failed', 'failed', 60);
wait_until
{
	logged($node, qr/WARNING:  pipeline "failed" has stopped \(failed\): the server keeps all WAL from its position on\n.*HINT:  .*kafka\.pipelines.*kafka\.drop_pipeline\(\)/, $log)
}
'a warning that a failure keeps WAL';
pass('a sticky state says so too');
forget();
table_pipeline($node, 'dropped');
query($node, q{CALL kafka.drop_pipeline('dropped')});
is(logged($node, qr/WARNING.*"dropped"/, $log), 0, 'a pipeline that is dropped keeps none, and says nothing');
forget();
$broker->stop;
query($node, 'INSERT INTO cut_off VALUES (2)');
wait_for_state($node, 'cut_off', 'retrying', 60);
wait_until
{
	logged($node, qr/WARNING:  pipeline "cut_off" has no answer from Kafka while .*\n.*DETAIL:  .*\n.*HINT:  .*keeps all WAL/, $log)
}
'a warning that Kafka does not answer';
pass('a pipeline that loses Kafka says so');

#
# It grows
#
is(warnings_of('\w+'), 0, 'little WAL is no matter');
set('transactional_kafka.retained_wal_warning', '8MB');
write_wal(10);
my %hints = (
	paused  => [ 'stopped',  qr/HINT:  CALL kafka\.resume\(\).*drop_pipeline.*max_slot_wal_keep_size/ ],
	failed  => [ 'failed',   qr/The pipeline says: topic .*HINT:  The view kafka\.pipelines says what to do.*drop_pipeline.*max_slot_wal_keep_size/s ],
	cut_off => [ 'retrying', qr/The pipeline says: .*Kafka.*HINT:  It goes on by itself.*drop_pipeline.*max_slot_wal_keep_size/s ]);
my %kept;
foreach my $name (sort keys %hints)
{
	my ($state, $megabytes, $text) = @{ warning($name) };
	my ($slot, $from, $really) = split /\|/, query($node, "SELECT slot_name, restart_lsn,
		pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn) / 1048576 FROM pg_replication_slots
		JOIN kafka.pipelines USING (slot_name) WHERE pipeline = '$name'");

	is($state, $hints{$name}->[0], "$name: the warning says the state");
	cmp_ok($megabytes, '>=', 8, '... more than what was set');
	cmp_ok($megabytes, '<=', $really, '... and no more than there is');
	like($text, qr/slot "$slot" needs all WAL from \Q$from\E on/, '... which slot, and from where on');
	like($text, $hints{$name}->[1], '... why, and what to do');
	$kept{$name} = $megabytes;
}

# Told again once it is twice as much, not before, however often the launcher looks
$node->reload foreach 1 .. 3;
write_wal($kept{paused} + 6);
foreach my $name (sort keys %hints)
{
	my (undef, $megabytes) = @{ warning($name, $kept{$name}) };
	cmp_ok($megabytes, '>=', 16, "$name: told again when it has doubled");
	is(warnings_of($name), 2, '... and only then');
}

# Never, if so wanted
set('transactional_kafka.retained_wal_warning', '-1');
forget();
write_wal(40);
query($node, q{SELECT kafka.alter_pipeline('cut_off', '{}')});
wait_until { logged($node, qr/ERROR:  pipeline "cut_off": Kafka failed/, $log) } 'another start of cut_off', 60;
is(warnings_of('\w+'), 0, 'with -1: never');

# What is healed is no matter any more, and what comes later is told anew
query($node, q{CALL kafka.resume('paused')});
query($node, q{INSERT INTO paused VALUES (2)});
is_sent('paused', [ 1, 2 ]);
query($node, q{CALL kafka.drop_pipeline('failed')});
wait_until
{
	query($node, 'CHECKPOINT');
	query($node, q{SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn) < 8000000 FROM pg_replication_slots
		JOIN kafka.pipelines USING (slot_name) WHERE pipeline = 'paused'}) eq 't';
}
'the slot of a pipeline that runs moves on';
set('transactional_kafka.retained_wal_warning', '8MB');
warning('cut_off', 30);
is(warnings_of('paused'), 0, 'a pipeline that runs has let its WAL go');
query($node, q{CALL kafka.drop_pipeline('paused')});

#
# Kafka stays away until the slot is given up
#
forget();
set('max_slot_wal_keep_size', '16MB');
my $id = 2;
my $insert = sub { $id++; query($node, "INSERT INTO cut_off VALUES ($id)"); };
$insert->();
write_wal(40);
query($node, 'CHECKPOINT');
is(query($node, q{SELECT wal_status FROM pg_replication_slots JOIN kafka.pipelines USING (slot_name) WHERE pipeline = 'cut_off'}),
	'lost', 'the slot of a pipeline that could not reach Kafka is given up');
$insert->();
pass('... sessions write on');
my $reason;
wait_until { ($reason = pipeline_field($node, 'cut_off', 'reason')) =~ /invalidated/ } 'the reason', 60;
is(state($node, 'cut_off'), 'retrying', '... the pipeline cannot know yet what Kafka has');
like($reason, qr/Kafka failed while .*besides, its replication slot was invalidated \(see max_slot_wal_keep_size\): it will stop as slot_lost/,
	'... but says what is lost');
$broker->start;
is_stopped($node, 'cut_off', 'slot_lost', 'its replication slot was invalidated: .*max_slot_wal_keep_size');
is(logged($node, qr/WARNING:  pipeline "cut_off" has stopped \(slot_lost\)/, $log), 1, '... and so does the log, once');
resume_stops($node, 'cut_off', 'slot_lost', 'invalidated');
is(warnings_of('cut_off'), 0, 'a lost slot keeps no WAL');
my ($status, undef, $messages) = $node->psql('postgres', q{CALL kafka.accept_position('cut_off', pg_current_wal_flush_lsn())});
is($status, 0, 'one call heals it') or diag $messages;
like($messages, qr/NOTICE:  pipeline "cut_off" gets a new replication slot\n.*Transactions that committed before it is ready and are not in Kafka are not sent/,
	'... and says what is lost');
is(state($node, 'cut_off'), 'running', '... it runs');
$insert->();
is_sent('cut_off', [ 1, $id ], broker => $address);

#
# The same while it runs: the slot is taken from a worker that waits for Kafka
#
$broker->suspend;
$insert->();
wait_for_state($node, 'cut_off', 'retrying', 60);
my $pid = worker_pid($node, 'cut_off');
write_wal(40);
query($node, 'CHECKPOINT');
is(query($node, q{SELECT wal_status FROM pg_replication_slots JOIN kafka.pipelines USING (slot_name) WHERE pipeline = 'cut_off'}),
	'lost', 'the slot of a worker that waits for Kafka is given up');
$broker->resume;
is_stopped($node, 'cut_off', 'slot_lost', 'its replication slot was invalidated');
query($node, q{CALL kafka.accept_position('cut_off', pg_current_wal_flush_lsn())});
is(state($node, 'cut_off'), 'running', 'one call heals it');
my @sent = (1, $id - 1);
$insert->();
is_sent('cut_off', [ @sent, $id ], broker => $address);

is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
