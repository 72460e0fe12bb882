# Outbox tables in Debezium's shape: each row inserted is a record, whose topic, key, value and headers are in the row.
use strict;
use warnings;

use Encode ();
use File::Basename ();
use Test::More;
use TransactionalKafka;
use Records;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
create_server($node);

# Key, value and headers but those of metadata
sub event
{
	my ($record) = @_;
	my @list = @{ $record->{header_list} };
	my @headers;

	while (my ($name, $value) = splice @list, 0, 2)
	{
		push @headers, "$name=" . ($value // 'null') unless $name =~ /^pg\./;
	}
	return join ' ', shown($record), @headers;
}

# Topics are the same for all pipelines, so each test has aggregates of its own.
sub outbox
{
	my ($pipeline, $table, %o) = @_;
	my $set = $o{set} || '{"route": "outbox"}';

	create_pipeline($node, $pipeline, tables => [ $table, @{ $o{tables} || [] } ],
		options => { envelope => 'plain', topic_partitions => 1, %{ $o{options} || {} } });
	query($node, "SELECT kafka.set_table('$pipeline', '$table', '$set')");
	return;
}

#
# What Debezium's event router reads
#
query($node, <<'SQL');
CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
	type varchar(255) NOT NULL, payload jsonb);
CREATE TABLE orders (id int PRIMARY KEY, total numeric);
SQL
outbox('shop', 'outbox', tables => ['orders']);
query($node, <<'SQL');
BEGIN;
INSERT INTO orders VALUES (1, 19.90);
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a01', 'order', '1', 'OrderCreated', '{"total": 19.90, "é": [1, null]}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a02', 'customer-1_x.Y', '{"k": 1}', 'Changed', '"text"');
SAVEPOINT s;
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a03', 'order', '2', 'RolledBack', '{}');
ROLLBACK TO s;
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a04', 'order', '1', 'OrderPaid', NULL);
UPDATE outbox SET type = 'Never' WHERE aggregatetype = 'order';
DELETE FROM outbox;
SELECT kafka.produce('outbox-produced', 'p', key => 'k');
UPDATE orders SET total = 20;
COMMIT;
SQL
all_sent($node, 'shop');
my @order    = new_records('outbox.event.order', 2);
my @customer = new_records('outbox.event.customer-1_x.Y', 1);
is_deeply([ map { event($_) } @order ],
	[ '1 {"é": [1, null], "total": 19.90} id=a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a01', '1 - id=a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a04' ],
	'topic by aggregatetype, key aggregateid, value the payload, header id; a null payload is a tombstone');
is_deeply([ map { event($_) } @customer ], ['{"k": 1} "text" id=a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a02'], 'another aggregate has another topic');
my @table = new_records('shop.public.orders', 2);
my @all = sort { $a->{headers}->{'pg.seq'} <=> $b->{headers}->{'pg.seq'} } @order, @customer, @table;
is_deeply([ map { "$_->{headers}->{'pg.seq'} $_->{topic}" } @all ],
	[ '1 shop.public.orders', '2 outbox.event.order', '3 outbox.event.customer-1_x.Y', '4 outbox.event.order', '5 shop.public.orders' ],
	'… in the order of the transaction, with the changes of other tables, without UPDATEs and DELETEs of the outbox');
is($all[-1]->{headers}->{'pg.last'}, 'true', '… whole');
is_deeply([ map { shown($_) } new_records('outbox-produced', 1) ], ['k p'], '… and produce()');
query($node, 'TRUNCATE outbox');
all_sent($node, 'shop');
is(scalar(() = consume('shop.public.outbox')), 0, 'the table has no records of its own');

# the type as a header
query($node, q(SELECT kafka.set_table('shop', 'outbox', '{"event_type_header": true}')));
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a05', 'order', '3', 'OrderCreated', '{}')));
all_sent($node, 'shop');
is_deeply([ map { event($_) } new_records('outbox.event.order', 1) ], ['3 {} id=a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a05 eventType=OrderCreated'],
	'the type is a header if it is asked for');

# no identity is needed: only inserts are published
query($node, q(ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; ALTER TABLE outbox REPLICA IDENTITY NOTHING));
query($node, q(UPDATE outbox SET type = 'x'; DELETE FROM outbox));
pass('UPDATE and DELETE of an outbox without a replica identity work');

# exactly once
set_failpoint($node, 'after-flush:exit');
my $failures = query($node, q(SELECT failures FROM kafka.stat_pipelines WHERE pipeline = 'shop'));
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a06', 'order', '4', 'Once', '4')));
wait_until { query($node, q(SELECT failures FROM kafka.stat_pipelines WHERE pipeline = 'shop')) > $failures } 'the worker to end at the fail-point';
set_failpoint($node, '');
start_anew($node, 'shop');
all_sent($node, 'shop');
is_deeply([ map { shown($_) } new_records('outbox.event.order', 1) ], ['4 4'], 'once, after an end between flush and commit');

#
# What can't be routed
#
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a07', 'order', '5', 'x', '5')));
all_sent($node, 'shop');
new_records('outbox.event.order', 1);
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a08', 'or der', '6', 'x', '6'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a09', 'order', '7', 'x', '7')));
is_stopped($node, 'shop', 'failed',
	'aggregatetype "or der" of outbox "public\.outbox", id "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a08", at .*, makes no topic: the name may contain only');
like(pipeline_field($node, 'shop', 'hint'), qr/set_table\(\) take the option route back, and CALL kafka\.resume/, '… and says what to do');
records_are('outbox.event.order', \&shown, [], '… nothing of that transaction is there');
query($node, q(ALTER TABLE outbox REPLICA IDENTITY FULL; SELECT kafka.set_table('shop', 'outbox', '{"route": null, "event_type_header": null}')));
query($node, q(CALL kafka.resume('shop')));
all_sent($node, 'shop');
is_deeply([ map { value($_)->{aggregateid} } new_records('shop.public.outbox', 2) ], [ 6, 7 ], 'without the route its rows are changes of a table');
query($node, q(SELECT kafka.set_table('shop', 'outbox', '{"route": "outbox"}')));
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a10', 'order', '8', 'x', '8')));
all_sent($node, 'shop');
is_deeply([ map { shown($_) } new_records('outbox.event.order', 1) ], ['8 8'], '… and with it events again');

#
# set_table
#
query($node, 'CREATE TABLE not_one (id int PRIMARY KEY, aggregatetype text, payload text); CREATE TABLE nearly (id int PRIMARY KEY, aggregatetype text, aggregateid text, payload text)');
create_pipeline($node, 'checks', tables => [ 'not_one', 'nearly' ]);
fails_with($node, q(SELECT kafka.set_table('checks', 'not_one', '{"route": "outbox"}')),
	qr/column "aggregateid" of table public\.not_one does not exist.*needs the columns id, aggregatetype, aggregateid and payload/s, 'a column that is missing');
query($node, q(SELECT kafka.set_table('checks', 'nearly', '{"route": "outbox"}')));
fails_with($node, q(SELECT kafka.set_table('checks', 'nearly', '{"event_type_header": true}')), qr/column "type" of table public\.nearly does not exist/, 'one that a header needs');
fails_with($node, "SELECT kafka.set_table('checks', 'nearly', '$_->[0]')", qr/$_->[1]/, "$_->[0] with the route")
  foreach [ '{"topic": "t"}', 'option "topic" of table public\.nearly of pipeline "checks" can\'t be set with the route "outbox"' ],
  [ '{"key": ["id"]}', 'option "key" of' ], [ '{"operations": "insert,delete"}', 'option "operations" of' ];
query($node, q(SELECT kafka.set_table('checks', 'nearly', '{"operations": "insert"}')));
fails_with($node, q(SELECT kafka.set_table('checks', 'not_one', '{"event_type_header": true}')), qr/needs the route "outbox"/, 'the header without the route');
fails_with($node, q(SELECT kafka.set_table('checks', 'not_one', '{"route": "inbox"}')), qr/invalid value for option "route".*"inbox".*Expected is "outbox"/s, 'another route');
fails_with($node, 'ALTER TABLE nearly DROP payload', qr/column "payload" of table public\.nearly does not exist/, 'a column of an outbox is not dropped');
fails_with($node, 'ALTER TABLE nearly RENAME aggregateid TO aggregate_id', qr/column "aggregateid" of table public\.nearly does not exist/, '… nor renamed');
query($node, 'ALTER TABLE nearly ADD more int, ALTER payload TYPE varchar; ALTER TABLE nearly RENAME TO nearly_one');
pass('what it does not need may change');
query($node, q(CALL kafka.drop_pipeline('checks')));

#
# Payloads of other types, byte for byte; columns in any order
#
query($node, <<'SQL');
CREATE TABLE typed (note text, payload bytea, aggregateid bytea, id bigserial, aggregatetype text) PARTITION BY RANGE (id);
CREATE TABLE typed_all PARTITION OF typed DEFAULT;
CREATE TABLE as_json (id int, aggregatetype name, aggregateid int, payload json, type text);
CREATE TABLE as_text (id text, aggregatetype text, aggregateid text, payload text, type text);
SQL
create_pipeline($node, 'types', tables => [ 'typed', 'as_json', 'as_text' ],
	options => { operations => 'insert', envelope => 'debezium', topic_partitions => 1, transaction_metadata => \1 });
query($node, qq(SELECT kafka.set_table('types', '$_', '{"route": "outbox"}'))) foreach 'typed', 'as_json';
query($node, q(SELECT kafka.set_table('types', 'as_text', '{"route": "outbox", "event_type_header": true}')));
query($node, <<'SQL');
BEGIN;
INSERT INTO typed (payload, aggregateid, aggregatetype) VALUES ('{"a":1}', 'key', 'types-bytes'), ('', NULL, 'types-bytes'), (decode('c3a90a', 'hex'), '', 'types-bytes');
INSERT INTO as_json VALUES (1, 'types-json', 7, '{"b" : 1, "a":[1,2], "a":"\u00e9"}', 't'), (2, 'types-json', NULL, 'null', 't');
INSERT INTO as_text VALUES ('', 'types-text', '', '', NULL), ('ž', 'types-text', 'é', E'line\n"two"', 'ů'), (NULL, 'types-text', 'n', NULL, '');
COMMIT;
SQL
all_sent($node, 'types');
is_deeply([ map { event($_) } new_records('outbox.event.types-bytes', 3) ], [ 'key {"a":1} id=1', '-  id=2', " \xc3\xa9\n id=3" ],
	'bytea: its bytes; an empty value is no null');
is_deeply([ map { event($_) } new_records('outbox.event.types-json', 2) ], [ '7 {"b" : 1, "a":[1,2], "a":"\u00e9"} id=1', '- null id=2' ],
	'json: as it was written; JSON null is no tombstone');
is_deeply([ map { Encode::encode_utf8(event($_)) =~ s/.*id=/id=/sr } new_records('outbox.event.types-text', 3) ],
	[ 'id= eventType=null', 'id=ž eventType=ů', 'id=null eventType=' ], 'headers: text, and nulls');
my ($begin, $end) = map { value($_) } new_records('types.transaction', 2);
is_deeply([ $end->{event_count}, [ map { "$_->{data_collection} $_->{event_count}" } @{ $end->{data_collections} } ] ],
	[ 8, [ 'public.typed 3', 'public.as_json 2', 'public.as_text 3' ] ], 'transaction_metadata counts events as its table\'s');
query($node, q(CALL kafka.drop_pipeline('types')));

#
# A column that the publication leaves out
#
if ($node->pg_version >= 15)
{
	query($node, q(CREATE TABLE listed (id int PRIMARY KEY, aggregatetype text, aggregateid text, payload text)));
	query($node, q(CREATE PUBLICATION listed FOR TABLE listed (id, aggregatetype, aggregateid) WITH (publish = 'insert')));
	create_pipeline($node, 'listed', publication => 'listed', options => { topic_partitions => 1 });
	query($node, q(SELECT kafka.set_table('listed', 'listed', '{"route": "outbox"}')));
	query($node, q(INSERT INTO listed VALUES (1, 'listed', 'k', 'v')));
	is_stopped($node, 'listed', 'failed', 'table "public\.listed" with the route "outbox" has no column "payload", or it is not published');
	query($node, q(ALTER PUBLICATION listed SET TABLE listed; INSERT INTO listed VALUES (2, 'listed', 'k', 'w')));

	# it counts as it was when the row was written; resume() may return before that is read
	$node->psql('postgres', q(CALL kafka.resume('listed')));
	is_stopped($node, 'listed', 'failed', 'has no column "payload"');
	query($node, q(SELECT kafka.set_table('listed', 'listed', '{"route": null}'); CALL kafka.resume('listed')));
	all_sent($node, 'listed');
	is_deeply([ values_of('after.id', new_records('listed.public.listed', 2)) ], [ 1, 2 ], '… without the route nothing is lost');
	query($node, q(SELECT kafka.set_table('listed', 'listed', '{"route": "outbox"}'); INSERT INTO listed VALUES (3, 'listed', 'k', 'x')));
	all_sent($node, 'listed');
	is_deeply([ map { event($_) } new_records('outbox.event.listed', 1) ], ['k x id=3'], '… and rows of now are events');
	query($node, q(CALL kafka.drop_pipeline('listed')));
}

#
# Topics that belong to others
#
query($node, 'CREATE SCHEMA event; CREATE TABLE event.taken (id int PRIMARY KEY); CREATE TABLE event."a b" (id int PRIMARY KEY)');
query($node, 'CREATE TABLE other_outbox (LIKE as_text)');
outbox('outbox', 'as_text', tables => [ 'event.taken', 'other_outbox' ], set => '{"route": "outbox"}',
	options => { operations => 'insert', progress_topic => 'outbox.event.position', oversize => 'dead_letter' });
query($node, q(SELECT kafka.set_table('outbox', 'other_outbox', '{"route": "outbox"}')));
query($node, q(INSERT INTO as_text VALUES ('1', 'both', 'k', 'v'); INSERT INTO other_outbox VALUES ('2', 'both', 'k', 'w')));
all_sent($node, 'outbox');
is_deeply([ map { event($_) } new_records('outbox.event.both', 2) ], [ 'k v id=1', 'k w id=2' ], 'two outboxes may have events of one aggregate');
query($node, q(INSERT INTO as_text VALUES ('3', 'large', 'k', repeat('x', 2000000))));
all_sent($node, 'outbox');
my ($letter) = map { value($_) } new_records('outbox.dead_letter', 1);
is_deeply([ @$letter{qw(topic table op key)} ], [ 'outbox.event.large', 'as_text', 'c', 'k' ], 'an event that is too large is described');
query($node, q(INSERT INTO event.taken VALUES (1)));
all_sent($node, 'outbox');
query($node, q(INSERT INTO as_text VALUES ('4', 'taken', 'k', 'v')));
is_stopped($node, 'outbox', 'failed', 'table event\.taken and outbox public\.as_text would share the topic "outbox\.event\.taken"');
query($node, q(SELECT kafka.set_table('outbox', 'event.taken', '{"topic": "not-taken"}'); CALL kafka.resume('outbox')));
all_sent($node, 'outbox');
is_deeply([ map { event($_) } grep { defined $_->{headers}->{id} } new_records('outbox.event.taken', 2) ], ['k v id=4'], '… until the table has another one');
query($node, q(SELECT kafka.set_table('outbox', 'event.taken', '{"topic": null}'); INSERT INTO as_text VALUES ('5', 'taken', 'k', 'v5')));
is_stopped($node, 'outbox', 'failed', 'would share the topic "outbox\.event\.taken"');
query($node, q(SELECT kafka.set_table('outbox', 'event.taken', '{"topic": "not-taken"}'); CALL kafka.resume('outbox')));
query($node, q(INSERT INTO as_text VALUES ('6', 'position', 'progress', '{}')));
is_stopped($node, 'outbox', 'failed', 'outbox public\.as_text: the topic "outbox\.event\.position" is for what the pipeline itself writes');
is(scalar(() = grep { ($_->{payload} // '') eq '{}' } consume('outbox.event.position')), 0, '… the pipeline\'s position is not overwritten by a row');
query($node, q(SELECT kafka.set_table('outbox', 'as_text', '{"route": null}'); CALL kafka.resume('outbox')));
all_sent($node, 'outbox');
query($node, q(CALL kafka.drop_pipeline('outbox')));

# A topic that must be there
query($node, q(SELECT kafka.alter_pipeline('shop', '{"create_topics": false}')));
query($node, q(INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'unknown', '9', 'x', '9')));
is_stopped($node, 'shop', 'failed', 'topic "outbox\.event\.unknown" does not exist and create_topics is false');
create_topic('outbox.event.unknown');
query($node, q(CALL kafka.resume('shop')));
all_sent($node, 'shop');
is_deeply([ map { shown($_) } new_records('outbox.event.unknown', 1) ], ['9 9'], 'it is sent once the topic is there');
query($node, q(CALL kafka.drop_pipeline('shop')));

# README's example, as it is written there
my ($example) = PostgreSQL::Test::Utils::slurp_file(File::Basename::dirname(__FILE__) . '/../../README.md') =~ /### Outbox tables\n.*?```sql\n(.*?)```/s;
create_server($node, name => 'events');
query($node, 'DROP TABLE outbox');
my $before = () = consume('outbox.event.order');
query($node, $example);
all_sent($node, 'shop');
my @example = consume_until('outbox.event.order', $before + 1);
my $id = query($node, 'SELECT id FROM outbox');
is(event($example[-1]), "42 {\"total\": 19.90} id=$id eventType=OrderPaid", 'the example in README');
fails_with($node, q(INSERT INTO outbox VALUES (gen_random_uuid(), 'or der', '1', 'x', '{}')), qr/violates check constraint/, '… whose CHECK keeps out what makes no topic');
query($node, q(INSERT INTO outbox VALUES (gen_random_uuid(), repeat('x', 236), '1', 'x', '{}')));
fails_with($node, q(INSERT INTO outbox VALUES (gen_random_uuid(), repeat('x', 237), '1', 'x', '{}')), qr/violates check constraint/, '… also what is too long');
all_sent($node, 'shop');
is(scalar(() = consume_until('outbox.event.' . 'x' x 236, 1)), 1, '… and nothing more');

done_testing();
