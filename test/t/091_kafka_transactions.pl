# What Kafka's transaction coordinator says of our transactional ids, and the end of a transaction that no live pipeline
# owns: consumers go on, and whatever was ended arrives once all the same.
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
create_server($node);
my $prefix = 'pg.'
  . query($node, 'SELECT system_identifier FROM pg_control_system()') . '.'
  . query($node, q(SELECT oid FROM pg_database WHERE datname = 'postgres'));

sub id { my ($name, $i) = @_; return "$prefix.$name.$i"; }

sub transactions
{
	my ($columns, $where, %parameters) = @_;
	return query($node, "SELECT $columns FROM (SELECT * FROM kafka.kafka_transactions WHERE $where ORDER BY transactional_id) t", %parameters);
}

sub end_transaction
{
	my ($id, $commit, $role) = @_;
	my ($output, $errors) = ('', '');

	$node->psql(
		'postgres',
		"\\set VERBOSITY verbose\n" . ($role ? "SET ROLE $role;\n" : '') . 'SELECT kafka.end_transaction(' . quote($id) . ", $commit)",
		stdout => \$output, stderr => \$errors);
	return wantarray ? ($output, $errors) : $output;
}

sub refuses
{
	my ($id, $commit, $sqlstate, $pattern, $name, $role) = @_;
	my ($output, $errors) = end_transaction($id, $commit, $role);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($output, '', "$name: refused");
	like($errors, qr/ERROR:  $sqlstate: .*$pattern/s, '… and says why');
	return;
}

# A row whose checkpoint is held at the fail-point; what is open in Kafka then.
sub hold
{
	my ($name, $row, $point) = @_;
	my $log = -s $node->logfile;

	set_failpoint($node, "$point:wait");
	query($node, "INSERT INTO $name VALUES ($row)");
	wait_until { logged($node, qr/fail-point "$point" waits/, $log) } "the worker at $point";
	return transactions('transactional_id', "pipeline = '$name' AND state = 'Ongoing'");
}

# The same, and then the worker dies, and the server with it, while somebody pauses the pipeline: nobody is there any
# more to end it.
sub leave_open
{
	my ($name, $row, $point) = @_;
	my $id = hold($name, $row, $point);
	my $pause = background_sql($node, "CALL kafka.pause('$name')");

	wait_until { query($node, "SELECT enabled FROM kafka.pipeline WHERE name = '$name'") eq 'f' } 'a request to pause';
	kill 'KILL', worker_pid($node, $name);
	await_crash($node);
	$pause->{run}->finish;
	clear_failpoint($node);
	$node->start;
	is(state($node, $name), 'stopped', "$name: the pipeline does not run");
	is(transactions('transactional_id, state, orphan', "pipeline = '$name' AND state = 'Ongoing'"), "$id|Ongoing|f",
		'… and its Kafka transaction is open');
	return $id;
}

# A record of somebody else's, which stands behind an open transaction.
my $strangers = 0;
sub write_behind
{
	my ($topic) = @_;
	my $record = 'stranger ' . ++$strangers;

	IPC::Run::run([ qw(kcat -P -b), broker(), '-t', $topic, '-p', '0' ], '<', \$record) or die 'kcat failed';
	return $record;
}

sub payloads { my ($topic, %o) = @_; return map { $_->{payload} } consume($topic, %o); }

# Ids of the rows in the pipeline's topic, in order; strangers are left out.
sub rows_of
{
	my ($name) = @_;
	return join ' ', values_of('after.id', grep { $_->{payload} !~ /^stranger/ } consume("$name.public.$name"));
}

#
# The view
#
ok(table_pipeline($node, 'shop'), 'a pipeline');
is(transactions('transactional_id, orphan, producer_id IS NOT NULL, producer_epoch >= 0, timeout', "pipeline = 'shop'"),
	join("\n", map { id('shop', $_) . '|f|t|t|00:15:00' } 0, 1), 'both transactional ids of a pipeline are listed');
wait_until { transactions('state', "pipeline = 'shop'") eq "CompleteCommit\nCompleteCommit" } 'the markers of all transactions';
is(transactions('started_at, age', "pipeline = 'shop'"), "|\n|", 'nothing is open');

my $id = hold('shop', 2, 'after-flush');
like($id, qr/^\Q$prefix\E\.shop\.[01]$/, 'a checkpoint that is held: one transaction is open');
is( transactions(
		q(server, state, partitions, orphan, age > '0', age < timeout, started_at BETWEEN now() - interval '10min' AND clock_timestamp()),
		"transactional_id = '$id'"),
	'kafka|Ongoing|2|f|t|t|t', '… its topic and the progress topic take part, it has its age');
refuses($id, 'false', '55006', qr/transactional id "\Q$id\E" is in use by pipeline "shop"\nDETAIL:  The pipeline's state is "running".*\nHINT: .*CALL kafka.pause\('shop'\) first/,
	'a running pipeline\'s transaction is not aborted');
refuses($id, 'true', '55006', qr/transactional id "\Q$id\E" is in use by pipeline "shop"/, '… nor committed');
set_failpoint($node, '');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', '… the pipeline ends it itself');
wait_until { transactions('count(*)', q(state = 'Ongoing')) eq '0' } 'no open transaction';

#
# Others
#
query($node, q(CREATE ROLE stranger; CREATE ROLE owner REPLICATION; CREATE ROLE monitor IN ROLE pg_monitor;
	GRANT USAGE ON FOREIGN SERVER kafka TO owner; CREATE TABLE theirs (id int PRIMARY KEY); ALTER TABLE theirs OWNER TO owner));
query($node, q(SET SESSION AUTHORIZATION owner; CALL kafka.create_pipeline('theirs', 'kafka', tables => '{theirs}')));
is(query($node, 'SET ROLE stranger; SELECT count(*) FROM kafka.kafka_transactions'), 0, 'a stranger sees nothing');
is(query($node, 'SET ROLE owner; SELECT DISTINCT pipeline FROM kafka.kafka_transactions'), 'theirs', 'a pipeline\'s owner sees its transactions');
is(query($node, 'SET ROLE monitor; SELECT DISTINCT pipeline FROM kafka.kafka_transactions ORDER BY 1'), "shop\ntheirs", 'pg_monitor sees all');
refuses(id('shop', 0), 'false', '42501', qr/must be owner of pipeline "shop"/, "$_ is not the owner", $_) foreach qw(stranger owner monitor);

refuses('elsewhere.0', 'false', '22023', qr/transactional id "elsewhere.0" is not one of this database's pipelines\nDETAIL: .*"\Q$prefix\E"/, 'an id of somebody else\'s');
refuses("${prefix}1.shop.0", 'false', '22023', qr/transactional id .* is not one of this/, 'an id of another database\'s');
refuses("$prefix.shop", 'false', '22023', qr/transactional id .* is not one of this/, 'an id without a number');
refuses(id('never', 0), 'false', '55000', qr/transactional id .* has no open transaction\nDETAIL:  Kafka does not know this/, 'an id that was never used');
foreach my $arguments ('NULL, false', "'x', NULL")
{
	my (undef, undef, $errors) = $node->psql('postgres', "SELECT kafka.end_transaction($arguments)");
	like($errors, qr/transactional_id and commit must not be null/, "end_transaction($arguments)");
}
foreach my $mode ('ISOLATION LEVEL REPEATABLE READ', 'READ ONLY')
{
	my (undef, undef, $errors) = $node->psql('postgres', "BEGIN $mode; SELECT kafka.end_transaction('x', false)");
	like($errors, qr/ERROR: .*end_transaction\(\)/, "not in a transaction with $mode");
}

#
# What a stopped pipeline has left open
#
is(query($node, q(CALL kafka.pause('theirs'))), '', 'another pipeline is paused');
refuses(id('theirs', 0), 'false', '55000', qr/transactional id .* has no open transaction\nDETAIL:  Its coordinator says: (CompleteCommit|CompleteAbort|Empty)\./, 'a paused pipeline\'s id without an open transaction');

# not prepared: aborted, and sent again
$id = leave_open('shop', 3, 'after-flush');
my $record = write_behind('shop.public.shop');
ok(!(grep { $_ eq $record } payloads('shop.public.shop')), '… consumers wait for its end');
refuses($id, 'true', '55000', qr/the transaction of transactional id .* can't be committed\nDETAIL:  It is not that of a prepared checkpoint.*\nHINT: .*kafka.end_transaction\('\Q$id\E', false\)/, 'what is not prepared');
is(end_transaction($id, 'false'), 'CompleteAbort', 'it is aborted');
ok((grep { $_ eq $record } payloads('shop.public.shop')), '… consumers go on');
is(rows_of('shop'), '1 2', '… without it');
refuses($id, 'false', '55000', qr/has no open transaction\nDETAIL:  Its coordinator says: CompleteAbort\./, 'once more');
query($node, q(CALL kafka.resume('shop')));
is(query($node, q(SELECT kafka.wait_for(pipeline => 'shop', timeout => '60s'))), 't', 'the pipeline goes on');
is(rows_of('shop'), '1 2 3', '… and sends it');

# prepared: aborted, and sent again
$id = leave_open('shop', 4, 'after-prepare-commit');
is(end_transaction($id, 'false'), 'CompleteAbort', 'a prepared one is aborted');
query($node, q(CALL kafka.resume('shop')));
is(query($node, q(SELECT kafka.wait_for(pipeline => 'shop', timeout => '60s'))), 't', 'the pipeline goes on');
is(rows_of('shop'), '1 2 3 4', '… and sends it once');

# prepared: committed, and not sent again
$id = leave_open('shop', 5, 'after-prepare-commit');
query($node, "UPDATE kafka.checkpoint SET kafka_start_ms = kafka_start_ms - 1 WHERE state = 'prepared'");
refuses($id, 'true', '55000', qr/can't be committed\nDETAIL:  The prepared checkpoint was another transaction/, 'another transaction of the same transactional id');
query($node, "UPDATE kafka.checkpoint SET kafka_start_ms = kafka_start_ms + 1, timeline = timeline + 1 WHERE state = 'prepared'");
refuses($id, 'true', '55000', qr/can't be committed\nDETAIL:  Its checkpoint was prepared on another timeline/, 'one of another timeline');
query($node, "UPDATE kafka.checkpoint SET timeline = timeline - 1 WHERE state = 'prepared'");
is(end_transaction($id, 'true'), 'CompleteCommit', 'a prepared one is committed');
is(rows_of('shop'), '1 2 3 4 5', '… consumers have it');
my $checkpoint = query($node, q(SELECT checkpoint_id FROM kafka.checkpoint WHERE state = 'prepared'));
query($node, q(CALL kafka.resume('shop')));
query($node, 'INSERT INTO shop VALUES (6)');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'shop', timeout => '60s'))), 't', 'the pipeline goes on');
is(rows_of('shop'), '1 2 3 4 5 6', '… and does not send it again');
is(query($node, "SELECT state, attempt FROM kafka.checkpoints WHERE pipeline = 'shop' AND checkpoint_id = $checkpoint"), 'committed|1', '… the checkpoint is committed');

# the slot is gone: what is in Kafka is all there is
ok(table_pipeline($node, 'lost'), 'another pipeline');
$id = leave_open('lost', 2, 'after-prepare-commit');
query($node, 'SELECT pg_drop_replication_slot(' . quote(pipeline_field($node, 'lost', 'slot_name')) . ')');
refuses($id, 'false', '55000', qr/may hold the only copy of checkpoint \d+\nDETAIL: .*slot of pipeline "lost" is lost/, 'the only copy is not thrown away');
is(end_transaction($id, 'true'), 'CompleteCommit', '… but committed');
is(rows_of('lost'), '1 2', '… consumers have it');
query($node, q(CALL kafka.drop_pipeline('lost')));

# somebody else may have it
query($node, q(UPDATE kafka.pipeline_state s SET sticky_state = 'fenced', sticky_reason = 'a rival', sticky_resumes = resumes
	FROM kafka.pipeline p WHERE p.pipeline_id = s.pipeline_id AND name = 'theirs'));
refuses(id('theirs', 0), 'false', '55000', qr/pipeline "theirs" is fenced: transactional id .* may be another instance's\nDETAIL:  a rival/, 'a pipeline that another instance has');
query($node, q(UPDATE kafka.pipeline_state SET sticky_state = NULL));

# no worker at this moment, but soon
set_failpoint($node, 'recovery-start:error');
terminate_worker($node, 'shop');
wait_for_state($node, 'shop', 'retrying');
refuses(id('shop', 0), 'false', '55006', qr/is in use by pipeline "shop"\nDETAIL:  The pipeline's state is "(retrying|starting)"/, 'a pipeline that is about to start');
set_failpoint($node, '');
wait_for_state($node, 'shop', 'running');

#
# Orphans
#
$id = leave_open('shop', 7, 'after-flush');
query($node, q(CALL kafka.drop_pipeline('shop')));
$record = write_behind('shop.public.shop');
ok(!(grep { $_ eq $record } payloads('shop.public.shop')), 'a pipeline that is dropped has left a transaction: consumers wait for its end');
is(transactions('pipeline, orphan, server, state', "transactional_id = '$id'"), 'shop|t|kafka|Ongoing', '… it is listed as an orphan');
is(transactions('count(*)', q(pipeline = 'shop' AND NOT orphan)), 0, '… the pipeline has none any more');
is(query($node, q(SET ROLE monitor; SELECT DISTINCT pipeline, orphan FROM kafka.kafka_transactions WHERE pipeline <> 'lost' ORDER BY 1)),
	"shop|t\ntheirs|f", '… pg_monitor sees it');
is(query($node, 'SET ROLE owner; SELECT DISTINCT pipeline FROM kafka.kafka_transactions'), 'theirs', '… who owns another pipeline does not');
refuses($id, 'false', '42501', qr/must be superuser to end the transaction/, "$_ may not end it", $_) foreach qw(owner monitor);
refuses($id, 'true', '55000', qr/can't be committed\nDETAIL:  No pipeline has it any more/, 'it may not be whole');
is(end_transaction($id, 'false'), 'CompleteAbort', 'it is aborted');
ok((grep { $_ eq $record } payloads('shop.public.shop')), '… consumers go on');
is(rows_of('shop'), '1 2 3 4 5 6', '… without it');

# under a prefix that somebody chose; as an orphan and, at the same time, in use in another database
query($node, q(DROP TABLE shop));
foreach my $database (qw(postgres other))
{
	query($node, 'CREATE DATABASE other') if $database eq 'other';
	create_server($node, database => 'other') if $database eq 'other';
	create_pipeline($node, $_, database => $database, options => { transactional_id_prefix => "own$$" })
	  foreach $database eq 'other' ? qw(away) : qw(here there);
}
query($node, q(CALL kafka.drop_pipeline('there')));
is(transactions('pipeline, transactional_id, orphan', "transactional_id LIKE 'own$$.%'"),
	join("\n", "here|own$$.here.0|f", "here|own$$.here.1|f", "there|own$$.there.0|t", "there|own$$.there.1|t"),
	'orphans under a prefix that a pipeline has; a pipeline of another database is none');
refuses("own$$.away.0", 'false', '55006', qr/may be in use by pipeline "away" of another database/, 'the id of another database\'s pipeline');
query($node, q(CALL kafka.drop_pipeline('away')), database => 'other');
query($node, "CALL kafka.drop_pipeline('$_')") foreach qw(here theirs);

#
# Clusters that don't answer
#
sub view_in
{
	my ($database, $sql) = @_;
	my ($output, $errors) = ('', '');

	$node->psql($database, "\\set VERBOSITY verbose\n$sql", on_error_stop => 0, stdout => \$output, stderr => \$errors);
	return ($output, $errors);
}

create_pipeline($node, 'shop');
query($node, q(CREATE SERVER away FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" '127.0.0.1:1');
	CREATE SERVER oauth FOREIGN DATA WRAPPER transactional_kafka
		OPTIONS ("bootstrap.servers" '127.0.0.1:1', "security.protocol" 'SASL_PLAINTEXT', "sasl.mechanisms" 'OAUTHBEARER')));
my ($output, $errors) = view_in('postgres', q(SELECT DISTINCT pipeline, server FROM kafka.kafka_transactions WHERE NOT orphan));
is($output, 'shop|kafka', 'of two clusters one is away: the other is listed');
like($errors, qr/WARNING:  08006: could not ask server "away" about its transactions: .*127\.0\.0\.1:1.*\nHINT: .*bootstrap\.servers/s, '… with a warning that names the missing one');
like($errors, qr/WARNING:  0A000: could not ask server "oauth" about its transactions: .*OAUTHBEARER.*\nHINT: .*kafka-transactions\.sh/s,
	'… and one that can\'t be asked');
query($node, q(DROP SERVER away; DROP SERVER oauth));

# a broker that wants a password: the pipeline's owner has it, whoever asks
my $directory = "$PostgreSQL::Test::Utils::tmp_check/091_secure_broker";
my $made = '';
IPC::Run::run([ dirname(__FILE__) . '/../kafka/secure', $directory ], '<', \undef, '>&', \$made) or die "secure: $made";
my $broker = bless { directory => $directory, settings => [] }, 'TransactionalKafka::Broker';
END { $broker->kill9 if $broker; }
my ($listener) = PostgreSQL::Test::Utils::slurp_file("$directory/addresses") =~ /^SASL_PLAINTEXT (.*)/m;
query($node, q(DROP SERVER kafka), database => 'other');
create_server($node, database => 'other', broker => $listener,
	options => { 'security.protocol' => 'SASL_PLAINTEXT', 'sasl.mechanisms' => 'PLAIN' });
query($node, q(GRANT USAGE ON FOREIGN SERVER kafka TO owner;
	CREATE USER MAPPING FOR owner SERVER kafka OPTIONS ("sasl.username" 'shop', "sasl.password" 'plain-secret');
	SET SESSION AUTHORIZATION owner; CALL kafka.create_pipeline('hanging', 'kafka')), database => 'other');
wait_until { state($node, 'hanging', database => 'other') eq 'running' } 'its pipeline';
is(query($node, q(SELECT count(*) FROM kafka.kafka_transactions WHERE state IS NOT NULL), database => 'other'), 2,
	'a cluster that wants a password is asked with that of the pipeline\'s owner');
my $sockets = q(COPY sockets FROM PROGRAM 'readlink /proc/$PPID/fd/* | grep -c ^socket: ; ls /proc/$PPID/task | wc -l');
query($node, q(CALL kafka.pause('hanging')), database => 'other');
my $hanging = query($node, q(SELECT transactional_id FROM kafka.kafka_transactions LIMIT 1), database => 'other');
$broker->suspend;
($output, $errors) = view_in('other', <<"SQL");
CREATE TEMP TABLE sockets (n int);
$sockets;
SET statement_timeout = '1s';
BEGIN;
SELECT count(*) FROM kafka.kafka_transactions;
ROLLBACK;
RESET statement_timeout;
$sockets;
SELECT string_agg(n::text, ' ') FROM sockets;
SQL
like($errors, qr/ERROR:  57014: canceling statement due to statement timeout/, 'a cluster that hangs: statement_timeout ends the query');
my @counts = split / /, $output;
is(scalar @counts, 4, '… (sockets and threads were counted)');
is("@counts[2, 3]", "@counts[0, 1]", '… and it leaves no socket and no thread behind');
($output, $errors) = view_in('other', "SET statement_timeout = '1s'; SELECT kafka.end_transaction('$hanging', false)");
like($errors, qr/ERROR:  57014: canceling statement due to statement timeout/, '… that of end_transaction() too');
($output, $errors) = view_in('other', 'SELECT count(*) FROM kafka.kafka_transactions');
is($output, '', '… without one the query ends by itself');
like($errors, qr/ERROR:  08006: could not ask server "kafka" about its transactions: .*\nHINT: .*bootstrap\.servers/s, '… with an error that names the server');
$broker->resume;
is(query($node, 'SELECT count(*) FROM kafka.kafka_transactions', database => 'other'), 2, '… it answers again');
query($node, q(ALTER USER MAPPING FOR owner SERVER kafka OPTIONS (SET "sasl.password" 'another')), database => 'other');
($output, $errors) = view_in('other', 'SELECT count(*) FROM kafka.kafka_transactions');
like($errors, qr/ERROR:  08006: could not ask server "kafka" about its transactions: .*\nHINT: .*user mapping/s, 'a wrong password is said');
unlike($errors, qr/another/, '… but not told');
query($node, q(CALL kafka.drop_pipeline('hanging')), database => 'other');

is(logged($node, qr/PANIC|TRAP|terminated by signal (?!9)/), 0, 'no process has crashed');
done_testing();
