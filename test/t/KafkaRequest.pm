# Single requests to a broker, as another client, an administrator or a delayed packet would bring them: what Kafka's
# coordinator says of a transaction, and requests in the name of a producer that is not ours.  One broker, no security.
package KafkaRequest;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;

our @EXPORT = qw(describe_transaction end_transaction add_partition send_record take_over);

# What comes back, without its length and correlation id.
sub call
{
	my ($broker, $kind, $version, $body, $flexible) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => $broker, Timeout => 10) or die "connection to $broker: $!";
	my $request = pack('s>s>l>n/a*', $kind, $version, 7, 'test') . ($flexible ? "\0" : '') . $body;

	$socket->print(pack('N/a*', $request));
	my $answer = receive($socket, unpack 'N', receive($socket, 4));
	close $socket;
	return substr $answer, $flexible ? 5 : 4;
}

sub receive
{
	my ($socket, $length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		$socket->read($bytes, $length - length $bytes, length $bytes) or die 'no answer of the broker';
	}
	return $bytes;
}

# DescribeTransactions: { error, state, timeout, start, producer_id, epoch }; error 105: it knows no such id.
sub describe_transaction
{
	my ($broker, $id) = @_;
	my $compact = chr(length($id) + 1) . $id;
	my %found;

	die 'too long for one byte of length' if length $id > 126;
	my $bytes = call($broker, 65, 0, chr(2) . $compact . "\0", 1);

	# throttle, number of answers + 1, then this one
	@found{qw(error rest)} = unpack 'x4 x s> a*', $bytes;
	my ($id_length) = unpack 'C', $found{rest};
	my ($state_length) = unpack 'x' . $id_length . 'C', $found{rest};
	@found{qw(state timeout start producer_id epoch)} =
	  unpack 'x' . ($id_length + 1) . 'a' . ($state_length - 1) . 'l>q>q>s>', delete $found{rest};
	return \%found;
}

# EndTxn in a producer's name; returns the error, 0 is none.  As every client it asks again while the coordinator is at
# the end of the transaction (51).
sub end_transaction
{
	my ($broker, $id, $producer_id, $epoch, $commit) = @_;

	return settled(sub {
		return unpack 'x4 s>', call($broker, 26, 2, pack('n/a* q>s>c', $id, $producer_id, $epoch, $commit ? 1 : 0));
	});
}

sub settled
{
	my ($request) = @_;
	my @answer;

	foreach (1 .. 500)
	{
		@answer = $request->();
		last if $answer[0] != 51;
		select undef, undef, undef, 0.02;
	}
	return wantarray ? @answer : $answer[0];
}

# AddPartitionsToTxn in a producer's name: begins a transaction if none is open.
sub add_partition
{
	my ($broker, $id, $producer_id, $epoch, $topic, $partition) = @_;

	return settled(sub {
		return unpack 'x4 x4 n/x x4 x4 s>', call($broker, 24, 0,
			pack('n/a* q>s> l>n/a*l>l>', $id, $producer_id, $epoch, 1, $topic, 1, $partition));
	});
}

# InitProducerId, which aborts what is open: (error, producer id, epoch)
sub take_over
{
	my ($broker, $id, $timeout_ms) = @_;
	return settled(sub { return unpack 'x4 s>q>s>', call($broker, 22, 0, pack('n/a* l>', $id, $timeout_ms || 60000)); });
}

# One record of a transaction, with the first sequence number of its epoch unless told otherwise.
sub send_record
{
	my ($broker, $id, $producer_id, $epoch, $topic, $partition, $value, $sequence) = @_;
	my $record = pack('c', 0) . varint(0) . varint(0) . varint(-1) . varint(length $value) . $value . varint(0);
	my $now = time * 1000;
	my $records = varint(length $record) . $record;

	# from the attributes on: what the checksum is of
	my $body = pack('s>l>q>q>q>s>l>l>', 0x10, 0, $now, $now, $producer_id, $epoch, $sequence || 0, 1) . $records;
	my $batch = pack('q>l>l>cN', 0, 4 + 1 + 4 + length $body, -1, 2, crc32c($body)) . $body;

	return unpack 'x4 n/x x4 x4 s>', call($broker, 0, 3,
		pack('n/a* s>l>l> n/a* l>l> N/a*', $id, -1, 10000, 1, $topic, 1, $partition, $batch));
}

sub varint
{
	my ($number) = @_;
	my $zigzag = $number < 0 ? -2 * $number - 1 : 2 * $number;
	my $bytes = '';

	while ($zigzag > 127)
	{
		$bytes .= chr($zigzag & 127 | 128);
		$zigzag >>= 7;
	}
	return $bytes . chr $zigzag;
}

sub crc32c
{
	my ($bytes) = @_;
	my $crc = 0xffffffff;

	foreach my $byte (unpack 'C*', $bytes)
	{
		$crc ^= $byte;
		$crc = $crc & 1 ? $crc >> 1 ^ 0x82f63b78 : $crc >> 1 foreach 1 .. 8;
	}
	return $crc ^ 0xffffffff;
}

1;
