# Sizes: a record that is larger than the client or its topic takes stops the pipeline, by its name, or a description
# takes its place on another topic; the transaction stays whole.  Batches are never larger than a topic takes.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use KafkaLog;
use LockedBroker;
use Records;

use PostgreSQL::Test::Utils qw(slurp_file);

my $node = new_node('main');
create_server($node);
create_server($node, name => 'large', options => { 'message.max.bytes' => 10_000_000 });
create_server($node, name => 'compressing', options => { 'message.max.bytes' => 10_000_000, 'compression.type' => 'lz4' });
create_server($node, name => 'small', options => { 'message.max.bytes' => 60_000 });

sub stat_of
{
	my ($pipeline, $column) = @_;
	return query($node, "SELECT $column FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'");
}

# The descriptions on a pipeline's topic of them since the last look, with what differs from run to run left out.
sub dead_letters
{
	my ($pipeline, $n) = @_;
	my @letters;

	foreach my $record (new_records("$pipeline.dead_letter", $n))
	{
		my $letter = value($record);
		ok($letter->{lsn} > 0 && $letter->{commit_lsn} >= $letter->{lsn}, 'a description has positions');
		ok($letter->{xid} > 0 && $letter->{commit_ts_us} > 1e15, '… the transaction and its time');
		delete @$letter{qw(lsn commit_lsn xid commit_ts_us)};
		push @letters, { record_key => $record->{key}, partition => $record->{partition}, headers => $record->{headers}, %$letter };
	}
	return @letters;
}

sub letter
{
	my ($pipeline, %fields) = @_;
	return {
		headers => {}, partition => 0, error => 'record too large', pipeline => $pipeline, schema => 'public', op => 'c',
		key => $fields{record_key}, key_size => length($fields{record_key} // ''), %fields
	};
}

#
# A row of 2 MB among small ones, where the topic takes 1 MB
#
query($node, 'CREATE TABLE docs (id int PRIMARY KEY, body text)');
create_topic('docs.public.docs', { 'max.message.bytes' => 1_000_000 });
create_pipeline($node, 'docs', server => 'large', tables => ['docs'], options => { envelope => 'plain', topic_partitions => 1 });
my $log = -s $node->logfile;
query($node, <<'SQL');
INSERT INTO docs VALUES (1, 'before');
BEGIN;
INSERT INTO docs SELECT i, 'small' FROM generate_series(2, 100) i;
INSERT INTO docs VALUES (101, repeat('x', 2000000));
INSERT INTO docs SELECT i, 'small' FROM generate_series(102, 200) i;
COMMIT;
INSERT INTO docs VALUES (201, 'after');
SQL
my $two_megabytes = length('{"id":101}') + length('{"id":101,"body":""}') + 2_000_000;
is_stopped($node, 'docs', 'failed',
	qr/record too large: topic "docs\.public\.docs": a record of table "public\.docs" \(key \{"id":101\}\) of \d+ bytes is larger than max\.message\.bytes \(1000000\), at /);
my $reason = pipeline_field($node, 'docs', 'reason');
my ($bytes) = $reason =~ /of (\d+) bytes/;
cmp_ok($bytes, '>=', $two_megabytes, 'cockroach#65211: … it names table, key, size');
cmp_ok($bytes, '<', $two_megabytes + 200, '… that of key, value and headers');
like(pipeline_field($node, 'docs', 'hint'), qr/max\.message\.bytes.*oversize.*dead_letter/, '… and the options');
unlike(slurp_file($node->logfile, $log), qr/xxxxxxxxxx/, '… without the record');
is_deeply([ values_of('id', grep { value($_)->{id} > 1 } consume('docs.public.docs')) ], [], '… of its transaction nothing is there');

query($node, q(SELECT kafka.alter_pipeline('docs', '{"oversize": "dead_letter"}')));
query($node, q(CALL kafka.resume('docs')));
all_sent($node, 'docs');
my @docs = new_records('docs.public.docs', 200);
is_deeply([ values_of('id', @docs) ], [ 1 .. 100, 102 .. 201 ], 'cockroach#80199, maxwell#1122: with oversize => dead_letter all others are there, in order');
my ($letter) = dead_letters('docs', 1);
my $headers  = delete $letter->{headers};
my $expected = letter('docs', topic => 'docs.public.docs', table => 'docs', record_key => '{"id":101}', size => $bytes,
	limit => 1_000_000, limit_name => 'max.message.bytes');
delete $expected->{headers};
is_deeply($letter, $expected, '… and the one is described, under its key');
is($headers->{'pg.seq'}, 100, '… at its place in the transaction');
is($headers->{'pg.xid'}, $docs[1]->{headers}->{'pg.xid'}, '… of which it is');
is(stat_of('docs', 'dead_letters || \' \' || records'), '1 201', '… and counted');
like(slurp_file($node->logfile, $log), qr/WARNING:  pipeline "docs" left out a record of table "public\.docs" of $bytes bytes, which topic "docs\.public\.docs" does not take/,
	'… with a warning');

# Of one Kafka transaction
my %ids;
foreach my $topic ('docs.public.docs', 'docs.dead_letter')
{
	my $kafka = KafkaLog->new(broker(), $topic);
	$kafka->read_on;
	my @offsets = $topic eq 'docs.dead_letter' ? (0) : ($docs[1]->{offset}, $docs[198]->{offset});
	$ids{ ($kafka->transaction_of($_) =~ /^(\d+)/)[0] } = 1 foreach @offsets;
}
is(scalar keys %ids, 1, '… by one producer');

# What was described once is not described again, and is counted when Kafka has it
set_failpoint($node, 'after-flush:exit');
query($node, q(UPDATE docs SET id = 301, body = repeat('u', 1800000) WHERE id = 101));
wait_until { stat_of('docs', 'failures') > 0 } 'the worker to end at the fail-point';
is(stat_of('docs', 'dead_letters'), 1, 'a description that Kafka does not have is not counted');
set_failpoint($node, '');
start_anew($node, 'docs');
all_sent($node, 'docs');
is(stat_of('docs', 'dead_letters'), 2, '… one that it has is, once');
is_deeply([ map { shown($_) } new_records('docs.public.docs', 1) ], ['{"id":101} -'], 'a changed key: the tombstone of the old one is sent');
my ($moved) = dead_letters('docs', 1);
is_deeply([ @$moved{qw(record_key op limit)} ], [ '{"id":301}', 'u', 1_000_000 ], '… and the row under the new one described');
is($moved->{headers}->{'pg.last'}, 'true', '… as the last of its transaction');

# Several warn once
$log = -s $node->logfile;
query($node, q(INSERT INTO docs SELECT i, repeat('y', 1500000) FROM generate_series(400, 404) i));
all_sent($node, 'docs');
is(stat_of('docs', 'dead_letters'), 7, 'five more');
is_deeply([ map { $_->{record_key} } dead_letters('docs', 5) ], [ map { "{\"id\":$_}" } 400 .. 404 ], '… all described');
cmp_ok(logged($node, qr/WARNING:  pipeline "docs" left out/, $log), '<=', 1, '… with one warning a minute at most');

# The limit is looked up at each start
kafka_tool('ConfigCommand', undef, '--alter', '--entity-type', 'topics', '--entity-name', 'docs.public.docs', '--add-config', 'max.message.bytes=5000000');
start_anew($node, 'docs');
query($node, q(INSERT INTO docs VALUES (500, repeat('z', 3000000))));
all_sent($node, 'docs');
is_deeply([ map { $_->{key} } new_records('docs.public.docs', 1) ], ['{"id":500}'], 'a limit that was raised is known at the next start');
query($node, q(CALL kafka.drop_pipeline('docs')));

#
# 64 MB
#
query($node, 'CREATE TABLE blobs (id int PRIMARY KEY, b bytea); ALTER TABLE blobs ALTER b SET STORAGE EXTERNAL');
create_pipeline($node, 'blobs', tables => ['blobs'], options => { oversize => 'dead_letter', topic_partitions => 1 });
wait_for_state($node, 'blobs', 'running');
my $worker = worker_pid($node, 'blobs');
query($node, q(INSERT INTO blobs VALUES (1, '\x00'); INSERT INTO blobs SELECT 2, decode(repeat('00112233445566778899aabbccddeeff', 4194304), 'hex'); INSERT INTO blobs VALUES (3, '\xff')));
all_sent($node, 'blobs');
is_deeply([ values_of('after.id', new_records('blobs.public.blobs', 2)) ], [ 1, 3 ], 'bottledwater#36: a row of 64 MB does not hold the others up');
my ($blob) = dead_letters('blobs', 1);
cmp_ok($blob->{size}, '>', 64 * 1024 * 1024, '… and is described');
is_deeply([ @$blob{qw(record_key limit_name limit)} ], [ '{"id":2}', 'message.max.bytes', 1_000_000 ], '… with the client\'s limit');
is(worker_pid($node, 'blobs'), $worker, '… by the same worker');
query($node, q(CALL kafka.drop_pipeline('blobs')));

#
# To the byte
#
sub produced
{
	my ($topic, $n) = @_;
	return [ map { length $_->{payload} } new_records($topic, $n) ];
}

create_topic('exact', { 'max.message.bytes' => 50_000 });
create_pipeline($node, 'exact', server => 'small', options => { oversize => 'dead_letter', envelope => 'debezium', topic_partitions => 1 });

# 61 bytes of batch; length 3, attributes, timestamp and offset 3, key's length 1, value's length 3, headers' number 1
query($node, q(SELECT kafka.produce('exact', repeat('a', 49928)); SELECT kafka.produce('exact', repeat('b', 49929))));
all_sent($node, 'exact');
is_deeply(produced('exact', 1), [49928], 'a batch of just max.message.bytes is sent, and taken');
is_deeply([ dead_letters('exact', 1) ],
	[ letter('exact', topic => 'exact', schema => undef, table => undef, op => undef, record_key => undef, size => 49929, limit => 50_000, limit_name => 'max.message.bytes') ],
	'… one byte more is not');

# null, with a key and a header: names and lengths count
query($node, q(SELECT kafka.produce('exact', repeat('a', 49928 - 2 - 8), key => 'kk', headers => '{"abc": "xyz"}')));
query($node, q(SELECT kafka.produce('exact', repeat('a', 49929 - 2 - 8), key => 'kk', headers => '{"abc": "xyz"}')));
query($node, q(SELECT kafka.produce('exact', NULL::text, key => repeat('k', 100000), headers => '{"abc": "xyz"}', partition => 0)));
all_sent($node, 'exact');
is_deeply(produced('exact', 1), [ 49928 - 10 ], 'key and headers count');
my @exact = dead_letters('exact', 2);
is_deeply([ @{ $exact[0] }{qw(record_key size headers)} ], [ 'kk', 49929 - 10 + 2 + 8, {} ], '… to the byte');
is_deeply($exact[1],
	letter('exact', topic => 'exact', schema => undef, table => undef, op => undef, record_key => undef, key => 'k' x 1000,
		key_size => 100_000, size => 100_008, limit => 60_000, limit_name => 'message.max.bytes'),
	'a key that is too large itself is not kept, but its beginning told');

query($node, q(SELECT kafka.produce('exact_client', repeat('a', 60000 - 36)); SELECT kafka.produce('exact_client', repeat('b', 60000 - 35))));
all_sent($node, 'exact');
is_deeply(produced('exact_client', 1), [59964], 'message.max.bytes is what librdkafka makes of it');
is_deeply([ map { [ @$_{qw(size limit limit_name)} ] } dead_letters('exact', 1) ], [ [ 59965, 60_000, 'message.max.bytes' ] ], '… to the byte');

# produce() of a transaction stays whole and in order
query($node, q(BEGIN; SELECT kafka.produce('exact', '1'); SELECT kafka.produce('exact', repeat('x', 90000)); SELECT kafka.produce('exact', '2'); COMMIT));
all_sent($node, 'exact');
is_deeply([ map { $_->{payload} } new_records('exact', 2) ], [ 1, 2 ], 'a transaction of produce() stays whole');
new_records('exact.dead_letter', 1);
# A key that is no text (which the consumer's JSON can't show)
query($node, q(SELECT kafka.produce('exact', decode(repeat('00', 70000), 'hex'), key => '\xff00'::bytea)));
all_sent($node, 'exact');
my $broker = broker();
my $values;
wait_until { $values = `kcat -C -b $broker -t exact.dead_letter -X isolation.level=read_committed -o beginning -e -q -f '%s\n'`; $values =~ /"size":70002,/ }
'a description of a record whose key is no text';
my $binary = (split /\n/, $values)[-1];
like($binary, qr/"key":null,"key_size":2,"size":70002,/, 'a key that is no text is not told as one');

# Who may produce to the topic of the descriptions can't stop the pipeline by it.
query($node, q(SELECT kafka.produce('exact.dead_letter', repeat('x', 70001))));
all_sent($node, 'exact');
$values = `kcat -C -b $broker -t exact.dead_letter -X isolation.level=read_committed -o beginning -e -q -f '%s\n'`;
like((split /\n/, $values)[-1], qr/"size":70001,.*"topic":"exact\.dead_letter"|"topic":"exact\.dead_letter".*"size":70001,/,
	'a record for the topic of dead letters itself is described as well');
query($node, q(CALL kafka.drop_pipeline('exact')));

#
# The old row of a DELETE
#
query($node, 'CREATE TABLE whole (id int PRIMARY KEY, body text); ALTER TABLE whole REPLICA IDENTITY FULL');
query($node, q(INSERT INTO whole VALUES (1, repeat('w', 70000))));
create_pipeline($node, 'whole', server => 'small', tables => ['whole'], options => { oversize => 'dead_letter', topic_partitions => 1, transaction_metadata => \1 });
query($node, q(UPDATE whole SET body = 'short'; UPDATE whole SET body = repeat('w', 70000); DELETE FROM whole));
all_sent($node, 'whole');
is_deeply([ map { brief($_) } new_records('whole.public.whole', 1) ], ['{"id":1} -'], 'a DELETE whose old row is too large: the tombstone is sent');
is_deeply([ map { "$_->{op} $_->{record_key}" } dead_letters('whole', 3) ], [ 'u {"id":1}', 'u {"id":1}', 'd {"id":1}' ], '… the rest described');
is_deeply([ map { $_->{event_count} } grep { $_->{status} eq 'END' } map { value($_) } new_records('whole.transaction', 6) ], [ 1, 1, 1 ],
	'… and counted as events of their transactions');
query($node, q(CALL kafka.drop_pipeline('whole')));

#
# Compressed records: what they take is known only to the broker
#
create_topic('compressed.public.docs', { 'max.message.bytes' => 1_000_000 });
create_pipeline($node, 'compressed', server => 'compressing', tables => ['docs'], options => { envelope => 'plain', topic_partitions => 1 });
query($node, q(INSERT INTO docs VALUES (600, repeat('c', 3000000))));
all_sent($node, 'compressed');
is_deeply([ map { $_->{key} } new_records('compressed.public.docs', 1) ], ['{"id":600}'], 'what fits when it is compressed is sent');
query($node, q(SELECT kafka.alter_pipeline('compressed', '{"oversize": "dead_letter"}')));
query($node, q(INSERT INTO docs VALUES (601, repeat('c', 3000000))));
all_sent($node, 'compressed');
is_deeply([ map { $_->{record_key} } dead_letters('compressed', 1) ], ['{"id":601}'], '… with dead_letter the size before compression counts');
query($node, q(CALL kafka.drop_pipeline('compressed')));

#
# Batches: 5000 rows of 300 bytes where the topic takes 128 kB
#
query($node, 'CREATE TABLE many (id int PRIMARY KEY, pad text)');
create_topic('many.public.many', { 'max.message.bytes' => 128 * 1024 });
foreach my $case ([ 'many', {}, 'a topic that was there' ], [ 'made', { topic_config => { 'max.message.bytes' => 128 * 1024 } }, 'one that the pipeline made' ])
{
	my ($name, $options, $what) = @$case;

	create_pipeline($node, $name, server => 'large', tables => ['many'], options => { envelope => 'plain', topic_partitions => 1, %$options });
	query($node, q(INSERT INTO many SELECT i, repeat('p', 300) FROM generate_series(1, 5000) i));
	all_sent($node, $name);
	is_deeply([ values_of('id', consume("$name.public.many")) ], [ 1 .. 5000 ], "cockroach#80199: batches that $what takes");
	is(stat_of($name, "state || ' ' || failures || ' ' || coalesce(last_error, 'no error')"), 'running 0 no error', '… at once');
	query($node, "CALL kafka.drop_pipeline('$name')");
	query($node, 'TRUNCATE many');
}

# A topic that comes up while it runs
create_topic('many_produced', { 'max.message.bytes' => 128 * 1024 });
create_pipeline($node, 'later', server => 'large', tables => ['many'],
	options => { envelope => 'plain', topic_partitions => 1, tolerable_failed_checkpoints => 0 });
$log = -s $node->logfile;
query($node, q(SELECT count(kafka.produce('many_produced', repeat('p', 300) || i)) FROM generate_series(1, 5000) i));
all_sent($node, 'later');
my @later = consume('many_produced');
is_deeply([ map { substr $_->{payload}, 300 } @later ], [ 1 .. 5000 ], '… of a topic that it meets while it runs');
is(logged($node, qr/LOG:  pipeline "later" starts anew with smaller batches: topic "many_produced" takes no more than 131072 bytes/, $log), 1,
	'… after a new start');
is(stat_of('later', "state || ' ' || failures || ' ' || coalesce(last_error, 'no error')"), 'running 0 no error', '… which is no failure');
query($node, q(SELECT count(kafka.produce('many_produced', repeat('p', 300) || i)) FROM generate_series(1, 5000) i));
terminate_worker($node, 'later');
all_sent($node, 'later');
is(scalar(() = consume('many_produced')), 10_000, '… once more');
is(logged($node, qr/starts anew with smaller batches/, $log), 1, '… which the next one knows');
query($node, q(CALL kafka.drop_pipeline('later')));

#
# The option
#
my ($failed, undef, $stderr) = $node->psql('postgres', q(CALL kafka.create_pipeline('option', 'kafka', tables => '{docs}', options => '{"oversize": "drop"}')));
isnt($failed, 0, 'another value of the option');
like($stderr, qr/invalid value for option "oversize" of pipeline "option": "drop".*"fail" or "dead_letter"/s, '… is refused');
create_pipeline($node, 'option', tables => ['docs'], options => { oversize => 'dead_letter' });
($failed, undef, $stderr) = $node->psql('postgres', q(SELECT kafka.set_table('option', 'docs', '{"topic": "option.dead_letter"}')));
like($stderr, qr/table public\.docs of pipeline "option" can't have the topic "option\.dead_letter".*oversize/s, 'the topic of descriptions is no table\'s');
query($node, q(CALL kafka.drop_pipeline('option')));

#
# Where the limits of topics may not be asked for
#
my $locked = LockedBroker->new;
$locked->grant('User:shop', transactional_id => 'pg.', 'Write');
$locked->grant('User:shop', topic => 'pg.', $_) foreach qw(Write Read Create DescribeConfigs);
$locked->grant('User:shop', topic => 'silent', $_) foreach qw(Write Create);
$locked->make_server($node, 'SASL_SSL', name => 'locked');
query($node, 'TRUNCATE docs');
$log = -s $node->logfile;
create_pipeline($node, 'silent', server => 'locked', tables => ['docs'],
	options => { envelope => 'plain', oversize => 'dead_letter', topic_partitions => 1, topic_config => { 'max.message.bytes' => 50_000 } });
query($node, q(INSERT INTO docs VALUES (1, 'small'); INSERT INTO docs VALUES (2, repeat('x', 2000000))));
all_sent($node, 'silent');
my $address = $locked->address;
is_deeply([ values_of('id', consume('silent.public.docs', broker => $address)) ], [1], 'without DescribeConfigs the pipeline runs');
ok(logged($node, qr/pipeline "silent" may not ask for the max\.message\.bytes of topic "silent\.[a-z._]+".*\n.*\n.*ACL DescribeConfigs/, $log), '… and says so');
is_deeply([ values_of('limit_name', consume('silent.dead_letter', broker => $address)) ], ['message.max.bytes'], '… the client\'s limit is known');
query($node, q(INSERT INTO docs VALUES (3, repeat('x', 60000))));
is_stopped($node, 'silent', 'failed', 'record too large.*topic "silent\.public\.docs" partition 0 \(key \{"id":3\}');
$locked->grant('User:shop', topic => 'silent', 'DescribeConfigs');
query($node, q(CALL kafka.resume('silent')));
all_sent($node, 'silent');
is_deeply([ values_of('limit', consume('silent.dead_letter', broker => $address)) ], [ 1_000_000, 50_000 ], '… the topic\'s once it may be asked for');
query($node, q(CALL kafka.drop_pipeline('silent')));

done_testing();
