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

#
# Kafka: not there, not found, refusing
#
my $broker = start_broker('own');
my $address = $broker->address;
my $node = new_node('main', "log_min_messages = info\nmax_worker_processes = 12\n");
my $log = sub { PostgreSQL::Test::Utils::slurp_file($node->logfile) };

create_server($node);
query($node, 'CREATE TABLE t (id int PRIMARY KEY, note text)');
create_pipeline($node, 'bad_good', tables => ['t'], options => { envelope => 'plain' });

$broker->kill9;
create_server($node, name => 'down', broker => $address);
create_server($node, name => 'unresolved', broker => 'kafka.invalid:9092');
my $started = time;
my ($result, $message) = attempt($node,
	q(CALL kafka.create_pipeline('bad_down', 'down', tables => '{t}', options => '{"envelope": "plain"}')));
is($result, 'success', 'the broker is down: create_pipeline returns');
like($message, qr/WARNING:  pipeline "bad_down" captures changes, but has not reached Kafka yet.*DETAIL:.*refused.*HINT:  It goes on trying/s,
	'… with a warning that says why');
cmp_ok(time - $started, '<', 15, '… in bounded time');
($result, $message) = attempt($node, q(CALL kafka.create_pipeline('bad_name', 'unresolved', tables => '{t}')));
is($result, 'success', 'a name that does not resolve');
like($message, qr/WARNING:.*kafka\.invalid/s, '… is named in the warning');
query($node, q(INSERT INTO t VALUES (1, 'one')));
ok(query($node, q(SELECT kafka.wait_for(pipeline => 'bad_good', timeout => '30s'))) eq 't',
	'the other pipeline goes on');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'bad_down', timeout => '10ms'))), 'f',
	'what Kafka does not have is not reported as there');
fails($node, q(SELECT kafka.checkpoint('bad_down', '10ms')), qr/checkpoint of pipeline "bad_down" was not committed within the timeout/,
	'checkpoint() says that too');
wait_for_state($node, 'bad_down', 'retrying', 20);
like(pipeline_field($node, 'bad_down', 'reason'), qr/progress topic.*refused/, 'the view says why');

# No tight loop: between two failures there is a start of some seconds and a pause that doubles.
my $failures = sub { query($node, "SELECT failures FROM kafka.stat_pipelines WHERE pipeline = 'bad_down'") };
my $n = $failures->();
my $since;
wait_until { $failures->() > $n } 'the first failure from now on', 60;
$since = time;
wait_until { $failures->() > $n + 1 } 'one more failure', 60;
cmp_ok(time - $since, '>', 4, 'starts are seconds apart');
my $lines = () = $log->() =~ /bad_down/g;
cmp_ok($lines, '<', 15 * ($n + 3), 'each writes a handful of log lines');

$broker->start;
is($broker->address, $address, 'the broker comes back where it was');
is_deeply([ map { $_->{payload} } consume_until('bad_down.public.t', 1, broker => $address, timeout => 60) ],
	['{"id":1,"note":"one"}'], '… and all arrives without anybody doing anything');
wait_for_state($node, 'bad_down', 'running', 20);
is(pipeline_field($node, 'bad_down', "coalesce(reason, '') || coalesce(hint, '')"), '', 'the reason is gone with it');

# The unresolved name is corrected.
query($node, qq(ALTER SERVER unresolved OPTIONS (SET "bootstrap.servers" '$address')));
($result, $message) = attempt($node, q(CALL kafka.resume('bad_name')));
is("$result $message", 'success ', 'a corrected server option is in force after resume');
query($node, "CALL kafka.drop_pipeline('$_')") foreach 'bad_name', 'bad_down';

#
# Topics
#
fails($node, q(CALL kafka.create_pipeline('bad_topics', 'kafka', options => '{"create_topics": false}')),
	qr/pipeline "bad_topics" has stopped \(failed\): topic "pg\.\d+\.\d+\.bad_topics\.\w+\.progress" does not exist.*HINT:  Create the topic.*resume/s,
	'create_topics => false names the missing progress topic');
query($node, q(CALL kafka.drop_pipeline('bad_topics')));
create_topic('bad_topic.progress', { 'cleanup.policy' => 'compact' });
fails($node, q(CALL kafka.create_pipeline('bad_topic', 'kafka', tables => '{t}',
	options => '{"create_topics": false, "progress_topic": "bad_topic.progress", "envelope": "plain"}')),
	qr/pipeline "bad_topic" has stopped \(failed\): .*topic "bad_topic\.public\.t".*HINT:  .*resume/s, 'create_topics => false names the missing topic of a table');
is(pipeline_field($node, 'bad_topic', 'state'), 'failed', '… and the pipeline stays stopped');
query($node, q(INSERT INTO t VALUES (2, 'two')));
like($log->(), qr/WARNING:  pipeline "bad_topic" has stopped \(failed\): the server keeps all WAL/, '… with a warning in the log');
fails($node, q(SELECT kafka.wait_for(pipeline => 'bad_topic')), qr/pipeline "bad_topic" has stopped \(failed\)/, 'wait_for does not wait for it');
create_topic('bad_topic.public.t');
query($node, q(CALL kafka.resume('bad_topic')));
is_deeply([ map { $_->{payload} } consume_until('bad_topic.public.t', 1) ], ['{"id":2,"note":"two"}'],
	'it goes on after resume, and nothing is lost');
query($node, q(CALL kafka.drop_pipeline('bad_topic')));

# A transaction timeout that the broker does not allow
fails($node, q(CALL kafka.create_pipeline('bad_timeout', 'kafka', options => '{"transaction_timeout": "1h"}')),
	qr/pipeline "bad_timeout" has stopped \(failed\): .*timeout/s, 'a transaction_timeout over the broker\'s limit');
query($node, q(SELECT kafka.alter_pipeline('bad_timeout', '{"transaction_timeout": null}')));
query($node, q(CALL kafka.resume('bad_timeout')));
is(pipeline_field($node, 'bad_timeout', 'state'), 'running', '… heals');
query($node, q(CALL kafka.drop_pipeline('bad_timeout')));

# A record that is larger than the client may send, one that is larger than the topic takes
create_server($node, name => 'small', options => { 'message.max.bytes' => 100000 });
create_pipeline($node, 'bad_large', tables => ['t'], server => 'small', options => { envelope => 'plain' });
query($node, q(INSERT INTO t VALUES (3, 'before'); INSERT INTO t VALUES (4, repeat('x', 200000)); INSERT INTO t VALUES (5, 'after')));
wait_for_state($node, 'bad_large', 'failed', 30);
like(pipeline_field($node, 'bad_large', "reason || ' ' || hint"), qr/bad_large\.public\.t.*message\.max\.bytes/s,
	'a record over message.max.bytes: the topic and the option are named');
unlike(pipeline_field($node, 'bad_large', 'reason'), qr/xxx/, '… without the record');
query($node, q(ALTER SERVER small OPTIONS (SET "message.max.bytes" '1000000')));
query($node, q(CALL kafka.resume('bad_large')));
is_deeply([ map { length $_->{payload} } consume_until('bad_large.public.t', 3) ], [ 24, 200018, 23 ],
	'… nothing is lost or twice once it is allowed');
query($node, q(CALL kafka.drop_pipeline('bad_large')));

create_topic('bad_limit.public.t', { 'max.message.bytes' => 50000 });
create_pipeline($node, 'bad_limit', tables => ['t'], options => { envelope => 'plain' });
query($node, q(UPDATE t SET note = repeat('y', 100000) WHERE id = 5));
wait_for_state($node, 'bad_limit', 'failed', 30);
like(pipeline_field($node, 'bad_limit', "reason || ' ' || hint"), qr/bad_limit\.public\.t.*max\.message\.bytes/s,
	'a record that the broker refuses as too large: likewise');
query($node, q(CALL kafka.drop_pipeline('bad_limit')));

#
# create_pipeline waits for an open writer, says for which one, and can be cancelled.
#
my $writer = $node->background_psql('postgres');
my ($xid) = $writer->query_safe('BEGIN; INSERT INTO t VALUES (100, NULL); SELECT pg_current_xact_id()') =~ /(\d+)/;
my $waiting = background($node, q(CALL kafka.create_pipeline('bad_wait', 'kafka', tables => '{t}', options => '{"envelope": "plain"}')));
says($waiting, qr/NOTICE:  pipeline "bad_wait" waits for transaction $xid to end\s+DETAIL:  It is running in process \d+/, 'the notice');
pass('create_pipeline says which transaction it waits for');
my $pid = query($node, q(SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL kafka.create%' AND state = 'active'));
query($node, "SELECT pg_cancel_backend($pid)");
says($waiting, qr/ERROR:  canceling statement/, 'the cancelled call');
$waiting->{run}->finish;
pass('it can be cancelled');
isnt(pipeline_field($node, 'bad_wait', 'state'), 'running', '… the definition stays, not started');
$writer->query_safe('COMMIT');
wait_for_state($node, 'bad_wait', 'running', 30);
query($node, 'INSERT INTO t VALUES (101, NULL)');
is_deeply([ map { $_->{payload} } consume_until('bad_wait.public.t', 1) ], ['{"id":101,"note":null}'],
	'… and starts by itself when the transaction is over; that is not half in Kafka');
$writer->quit;
query($node, q(CALL kafka.drop_pipeline('bad_wait')));

#
# No secret anywhere, even with all of librdkafka's debugging
#
query($node, qq(CREATE SERVER secret FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" '$address', debug 'all',
	"security.protocol" 'sasl_plaintext', "sasl.mechanism" 'PLAIN')));
query($node, q(SET log_statement = none; SET log_min_error_statement = panic;
	CREATE USER MAPPING FOR CURRENT_USER SERVER secret OPTIONS ("sasl.username" 'shop', "sasl.password" 'Open-Sesame-42')));
($result, $message) = attempt($node, q(CALL kafka.create_pipeline('bad_secret', 'secret')));
my $views = query($node, "SELECT p::text FROM kafka.pipelines p") . query($node, "SELECT p::text FROM kafka.stat_pipelines p")
  . query($node, "SELECT p::text FROM kafka.pipeline_state p");
like($log->(), qr/librdkafka.*bad_secret/, 'debug lines are in the log');
unlike($log->(), qr/Open-Sesame/, 'no secret in the log');
unlike("$message $views", qr/Open-Sesame/, '… nor in messages and views');
query($node, q(CALL kafka.drop_pipeline('bad_secret')));

#
# No free worker process
#
my $free = query($node, q(SELECT current_setting('max_worker_processes')::int - count(*) FROM pg_stat_activity
	WHERE backend_type ~ 'transactional_kafka|logical replication launcher'));
my @fillers = map { "bad_fill$_" } 1 .. $free;
create_pipeline($node, $_) foreach @fillers;
fails($node, q(CALL kafka.create_pipeline('bad_worker', 'kafka')),
	qr/no free background worker slot for pipeline "bad_worker".*is defined and starts.*HINT:  Raise max_worker_processes/s,
	'all worker slots are in use');
is(pipeline_field($node, 'bad_worker', 'state'), 'retrying', '… the definition stays');
query($node, "CALL kafka.pause('bad_fill1')");
wait_for_state($node, 'bad_worker', 'running', 40);
pass('… and starts when one is free');

#
# A standby
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
foreach my $call (@calls)
{
	next if $call =~ /wait_for|checkpoint/;
	fails($standby, $call, qr/cannot execute \w+\(\) during recovery/, "standby: $call");
}
fails($standby, q(SELECT kafka.wait_for()), qr/cannot execute wait_for\(\) during recovery/, 'standby: wait_for');
fails($standby, q(SELECT kafka.checkpoint('bad_good')), qr/cannot execute checkpoint\(\) during recovery/, 'standby: checkpoint');
ok(query($standby, q(SELECT count(*) FROM kafka.pipelines)) > 0, 'standby: the views work');
is(query($standby, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%')), 0,
	'standby: no pipeline runs');
$standby->stop;
is(query($node, q(SELECT kafka.wait_for(pipeline => 'bad_good', timeout => '30s'))), 't', 'the good pipeline has run all the time');
is(pipeline_field($node, 'bad_good', 'state'), 'running', '… and still does');
unlike($log->(), qr/PANIC|was terminated by signal/, 'no process of the server has crashed');

done_testing();
