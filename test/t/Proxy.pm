# A TCP proxy between a pipeline and its broker that damages chosen requests: what a network does when it is cut in one
# direction, or in the middle of something.  It knows as much of Kafka's protocol as that: a length, and the kind of
# request after it.
#
#   my $proxy = Proxy->new;                     listens at $proxy->address
#   $proxy->forward_to('127.0.0.1:9092');
#   $proxy->rule('lose-answer', 26);            from now on; returns once it is in force
#   $proxy->hits                                requests that the rule has met
#   $proxy->slow_down(1_000_000);               so many bytes a second go to the broker, over all connections; 0: as it can
#
# Rules, for requests of the given kind (KINDS in Kafka's protocol guide):
#   pass          nothing
#   lose-request  it and all after it on this connection vanish; the connection stays open (half-open)
#   lose-answer   the broker gets it, but nothing of the broker's comes back on this connection any more
#   cut-request   the broker gets the first half of it, then both sides are closed
#   cut-answer    the worker gets the first half of what comes back, then both sides are closed
#   hold-request  the first one is kept back until deliver(), and its connection is half-open; the others pass
#   hold-and-cut  likewise, but the worker's side is closed at once
#   fail-answer   Produce requests only: the broker has the records, but of one partition the worker is told an error;
#                 $proxy->rule('fail-answer', 0, $topic, $partition, $error)
#
#   $proxy->deliver           the broker gets now what was kept; returns its answers, as bytes without their length
#   $proxy->hang_up           closes all connections, half-open ones too
package Proxy;

use strict;
use warnings;

use Carp qw(croak);
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC);

sub new
{
	my ($class) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64) or die "no port: $!";
	my ($ours, $theirs);
	my $self = bless { address => '127.0.0.1:' . $listener->sockport, rule => 'pass', kind => -1, hits => 0 }, $class;

	socketpair($ours, $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
	$_->autoflush(1) foreach $ours, $theirs;
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if (!$pid)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM ALRM);
		$SIG{PIPE} = 'IGNORE';
		close $ours;
		eval { $self->serve($listener, $theirs) };
		warn $@ if $@;
		require POSIX;
		POSIX::_exit(0);    # not the tests' END blocks
	}
	close $theirs;
	close $listener;
	$self->{control} = $ours;
	return $self;
}

sub address { return $_[0]->{address}; }

# Starts a broker (as TransactionalKafka::start_broker) with one more listener, which it says is to be reached where this
# proxy listens.  $broker->address by-passes the proxy.
sub broker
{
	my ($self, @arguments) = @_;
	my $broker = TransactionalKafka::start_broker(@arguments);
	my $file   = $broker->directory . '/server.properties';
	my ($listeners) = PostgreSQL::Test::Utils::slurp_file($file) =~ /^listeners=(.*)/m;
	my $direct = $broker->address;
	my $behind = free_port();

	$broker->stop;
	PostgreSQL::Test::Utils::append_to_file($file, <<"PROPERTIES");
listeners=$listeners,PROXIED://$behind
 advertised.listeners=PLAINTEXT://$direct,PROXIED://$self->{address}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
PROPERTIES
	$broker->start;
	$self->forward_to($behind);
	return $broker;
}

# Below the range that the kernel takes ports of outgoing connections from
sub free_port
{
	foreach (1 .. 100)
	{
		my $port = 20000 + int(rand(12000));
		return "127.0.0.1:$port" if IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1);
	}
	die 'no free port';
}

# One line there, one line back.  The proxy ends when this side of the pair is closed.
sub ask
{
	my ($self, $line) = @_;
	my $control = $self->{control};

	print $control "$line\n";
	my $answer = <$control>;
	croak 'the proxy has ended' unless defined $answer;
	chomp $answer;
	return $answer;
}

sub forward_to { my ($self, $target) = @_; $self->ask("target $target"); return; }

sub rule
{
	my ($self, $rule, $kind, @of) = @_;

	$self->ask(join ' ', 'rule', $rule, defined $kind ? $kind : -1, @of);
	return;
}

sub hits { my ($self) = @_; return $self->ask('hits'); }
sub slow_down { my ($self, $rate) = @_; $self->ask("rate $rate"); return; }
sub hang_up { my ($self) = @_; $self->ask('hang_up'); return; }
sub deliver { my ($self) = @_; return map { pack 'H*', $_ } split ' ', $self->ask('deliver'); }

#
# The process
#

sub serve
{
	my ($self, $listener, $control) = @_;

	$self->{select} = IO::Select->new($listener, $control);
	for (;;)
	{
		foreach my $socket ($self->{select}->can_read)
		{
			if ($socket == $listener) { $self->accept_from($listener); }
			elsif ($socket == $control)
			{
				# commands are single lines, and answered before the next one comes
				return unless sysread $control, my $line, 1000;
				print $control $self->obey(split ' ', $line), "\n";
			}
			elsif ($self->{connection}->{$socket}) { $self->read_from($socket); }
		}
	}
}

sub obey
{
	my ($self, $command, @arguments) = @_;

	if    ($command eq 'target') { ($self->{target}) = @arguments; }
	elsif ($command eq 'rate')   { ($self->{rate})   = @arguments; }
	elsif ($command eq 'rule')
	{
		@$self{qw(rule kind)} = splice @arguments, 0, 2;
		$self->{of} = [@arguments];
		$self->{hits} = 0;
	}
	elsif ($command eq 'hang_up')
	{
		# each is in there twice
		my @all = values %{ $self->{connection} };
		$_->{client}->opened && $self->end($_) foreach @all;
	}
	elsif ($command eq 'deliver') { return join ' ', map { unpack 'H*', $self->bring($_) } splice @{ $self->{kept} }; }
	return $self->{hits};
}

# To the broker, by a way of its own; returns the answer without its length.
sub bring
{
	my ($self, $request) = @_;
	my $broker = IO::Socket::INET->new(PeerAddr => $self->{target}, Timeout => 10) or die "connection to $self->{target}: $!";
	my ($length, $answer) = (4, '');

	print $broker $request;
	while (length $answer < $length)
	{
		sysread $broker, $answer, $length - length $answer, length $answer or die 'no answer of the broker';
		$length = 4 + unpack 'N', $answer if length $answer == 4;
	}
	return substr $answer, 4;
}

sub accept_from
{
	my ($self, $listener) = @_;
	my $client = $listener->accept or return;
	my $broker = $self->{target} && IO::Socket::INET->new(PeerAddr => $self->{target}) or return;
	my $connection = { client => $client, broker => $broker, requests => '', answers => '' };

	$self->{connection}->{$_} = $connection foreach $client, $broker;
	$self->{select}->add($client, $broker);
	return;
}

sub read_from
{
	my ($self, $socket) = @_;
	my $connection = $self->{connection}->{$socket};

	return $self->end($connection) unless sysread $socket, my $bytes, 65536;
	if ($socket == $connection->{client})
	{
		# nothing else moves meanwhile: so it is the sum that is slow
		select undef, undef, undef, length($bytes) / $self->{rate} if $self->{rate};
		$self->requests($connection, $bytes);
	}
	elsif ($connection->{cut_answer})
	{
		$self->put($connection, 'client', substr $bytes, 0, length($bytes) / 2);
		$self->end($connection);
	}
	elsif (!$connection->{deaf}) { $self->answers($connection, $bytes); }
	return;
}

# Passes on whole answers, one at a time.
sub answers
{
	my ($self, $connection, $bytes) = @_;

	$connection->{answers} .= $bytes;
	while (length $connection->{answers} >= 8)
	{
		my ($length, $correlation) = unpack 'N N', $connection->{answers};

		return if length $connection->{answers} < 4 + $length;
		my $answer = substr $connection->{answers}, 0, 4 + $length, '';
		my $of = delete $connection->{to_fail}->{$correlation};
		fail_partition(\$answer, @$of) if $of;
		$self->put($connection, 'client', $answer);
	}
	return;
}

# The partition's error stands behind its number.
sub fail_partition
{
	my ($answer, $partition, $error) = @_;
	my $place = index $$answer, $partition;

	die 'not the answer that was expected' if $place < 0;
	substr $$answer, $place + length $partition, 2, pack 's>', $error;
	return;
}

# Passes on whole requests, one at a time.
sub requests
{
	my ($self, $connection, $bytes) = @_;

	$connection->{requests} .= $bytes;
	while (!$connection->{dumb} && length $connection->{requests} >= 6)
	{
		my ($length, $kind) = unpack 'N n', $connection->{requests};

		return if length $connection->{requests} < 4 + $length;
		my $request = substr $connection->{requests}, 0, 4 + $length, '';
		my $rule = $kind == $self->{kind} ? $self->{rule} : 'pass';

		my $partition = $rule eq 'fail-answer' ? only_partition($request, @{ $self->{of} }) : '';

		$rule = 'pass' if $rule eq 'fail-answer' && index($request, $partition) < 0;
		$self->{hits}++ if $rule ne 'pass';
		if ($rule eq 'cut-request')
		{
			$self->put($connection, 'broker', substr $request, 0, length($request) / 2);
			return $self->end($connection);
		}
		if ($rule eq 'lose-request')
		{
			$connection->{dumb} = 1;
			return;
		}
		if ($rule =~ /^hold-/)
		{
			push @{ $self->{kept} }, $request;
			$self->{rule} = 'pass';
			return $self->end($connection) if $rule eq 'hold-and-cut';
			$connection->{dumb} = 1;
			return;
		}
		$connection->{to_fail}->{ unpack 'x8 N', $request } = [ $partition, $self->{of}->[2] ] if $rule eq 'fail-answer';
		$connection->{deaf} = 1 if $rule eq 'lose-answer';
		$connection->{cut_answer} = 1 if $rule eq 'cut-answer';
		$self->put($connection, 'broker', $request);
	}
	$connection->{requests} = '' if $connection->{dumb};
	return;
}

# This partition as the only one, as Produce requests of the version of this one and their answers name it: a name, one
# partition, its number.  librdkafka sends one request for each.
sub only_partition
{
	my ($request, $topic, $partition) = @_;
	my $compact = unpack('x6 n', $request) >= 9;

	return $compact ? pack 'C a* C l>', 1 + length $topic, $topic, 2, $partition : pack 'n/a* l> l>', $topic, 1, $partition;
}

sub put
{
	my ($self, $connection, $side, $bytes) = @_;

	while (length $bytes)
	{
		my $n = syswrite $connection->{$side}, $bytes;
		return unless $n;    # that side has gone; its end is read soon
		substr $bytes, 0, $n, '';
	}
	return;
}

sub end
{
	my ($self, $connection) = @_;

	foreach my $side (qw(client broker))
	{
		$self->{select}->remove($connection->{$side});
		delete $self->{connection}->{ $connection->{$side} };
		close $connection->{$side};
	}
	return;
}

1;
