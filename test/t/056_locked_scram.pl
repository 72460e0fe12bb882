# SCRAM-SHA-512 over TLS: with a librdkafka that can do it (2.6.1 on) all works, the re-drive too; with an older one the
# pipeline says that this may be the reason, and goes on by itself on the day it gets a newer one.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use LockedBroker;
use TransactionalKafka;

my $locked  = LockedBroker->new;
my $address = $locked->address;
my $node    = new_node('main', "log_min_messages = debug1\n");
my $secret  = qr/scram-secret|Open-Sesame/;

# The system's, and the one that test/install has fetched if that is too old
my ($major, $minor, $patch) = `kcat -V` =~ /librdkafka (\d+)\.(\d+)\.(\d+)/ or die 'which librdkafka?';
my $old = $major < 2 || $major == 2 && ($minor < 6 || $minor == 6 && $patch < 1);
my $newer = $ENV{TK_NEWER_LIBRDKAFKA};
die 'a newer librdkafka is missing: run test/install' if $old && !$newer;

$locked->grant('User:shop', transactional_id => 'pg.', 'Write');
$locked->grant('User:shop', topic => 'pg.', $_) foreach qw(Write Read Create DescribeConfigs);
$locked->grant('User:shop', topic => 'scram', $_) foreach qw(Write Create);
$locked->make_server($node, 'SASL_SSL', mechanism => 'SCRAM-SHA-512');
query($node, q(ALTER SERVER kafka OPTIONS (ADD debug 'security,conf,generic'); CREATE TABLE scram (id int PRIMARY KEY)));

my $refused = qr/Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512/;
my $hint = qr/\(or because librdkafka is older than 2\.6\.1: its SCRAM is refused by brokers from 4\.0 on\)/;

sub mapping
{
	my ($action) = @_;

	query($node, "SET log_statement = none; SET log_min_error_statement = panic; ALTER USER MAPPING FOR CURRENT_USER SERVER kafka OPTIONS ($action)");
	return;
}

create_pipeline($node, 'scram', tables => ['scram']);
query($node, 'INSERT INTO scram VALUES (1)');
SKIP:
{
	skip "librdkafka $major.$minor.$patch can do it", 3 unless $old;
	is(state($node, 'scram'), 'retrying', "librdkafka $major.$minor.$patch: the broker refuses it");
	like(pipeline_field($node, 'scram', 'reason'), qr/$refused.*$hint/, '... the reason says what else it may be than the password');
	is(query($node, 'SELECT count(*) FROM kafka.kafka_transactions'), 0, '... connections of our own are let in with the same password');

	# What an upgrade of the library does
	$node->stop;
	local $ENV{LD_LIBRARY_PATH} = $newer;
	$node->start;
}
is_sent('scram', [1], broker => $address);
is(state($node, 'scram'), 'running', 'with a newer one the pipeline runs');
ok(logged($node, qr/librdkafka v(?!$major\.$minor\.$patch )\d+\.\d+\.\d+ /), '... it is another one') if $old;

# A wrong password is only that
my $log = -s $node->logfile;
mapping(q(SET "sasl.password" 'Open-Sesame'));
wait_until { logged($node, qr/ERROR:  pipeline "scram": Kafka failed .*$refused/, $log) } 'a wrong password', 30;
is(logged($node, $hint, $log), 0, 'a wrong password is said, without talk of librdkafka');
mapping(q(SET "sasl.password" 'scram-secret'));
query($node, 'INSERT INTO scram VALUES (2)');
is_sent('scram', [ 1, 2 ], broker => $address);

# The re-drive
$log = -s $node->logfile;
set_failpoint($node, 'after-prepare-commit:wait');
query($node, 'INSERT INTO scram VALUES (3)');
wait_until { logged($node, qr/fail-point "after-prepare-commit" waits/, $log) } 'a prepared checkpoint', 30;
my $id = query($node, q(SELECT checkpoint_id FROM kafka.checkpoints WHERE state = 'prepared'));
query($node, q(ALTER SYSTEM SET transactional_kafka.failpoints = ''));
terminate_worker($node, 'scram');
set_failpoint($node, '');
is_sent('scram', [ 1 .. 3 ], broker => $address);
wait_for_state($node, 'scram', 'running');
is(query($node, "SELECT state, attempt, outcome FROM kafka.checkpoints WHERE checkpoint_id = $id"), 'committed|1|redriven', 're-drive');

# The password changes on the other side while the pipeline runs, and its connections break
sub await_refusals
{
	my ($n, $offset) = @_;

	wait_until { logged($node, qr/ERROR:  pipeline "scram": Kafka failed .*$refused/, $offset) >= $n } "failure $n", 60;
	return;
}
kafka_tool('ConfigCommand', $address, '--alter', '--add-config', 'SCRAM-SHA-512=[password=Open-Sesame-2]', '--entity-type', 'users',
	'--entity-name', 'shop');
$log = -s $node->logfile;
my $broker_log = $locked->log_size;
$locked->restart;
query($node, 'INSERT INTO scram VALUES (4)');
await_refusals(1, $log);
my $first = $locked->log_has(qr/Failed authentication/, $broker_log);
await_refusals(3, $log);
my $attempts = $locked->log_has(qr/Failed authentication/, $broker_log);
note "$first attempts to the first failure, $attempts to the third";
cmp_ok($first, '>=', 1, 'a password that the broker has changed: refused');
cmp_ok($attempts, '<=', 20, '... by a few attempts only');
is(state($node, 'scram'), 'retrying', '... and the pipeline tries again');
mapping(q(SET "sasl.password" 'Open-Sesame-2'));
is_sent('scram', [ 1 .. 4 ], broker => $address);

my $whole = PostgreSQL::Test::Utils::slurp_file($node->logfile);
like($whole, qr/librdkafka, pipeline "scram": .*SASL SCRAM client in state.*librdkafka, pipeline "scram": .*CONF: +sasl\.password = \[redacted\]/s, 'the log has what librdkafka\'s debugging says of SCRAM');
unlike($whole, $secret, '... without the password');
is(logged($node, qr/PANIC|terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
