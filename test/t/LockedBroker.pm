# A broker of its own that is locked (test/kafka/secure): TLS, SASL, client certificates, and only what is granted is
# allowed.  Its PLAINTEXT listener is the administrator's.
#
#   my $locked = LockedBroker->new;
#   my %options = $locked->options('SASL_SSL');     of a server; user_mapping() makes what belongs to it
#   $locked->grant('User:shop', topic => 'shop.', 'Write');      prefixed; revoke() likewise
package LockedBroker;

use strict;
use warnings;

use Carp qw(croak);
use File::Basename qw(dirname);
use IPC::Run ();
use PostgreSQL::Test::Utils qw(slurp_file);
use KafkaRequest;
use TransactionalKafka;

our @ISA = qw(TransactionalKafka::Broker);
my @started;

my %resource  = (topic => 2, group => 3, cluster => 4, transactional_id => 5);
my %operation = (Read => 3, Write => 4, Create => 5, Describe => 8, DescribeConfigs => 10, IdempotentWrite => 12);

sub new
{
	my ($class) = @_;
	my $name = File::Basename::basename($0, '.pl');
	my $self = bless { directory => "$PostgreSQL::Test::Utils::tmp_check/${name}_locked", settings => [] }, $class;
	my $output;

	push @started, $self;
	IPC::Run::run([ dirname(__FILE__) . '/../kafka/secure', $self->{directory},
			'authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer', 'super.users=User:ANONYMOUS' ],
		'<', \undef, '>&', \$output, IPC::Run::timeout(120))
	  or croak "secure: $output";
	%{ $self->{listeners} } = slurp_file("$self->{directory}/addresses") =~ /^(\S+) (\S+)$/mg;
	$self->{address} = $self->{listeners}->{PLAINTEXT};
	return $self;
}

sub listener { my ($self, $name) = @_; return $self->{listeners}->{$name}; }
sub file     { my ($self, $name) = @_; return "$self->{directory}/$name"; }
sub text     { my ($self, $name) = @_; return slurp_file($self->file($name)); }

# How often the broker's log has it, from an offset on.
sub log_has
{
	my ($self, $pattern, $offset) = @_;
	my $log = slurp_file($self->file('log'), $offset || 0);

	return scalar(() = $log =~ /$pattern/g);
}

sub log_size { my ($self) = @_; return -s $self->file('log'); }

# What a server's options say for a listener; everything by value, as a user may who is no superuser.
sub options
{
	my ($self, $name, $mechanism) = @_;
	my %options = (
		'bootstrap.servers' => $self->listener($name),
		'security.protocol' => $name eq 'EXPIRED' ? 'sasl_ssl' : lc $name,
		'ssl.ca.pem'        => $self->text('ca.pem'));

	$options{'sasl.mechanism'} = $mechanism || 'PLAIN' if $name ne 'SSL';
	$options{'ssl.certificate.pem'} = $self->text('client.pem') if $name eq 'SSL';
	return %options;
}

# ... and its user mapping's.
sub secrets
{
	my ($self, $name, $mechanism) = @_;

	return ('ssl.key.pem' => $self->text('client.key'), 'ssl.key.password' => 'key-secret') if $name eq 'SSL';
	return ('sasl.username' => 'shop', 'sasl.password' => ($mechanism || 'PLAIN') eq 'PLAIN' ? 'plain-secret' : 'scram-secret');
}

# The server ("kafka" unless named) and its owner's user mapping, so that no log has the statement.
sub make_server
{
	my ($self, $node, $listener, %o) = @_;
	my %options = $self->options($listener, $o{mechanism});
	my %secrets = $self->secrets($listener, $o{mechanism});
	my $name = $o{name} || 'kafka';

	TransactionalKafka::create_server($node, name => $name, broker => delete $options{'bootstrap.servers'}, options => \%options);
	query($node, "SET log_statement = none; SET log_min_error_statement = panic;\n"
		  . "CREATE USER MAPPING FOR CURRENT_USER SERVER $name OPTIONS ("
		  . join(', ', map { "\"$_\" " . quote($secrets{$_}) } sort keys %secrets) . ')');
	return;
}

# ACLs: allow, for any host; with a prefix of names, or name => 1 for one.  They return once the broker goes by them.
sub acl
{
	my ($principal, $kind, $name, $operation, $literal) = @_;

	die "no ACL: $kind, $operation" if !$resource{$kind} || !$operation{$operation};
	return pack('c n/a* c n/a* n/a* c c', $resource{$kind}, $name, $literal ? 3 : 4, $principal, '*', $operation{$operation}, 3);
}

sub granted
{
	my ($self, @acl) = @_;
	my ($error, $found) = unpack 'x4 s> x2 N', KafkaRequest::call($self->{address}, 29, 1, acl(@acl));

	die "DescribeAcls: error $error" if $error;
	return $found > 0;
}

# All there are.
sub count_acls
{
	my ($self) = @_;
	my $bytes = KafkaRequest::call($self->{address}, 29, 1, pack('c n c n n c c', 1, 0xffff, 1, 0xffff, 0xffff, 1, 1));
	my ($error, $resources, $rest) = unpack 'x4 s> x2 N a*', $bytes;
	my $count = 0;

	die "DescribeAcls: error $error" if $error;
	foreach (1 .. $resources)
	{
		(my $acls, $rest) = unpack 'x n/x x N a*', $rest;
		$count += $acls;
		$rest = substr $rest, length pack('n/a* n/a*', unpack 'n/a* n/a*', $rest) . 'xx' foreach 1 .. $acls;
	}
	return $count;
}

sub grant
{
	my ($self, @acl) = @_;
	my ($error) = unpack 'x4 x4 s>', KafkaRequest::call($self->{address}, 30, 1, pack('N', 1) . acl(@acl));

	die "CreateAcls: error $error" if $error;
	wait_until { $self->granted(@acl) } "the ACL @acl", 30;
	return;
}

sub revoke
{
	my ($self, @acl) = @_;

	die "not granted: @acl" unless $self->granted(@acl);
	my ($error) = unpack 'x4 x4 s>', KafkaRequest::call($self->{address}, 31, 1, pack('N', 1) . acl(@acl));
	die "DeleteAcls: error $error" if $error;
	wait_until { !$self->granted(@acl) } "the end of the ACL @acl", 30;
	return;
}

END
{
	my $status = $?;
	$_->kill9 foreach @started;
	$? = $status;
}

1;
