# ACLs: README's are enough and each of them is needed; what is missing stops the pipeline, by name, and nothing is tried
# again and again meanwhile.
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run ();
use Test::More;
use KafkaRequest;
use LockedBroker;
use TransactionalKafka;

my $locked  = LockedBroker->new;
my $address = $locked->address;
my $node    = new_node('main');
my $readme  = PostgreSQL::Test::Utils::slurp_file(dirname(__FILE__) . '/../../README.md');
my ($section) = $readme =~ /^### The way to Kafka\n(.*?)^### /ms;
my ($prefix_sql) = $section =~ /^```sql\n(SELECT.*?)^```/ms;
my ($commands)   = $section =~ /^```sh\n(.*?)^```/ms;

$locked->make_server($node, 'SASL_SSL', name => 'events');
query($node, 'CREATE TABLE shop (id int PRIMARY KEY)');
my $prefix = query($node, $prefix_sql);
my @transactions = ('User:shop', transactional_id => "$prefix.shop.");
my @progress     = ('User:shop', topic => "$prefix.shop.");
my @topics       = ('User:shop', topic => 'shop.');
my $progress     = qr/topic "\Q$prefix\E\.shop\.\w+\.progress"/;
my $next         = 0;

# What the authorizer denied from an offset of its log on, but for the group of which librdkafka asks.
sub denied
{
	my ($offset) = @_;
	my $log = PostgreSQL::Test::Utils::slurp_file($locked->file('log'), $offset);

	return grep { !/Group:/ } $log =~ /Principal = (User:\S+ is Denied operation = \S+ .* on resource = \S+)/g;
}

# The pipeline has stopped, says what is missing, and lets the broker alone.
sub lacks
{
	my ($what, $reason, $log, $broker_log) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_stopped($node, 'shop', 'failed', $reason);
	is(pipeline_field($node, 'shop', 'hint'), q(Grant it in Kafka's ACLs, then CALL kafka.resume().), "$what: ... that says what to do");
	cmp_ok(logged($node, qr/ERROR:  pipeline "shop" stops as failed: not authorized while .*$reason/, $log), '>=', 1, '... in the log as well');
	is(logged($node, qr/WARNING:  pipeline "shop" has stopped \(failed\)/, $log), 1, '... once');
	my @denied = denied($broker_log);
	note join "\n", @denied;
	cmp_ok(scalar @denied, '>=', 1, '... the broker has denied it');

	# librdkafka asks for what it does not know all the time while there is a handle
	cmp_ok(scalar @denied, '<=', 10, '... a few times');
	return;
}

# Without that ACL the pipeline stops as soon as it sends something.
sub needs
{
	my ($what, $acl, $reason, $trigger) = @_;
	my ($log, $broker_log) = (-s $node->logfile, $locked->log_size);

	$locked->revoke(@$acl);
	$next++;
	query($node, $trigger || "INSERT INTO shop VALUES ($next)");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	lacks($what, $reason, $log, $broker_log);
	return;
}

# A start needs it as well
sub start_needs
{
	my ($what, $reason) = @_;
	my ($log, $broker_log) = (-s $node->logfile, $locked->log_size);
	my $errors;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	isnt($node->psql('postgres', q(CALL kafka.resume('shop')), stderr => \$errors), 0, "$what: resume() fails");
	like($errors, qr/pipeline "shop" has stopped \(failed\): .*$reason/, '... and says why');
	lacks($what, $reason, $log, $broker_log);
	return;
}

sub heals
{
	my ($what, $acl) = @_;

	$locked->grant(@$acl);
	query($node, q(CALL kafka.resume('shop')));
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', "$what: it heals once that is granted");
	my @rows = split /\n/, query($node, 'SELECT id FROM shop ORDER BY id');
	is_sent('shop', \@rows, broker => $address) if @rows;
	return;
}

# Nothing is granted
my ($log, $broker_log, $errors) = (-s $node->logfile, $locked->log_size);
isnt($node->psql('postgres', q(CALL kafka.create_pipeline('shop', 'events', tables => '{shop}')), stderr => \$errors), 0, 'no ACL: create_pipeline fails');
like($errors, qr/has stopped \(failed\): not authorized .*$progress.*Describe on the topic/, '... and says what is missing first');
lacks('no ACL', qr/$progress.*needs the ACL Describe on the topic/, $log, $broker_log);

# README's, as written there
my $output;
my $jars = $ENV{KAFKA_JARS};
my $tool = "kafka-acls.sh() { java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '$jars/*' org.apache.kafka.tools.AclCommand \"\$@\"; }\n";
my $properties = PostgreSQL::Test::Utils::tempdir();
PostgreSQL::Test::Utils::append_to_file("$properties/admin.properties", '');
IPC::Run::run([ 'bash', '-euc', "cd $properties\nprefix=$prefix broker=$address\n$tool$commands" ], '<', \undef, '>&', \$output, IPC::Run::timeout(120))
  or die "README's ACLs: $output";
my @given = ([ @transactions, 'Write' ], (map { [ @progress, $_ ] } qw(Write Read Create DescribeConfigs)), map { [ @topics, $_ ] } qw(Write Create DescribeConfigs));
is(scalar(grep { $locked->granted(@$_) } @given), 8, 'README grants eight');
is($locked->count_acls, 8, '... and no more');

# A new topic needs Create, at its first start
$locked->revoke(@progress, 'Create');
start_needs('Create, progress topic', qr/creating $progress.*needs the ACL Create on the topic/);
$locked->grant(@progress, 'Create');
$locked->revoke(@topics, 'Create');
start_needs('Create', qr/creating topic "shop\.public\.shop".*needs the ACL Create on the topic/);
($broker_log) = ($locked->log_size);
heals('Create', [ @topics, 'Create' ]);
query($node, q(INSERT INTO shop VALUES (0); SELECT kafka.produce('shop.audit', 'x'); SELECT kafka.wait_for()));
is_sent('shop', [0], broker => $address);
is(query($node, q(SELECT count(*) FROM kafka.kafka_transactions WHERE state IS NOT NULL)), 2, 'its transactions are listed');
query($node, q(CALL kafka.pause('shop'); CALL kafka.resume('shop')));
is_deeply([ denied($broker_log) ], [], 'with README\'s ACLs nothing is denied');
$locked->revoke(@$_) foreach [ @progress, 'Create' ], [ @topics, 'Create' ];
query($node, q(CALL kafka.pause('shop'); CALL kafka.resume('shop')));
is(state($node, 'shop'), 'running', 'Create is not needed where the topics are there');

# Nor is to know the tables' topics' limits
$locked->revoke(@topics, 'DescribeConfigs');
query($node, q(CALL kafka.pause('shop'); CALL kafka.resume('shop')));
is(state($node, 'shop'), 'running', 'without DescribeConfigs on the tables\' topics it runs as well');
$locked->grant(@topics, 'DescribeConfigs');

# Each of the others
needs('Write', [ @topics, 'Write' ], qr/topic "?shop\.public\.shop.*needs the ACL Write on the topic/);
start_needs('Write, at the start', qr/topic "shop\.public\.shop".*needs the ACL Describe on the topic/);
heals('Write', [ @topics, 'Write' ]);
needs('Write, progress topic', [ @progress, 'Write' ], qr/$prefix\.shop\.\w+\.progress.*needs the ACL Write on the topic/);
heals('Write, progress topic', [ @progress, 'Write' ]);
needs('Write, transactional id', [ @transactions, 'Write' ], qr/transactional id "\Q$prefix\E\.shop\.\d+".*needs the ACL Write on the transactional id/);
start_needs('Write, transactional id, at the start', qr/transactional id "\Q$prefix\E\.shop\.\d+".*needs the ACL Write on the transactional id/);
heals('Write, transactional id', [ @transactions, 'Write' ]);
needs('Read, progress topic', [ @progress, 'Read' ], qr/reading $progress.*needs the ACL Read on the topic/, q(SELECT kafka.alter_pipeline('shop', '{}')));
heals('Read, progress topic', [ @progress, 'Read' ]);
needs('DescribeConfigs, progress topic', [ @progress, 'DescribeConfigs' ], qr/configuration of $progress.*needs the ACL DescribeConfigs on the topic/, q(SELECT kafka.alter_pipeline('shop', '{}')));
heals('DescribeConfigs, progress topic', [ @progress, 'DescribeConfigs' ]);
is(logged($node, qr/PANIC|terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
