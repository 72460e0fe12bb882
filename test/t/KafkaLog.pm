# A partition's log as the broker keeps it: which Kafka transaction each record belongs to.
#
# No consumer tells that, so this speaks Kafka's protocol itself (Fetch version 4) and looks at the headers of the record
# batches, which name the producer, and at the control records, which end its transaction.
package KafkaLog;

use strict;
use warnings;

use IO::Socket::INET;

# KafkaLog->new($broker, $topic): of partition 0
sub new
{
	my ($class, $broker, $topic) = @_;
	return bless {
		broker  => $broker,
		topic   => $topic,
		next    => 0,     # offset
		open    => {},    # producer id => [ range, ... ] of its open transaction: [ first offset, last offset ]
		commits => {},    # producer id => how many it has committed
		of      => [],    # [ first offset, last offset, transaction ], ...: committed ones
		sorted  => 1,     # whether {of} is, by offset
	}, $class;
}

# Reads on to the end.
sub read_on
{
	my ($self) = @_;

	$self->{socket} = IO::Socket::INET->new(PeerAddr => $self->{broker}, Timeout => 10)
	  or die "connection to $self->{broker}: $!";
	1 while $self->read_batches($self->fetch);
	close delete $self->{socket};
	return;
}

# The committed transaction that holds this offset, undef if none does: "<producer id>:<number>", where the number counts
# those of its producer that wrote to this topic.
sub transaction_of
{
	my ($self, $offset) = @_;

	@{ $self->{of} } = sort { $a->[0] <=> $b->[0] } @{ $self->{of} } unless $self->{sorted};
	$self->{sorted} = 1;
	my ($low, $high) = (0, scalar @{ $self->{of} });
	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);
		my ($first, $last, $transaction) = @{ $self->{of}->[$middle] };

		return $transaction if $offset >= $first && $offset <= $last;
		if   ($offset < $first) { $high = $middle; }
		else                    { $low  = $middle + 1; }
	}
	return undef;
}

# How many are committed.
sub transactions
{
	my ($self) = @_;
	my $sum = 0;

	$sum += $_ foreach values %{ $self->{commits} };
	return $sum;
}

# Bytes of record batches from {next} on.
sub fetch
{
	my ($self) = @_;
	my $request = pack('s>s>l>n/a*', 1, 4, 0, 'test')    # Fetch, version, correlation, client
	  . pack('l>l>l>l>c', -1, 0, 0, 1 << 24, 0)          # replica, wait, minimum, maximum, read uncommitted
	  . pack('l>n/a*l>l>q>l>', 1, $self->{topic}, 1, 0, $self->{next}, 1 << 24);

	$self->{socket}->print(pack('N/a*', $request));
	my $response = $self->receive(unpack 'N', $self->receive(4));
	my (undef, undef, $topics, undef, $partitions, undef, $error, undef, undef, $rest) =
	  unpack 'l>l>l>n/a*l>l>s>q>q>a*', $response;
	die "fetch of $self->{topic} at $self->{next}: error $error" if $topics != 1 || $partitions != 1 || $error;

	# the list of aborted transactions; null when uncommitted ones are asked for
	my $aborted = unpack 'l>', $rest;
	$rest = substr $rest, 4 + ($aborted > 0 ? 16 * $aborted : 0);
	my $length = unpack 'l>', $rest;
	return $length > 0 ? substr($rest, 4, $length) : '';
}

sub receive
{
	my ($self, $length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		$self->{socket}->read($bytes, $length - length $bytes, length $bytes) or die "no answer of $self->{broker}";
	}
	return $bytes;
}

# True if there were any.
sub read_batches
{
	my ($self, $bytes) = @_;
	my $from = $self->{next};

	# the last one may be cut off
	while (length $bytes >= 61)
	{
		my ($base, $length, undef, undef, undef, $attributes, $delta, undef, undef, $producer) =
		  unpack 'q>l>l>cNs>l>q>q>q>', $bytes;
		last if length $bytes < 12 + $length;
		my $batch = substr $bytes, 0, 12 + $length, '';

		$self->{next} = $base + $delta + 1;
		if ($attributes & 0x20)
		{
			$self->end_transaction($producer, marker($batch));
		}
		elsif ($attributes & 0x10)
		{
			my $ranges = $self->{open}->{$producer} ||= [];

			if (@$ranges && $ranges->[-1]->[1] == $base - 1) { $ranges->[-1]->[1] = $base + $delta; }
			else                                             { push @$ranges, [ $base, $base + $delta ]; }
		}
	}
	return $self->{next} > $from;
}

# The type of a control batch's only record: 0 aborts, 1 commits.
sub marker
{
	my ($batch) = @_;
	my $number = qr/[\x80-\xff]*[\x00-\x7f]/;

	# after the header: length, attributes, two deltas, the key's length; the key is version and type
	substr($batch, 61) =~ /^$number.$number$number$number..(..)/s or die 'not a control record';
	return unpack 's>', $1;
}

sub end_transaction
{
	my ($self, $producer, $commit) = @_;
	my $ranges = delete $self->{open}->{$producer};

	return unless $commit && $ranges;
	my $transaction = $producer . ':' . ++$self->{commits}->{$producer};
	push @{ $self->{of} }, map { [ @$_, $transaction ] } @$ranges;
	$self->{sorted} = 0;
	return;
}

1;
