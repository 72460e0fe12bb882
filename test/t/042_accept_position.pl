# accept_position(): the operator's answer to diverged, fenced and slot_lost.  It goes on exactly from where it is told.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
create_server($node);

# A pipeline with one row in Kafka, paused, and one that is not in Kafka yet
sub make
{
	my ($name) = @_;

	query($node, "CREATE TABLE $name (id int PRIMARY KEY)");
	create_pipeline($node, $name, tables => [$name]);
	query($node, "INSERT INTO $name VALUES (1)");
	query($node, "SELECT kafka.checkpoint('$name')");
	query($node, "CALL kafka.pause('$name')");
	my $sent = query($node, "SELECT max(end_lsn) FROM kafka.checkpoints WHERE pipeline = '$name'");
	query($node, "INSERT INTO $name VALUES (2)");
	return $sent;
}

sub stops_as
{
	my ($name, $state) = @_;
	my ($status, undef, $stderr) = $node->psql('postgres', "CALL kafka.resume('$name')");

	isnt($status, 0, "$name does not start");
	like($stderr, qr/has stopped \($state\).*accept_position/s, "… as $state, and the hint names the way out");
	return;
}

sub accept_position
{
	my ($name, $lsn) = @_;
	my ($status, undef, $stderr) = $node->psql('postgres', "CALL kafka.accept_position('$name', $lsn)");

	is($status, 0, "$name: a position is accepted") or diag $stderr;
	is(state($node, $name), 'running', '… and the pipeline runs');
	return $stderr;
}

sub holds
{
	my ($name, $ids, $what) = @_;

	query($node, "INSERT INTO $name VALUES (3)");
	query($node, "SELECT kafka.checkpoint('$name')");
	my @got = values_of('after.id', consume_until("$name.public.$name", sub { grep { $_ == 3 } values_of('after.id', @_) }));
	is_deeply(\@got, $ids, "$name: $what");
	terminate_worker($node, $name);
	wait_for_state($node, $name, 'running');
	query($node, "INSERT INTO $name VALUES (4)");
	query($node, "SELECT kafka.checkpoint('$name')");
	@got = values_of('after.id', consume_until("$name.public.$name", sub { grep { $_ == 4 } values_of('after.id', @_) }));
	is_deeply(\@got, [ @$ids, 4 ], '… and it stands the next start');
	return;
}

sub write_progress
{
	my ($name, $change) = @_;
	my $topic   = pipeline_field($node, $name, 'progress_topic');
	my $payload = (consume($topic))[-1]->{payload};
	my $input;

	$change->(\$payload);
	$input = "progress|$payload\n";
	IPC::Run::run([ 'kcat', '-P', '-b', broker(), '-t', $topic, '-K', '|' ], '<', \$input) or die 'kcat -P failed';
	return;
}

# Kafka is ahead of what this server knows: go on from what was sent
my $sent = make('acc_ahead');
write_progress('acc_ahead', sub { ${ $_[0] } =~ s/"checkpoint":\d+/"checkpoint":77/ or die });
stops_as('acc_ahead', 'diverged');
is(accept_position('acc_ahead', "'$sent'"), '', 'nothing is skipped or repeated by the position sent last');
holds('acc_ahead', [ 1, 2, 3 ], 'nothing is lost, nothing twice');
cmp_ok(query($node, q(SELECT max(checkpoint_id) FROM kafka.checkpoints WHERE pipeline = 'acc_ahead')), '>', 78,
	'its checkpoints are above all that were');

# Another instance was here: take over, and skip what is not wanted
make('acc_fenced');
write_progress('acc_fenced', sub { ${ $_[0] } =~ s/"instance":"\d+"/"instance":"12345"/ or die });
stops_as('acc_fenced', 'fenced');
like(accept_position('acc_fenced', 'pg_current_wal_flush_lsn()'), qr/NOTICE:  transactions that committed between .* are skipped/,
	'a later position says what it skips');
holds('acc_fenced', [ 1, 3 ], '… and does');

# The progress record can't be read: what was sent is sent again, if the slot still has it
$sent = make('acc_garbage');
write_progress('acc_garbage', sub { ${ $_[0] } = 'garbage' });
stops_as('acc_garbage', 'diverged');
accept_position('acc_garbage', "'$sent'");
holds('acc_garbage', [ 1, 2, 3 ], 'an unreadable record is stepped over');

# The slot is gone: what committed without one is lost, and it is said so
make('acc_lost');
query($node, q(SELECT pg_drop_replication_slot(slot_name) FROM kafka.pipelines WHERE pipeline = 'acc_lost'));
stops_as('acc_lost', 'slot_lost');
like(accept_position('acc_lost', 'pg_current_wal_flush_lsn()'), qr/NOTICE:  pipeline "acc_lost" gets a new replication slot/,
	'a new slot is announced');
holds('acc_lost', [ 1, 3 ], 'it goes on behind the gap');

# What it is not for
foreach my $case (
	[ "'acc_lost', pg_current_wal_flush_lsn()", qr/"acc_lost" does not ask for a position/, 'a pipeline that runs' ],
	[ "'acc_lost', 'FFFF\/0'", qr/position FFFF\/0 is not in this server's WAL/, 'a position beyond the WAL' ],
	[ "'acc_lost', NULL", qr/lsn must not be null/, 'no position' ],
	[ "'acc_none', '0\/1'", qr/pipeline "acc_none" does not exist/, 'no pipeline' ])
{
	my ($arguments, $error, $name) = @$case;
	my ($status, undef, $stderr) = $node->psql('postgres', "CALL kafka.accept_position($arguments)");

	like($stderr, $error, "refused: $name");
}

done_testing();
