# Bad input and bad luck: each gets an error that a DBA can act on, nothing else is harmed, and it heals.
use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run ();
use Test::More;
use Time::HiRes qw(time);
use TransactionalKafka;

# What psql says to a command that may fail: ("success" or "failure", its messages).
sub attempt
{
	my ($node, $sql, $database) = @_;
	my ($errors, $output) = ('', '');
	my $status = $node->psql($database || 'postgres', $sql, stdout => \$output, stderr => \$errors);

	return ($status == 0 ? 'success' : 'failure', $errors);
}

sub fails
{
	my ($node, $sql, $pattern, $name) = @_;
	my ($result, $message) = attempt($node, $sql);

	is($result, 'failure', $name);
	like($message, $pattern, '… with a message that helps');
	return;
}

# A command in the background; its handle has { in, out, err, run }.
sub background
{
	my ($node, $sql) = @_;
	my %b = (in => "$sql;\n\\q\n", out => '', err => '');

	$b{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-v', 'ON_ERROR_STOP=1' ],
		'<', \$b{in}, '>', \$b{out}, '2>', \$b{err});
	return \%b;
}

sub says
{
	my ($b, $pattern, $what) = @_;
	wait_until { $b->{run}->pump_nb; $b->{err} =~ $pattern } $what;
	return;
}

# An address where nobody listens.
sub closed_port
{
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die "no port: $!";
	my $port = $socket->sockport;
	close $socket;
	return "127.0.0.1:$port";
}

#
# A server that lacks something
#
my $poor = new_node('poor', "shared_preload_libraries = ''\nwal_level = replica\n");
query($poor, 'CREATE EXTENSION transactional_kafka; CREATE TABLE t (id int PRIMARY KEY)');
create_server($poor, broker => closed_port());
my @calls = (
	q(CALL kafka.create_pipeline('bad', 'kafka')), q(CALL kafka.drop_pipeline('bad')),
	q(CALL kafka.pause('bad')), q(CALL kafka.resume('bad')),
	q(SELECT kafka.alter_pipeline('bad', '{}')), q(SELECT kafka.set_table('bad', 't', '{}')),
	q(SELECT kafka.checkpoint('bad')), q(SELECT kafka.wait_for()));
foreach my $call (@calls)
{
	fails($poor, $call, qr/must be loaded via shared_preload_libraries.*HINT:  Add transactional_kafka to shared_preload_libraries/s,
		"not preloaded: $call");
}
is(query($poor, 'SELECT count(*) FROM kafka.pipelines, kafka.stat_pipelines, kafka.checkpoints'), 0,
	'not preloaded: the views work');

$poor->append_conf('postgresql.conf', "shared_preload_libraries = 'transactional_kafka'");
$poor->restart;
fails($poor, $calls[0], qr/requires wal_level = logical.*HINT:  Set wal_level to logical/s, 'wal_level = replica');

# Slots: all in use
$poor->append_conf('postgresql.conf', "wal_level = logical\nmax_replication_slots = 1\n");
$poor->restart;
query($poor, q(SELECT pg_create_physical_replication_slot('taken')));
fails($poor, $calls[0], qr/all replication slots are in use.*max_replication_slots/s, 'no free replication slot');
is(pipeline_field($poor, 'bad', 'state'), 'retrying', '… the definition stays and is tried again');
query($poor, q(SELECT pg_drop_replication_slot('taken')));
wait_until { pipeline_field($poor, 'bad', 'reason') =~ /progress topic/ } 'the pipeline has its slot and misses Kafka';
pass('… and gets its slot once there is one');
query($poor, q(CALL kafka.drop_pipeline('bad')));
$poor->stop;
done_testing();
