# Messages that kafka.produce() has not written.  The thief here even has the database's signing key, so that he fails
# (or not) by what is tested and by nothing else.
use strict;
use warnings;

use Digest::SHA qw(hmac_sha256);
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
my %options = (options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms', metadata_headers => 'false' });

create_server($node);
create_pipeline($node, $_, %options) foreach qw(forged forged_other);
query($node, 'CREATE DATABASE elsewhere');
create_server($node, database => 'elsewhere');
create_pipeline($node, 'forged_elsewhere', %options, database => 'elsewhere');

sub key_of
{
	my (%parameters) = @_;
	my ($id, $key) = split /\|/, query($node, q(SELECT key_id, encode(key, 'hex') FROM kafka.produce_key), %parameters);

	return { id => $id, key => pack('H*', $key) };
}

sub pipeline_id
{
	my ($name, %parameters) = @_;
	return query($node, "SELECT pipeline_id FROM kafka.pipeline WHERE name = '$name'", %parameters);
}

# The message of src/message.h, signed: message($key, pipeline_id =>, xid =>, number =>, topic =>, value =>, key_id =>).
sub message
{
	my ($key, %m) = @_;
	my $head = pack 'C N N Q> N', 1, $m{key_id} || $key->{id}, $m{pipeline_id}, $m{xid}, $m{number} || 1;
	my $tail = pack 'n/a* N N N/a* n', $m{topic}, 0xffffffff, 0xffffffff, $m{value}, 0;

	return $head . hmac_sha256($head . $tail, $key->{key}) . $tail;
}

# Writes into one transaction what the function makes of its id, and waits until all of it has been read.
sub in_a_transaction
{
	my ($make, %parameters) = @_;
	my $database = $parameters{database} || 'postgres';

	# its id is known in advance to whoever prepares it: the next one, on a server where nobody else writes
	for (1 .. 20)
	{
		my $xid = query($node, 'SELECT txid_snapshot_xmax(txid_current_snapshot())');
		my $sql = join ";\n", $make->($xid);

		next if $node->psql($database, "BEGIN;\n$sql;\nSELECT 1 / (txid_current() = $xid)::int;\nCOMMIT;") != 0;
		is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), database => $database), 't', 'read to the end') or die;
		return;
	}
	die 'others write all the time';
}

sub emit
{
	my ($bytes, $transactional) = @_;

	return sprintf q(SELECT pg_logical_emit_message(%s, 'transactional_kafka', '\x%s'::bytea)), $transactional || 'true',
	  unpack('H*', $bytes);
}

sub rejected
{
	my ($pipeline, %parameters) = @_;
	return query($node, "SELECT rejected_messages FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'", %parameters);
}

sub payloads
{
	return [ map { $_->{payload} } consume(@_) ];
}

my $key = key_of();
my %m = (pipeline_id => pipeline_id('forged'), topic => 'forged', value => 'from a thief with the key');
my $log = -s $node->logfile;

in_a_transaction(sub { emit(message($key, %m, xid => $_[0])) });
is_deeply(payloads('forged'), ['from a thief with the key'], 'the construction of this test is right: with the key it is genuine');
is(rejected('forged'), 0, '… nothing is rejected');

#
# Bit flips: each single bit of a genuine message, in its own transaction
#
my $bits;
in_a_transaction(
	sub {
		my $genuine = message($key, %m, xid => $_[0], value => 'flipped');

		$bits = 8 * length $genuine;
		return (
			sprintf(
				q(SELECT count(pg_logical_emit_message(true, 'transactional_kafka', set_bit(m, i, 1 - get_bit(m, i)))) ) .
				  q(FROM (SELECT '\x%s'::bytea AS m) g, generate_series(0, %d) i), unpack('H*', $genuine), $bits - 1),
			emit(message($key, %m, xid => $_[0], value => 'whole')));
	});
is_deeply(payloads('forged'), [ 'from a thief with the key', 'whole' ], "none of $bits messages with one bit flipped is sent");
is(rejected('forged'), $bits - 32, '… all are counted, but for those that seem to be for another pipeline (32 bits)');
# the version, the lengths of topic, key and value, the number of headers: then it is no message of any pipeline's
my $shapeless = 8 + 16 + 32 + 32 + 16;
is(rejected('forged_other'), $shapeless, '… what does not even look like a message is counted by each pipeline');

#
# Another transaction, another number, no transaction, another key
#
my $rejected = rejected('forged');
my $old;

in_a_transaction(sub { $old = message($key, %m, xid => $_[0], value => 'once'); return emit($old); });
foreach my $case (
	[ 'the bytes of an earlier transaction' => sub { $old } ],
	[ 'signed for the transaction before' => sub { message($key, %m, xid => $_[0] - 1) } ],
	[ 'signed for the next transaction' => sub { message($key, %m, xid => $_[0] + 1) } ],
	[ 'signed for that id in the next epoch' => sub { message($key, %m, xid => $_[0] + 2**32) } ],
	[ 'with number 0' => sub { message($key, %m, xid => $_[0], number => 2**32) } ],
	[ 'with another key' => sub { message({ %$key, key => "\0" x 32 }, %m, xid => $_[0]) } ],
	[ 'with an unknown id of a key' => sub { message($key, %m, xid => $_[0], key_id => 4_000_000_000) } ],
	[ 'for a pipeline that is none, but not whole' => sub { substr message($key, %m, xid => $_[0], pipeline_id => 999), 0, -1 } ])
{
	my ($what, $make) = @$case;

	in_a_transaction(sub { emit($make->(@_)) });
	is(rejected('forged'), ++$rejected, "$what: rejected");
	$rejected = rejected('forged');
}
in_a_transaction(sub { my $bytes = message($key, %m, xid => $_[0], value => 'in front'); return (emit($bytes), emit($bytes)); });
is(rejected('forged'), ++$rejected, 'the same bytes again in the same transaction: rejected');
in_a_transaction(
	sub {
		return map { emit(message($key, %m, xid => $_[0], value => "number $_", number => $_)) } 5, 4, 5, 6;
	});
is(rejected('forged'), $rejected += 2, 'numbers that do not rise: rejected');
in_a_transaction(sub { emit(message($key, %m, xid => $_[0]), 'false') });
is(rejected('forged'), ++$rejected, 'not transactional, else genuine: rejected');
in_a_transaction(
	sub {
		my $bytes = message($key, %m, xid => $_[0], value => 'rolled back');
		return ('SAVEPOINT s', emit($bytes), 'ROLLBACK TO s', emit(message($key, %m, xid => $_[0], value => 'kept', number => 2)));
	});
is(rejected('forged'), $rejected, 'what a savepoint takes back is nothing to reject');

#
# Another pipeline of this database, and one of another database: same pipeline id, same id of the key
#
in_a_transaction(sub { emit(message($key, %m, pipeline_id => pipeline_id('forged_other'), xid => $_[0], value => 'other')) });
is_deeply(payloads('forged'), [ 'from a thief with the key', 'whole', 'once', 'in front', 'number 5', 'number 6', 'kept', 'other' ],
	'a message is sent by the pipeline that it is signed for, and no other');
is(rejected('forged'), $rejected, '… nobody counts it');
is(rejected('forged_other'), $shapeless + 2, '… the other pipeline counts only what names no pipeline: not whole, not transactional');

my %elsewhere = (database => 'elsewhere');
my $key_elsewhere = key_of(%elsewhere);

is(pipeline_id('forged_elsewhere', %elsewhere) . "|$key_elsewhere->{id}", pipeline_id('forged') . "|$key->{id}",
	'in the other database both have the same numbers');
isnt($key_elsewhere->{key}, $key->{key}, '… but not the same key');
in_a_transaction(sub { emit(message($key, %m, xid => $_[0], topic => 'forged_elsewhere', value => 'foreign')) }, %elsewhere);
is(rejected('forged_elsewhere', %elsewhere), 1, "signed with another database's key: rejected");
in_a_transaction(sub { emit(message($key_elsewhere, %m, xid => $_[0], topic => 'forged_elsewhere', value => 'own')) }, %elsewhere);
is(rejected('forged_elsewhere', %elsewhere), 1, '… with its own: not');
is_deeply(payloads('forged_elsewhere'), ['own'], '… and sent');

#
# After a rotation the old key is worth nothing, not even in a worker that has known it
#
query($node, 'SELECT kafka.rotate_key()');
wait_until { query($node, q(SELECT count(*) FROM kafka.produce_key)) eq '1' } 'the end of the old key';
in_a_transaction(sub { emit(message($key, %m, xid => $_[0], value => 'signed with a stolen key')) });
is(rejected('forged'), 1 + $rejected, 'signed with a key that was rotated away: rejected');

# The topic that holds a pipeline's position is not written even with a genuine signature.
my $progress = pipeline_field($node, 'forged', 'progress_topic');
in_a_transaction(sub { emit(message(key_of(), %m, xid => $_[0], topic => $progress)) });
is(rejected('forged'), 2 + $rejected, 'for the progress topic: rejected');
is(state($node, 'forged') . state($node, 'forged_other'), 'runningrunning', 'both run');

# Many of them, one line a minute
my $lines = logged($node, qr/LOG:  pipeline "forged" ignored a message/, $log);
cmp_ok($lines, '>=', 1, 'it is logged');
cmp_ok($lines, '<', 10, "… but not each of " . rejected('forged') . ' times');

done_testing();
