# README's "Moving from Debezium": a pipeline named as the connector's topic.prefix goes on in the same topics, with the
# same keys in the same partitions, and between the two no row is missing or twice.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $topic = 'shop.public.orders';
my $kafka = start_broker('moving')->address;
my $node  = new_node('main');

query($node, 'CREATE EXTENSION transactional_kafka');
create_server($node, broker => $kafka);
query($node, 'CREATE TABLE orders (id int PRIMARY KEY, state text); CREATE PUBLICATION dbz_publication FOR TABLE orders');

# What the connector has left: Java's producer chose the partitions, by the bytes of Connect's JSON keys.
create_topic($topic, { partitions => 8 }, $kafka);
my @old = (1 .. 60);
query($node, q{INSERT INTO orders SELECT i, 'new' FROM generate_series(1, 60) i});
kafka_tool(
	'ConsoleProducer', $kafka, '--topic', $topic, '--reader-property', 'parse.key=true', '--reader-property', 'key.separator=|',
	\join('', map { qq({"id":$_}|{"before":null,"after":{"id":$_,"state":"new"},"op":"c"}\n) } @old));
my %partition = map { ($_->{key} => $_->{partition}) } consume($topic, broker => $kafka);
is(scalar keys %partition, 60, 'the connector has sent 60 rows');
my %used = map { ($_ => 1) } values %partition;
cmp_ok(scalar keys %used, '>', 4, '... over the partitions');

# Writers wait while the one takes over from the other; no wait for us, because a lock alone writes nothing.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE orders IN SHARE MODE');
my $writer = background_sql($node, q{INSERT INTO orders VALUES (61, 'new')});
wait_until { query($node, q{SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass}) } 'a writer that waits';
query($node, q(CALL kafka.create_pipeline('shop', 'kafka', publication => 'dbz_publication', options => '{"scalars": "debezium"}')));
$lock->query_safe('COMMIT');
$lock->quit;
$writer->{run}->finish;
query($node, q{UPDATE orders SET state = 'paid'});
is(query($node, q{SELECT kafka.wait_for(pipeline => 'shop', timeout => '60s')}), 't', 'the pipeline goes on');

my @new = grep { $_->{payload} =~ /"connector":"postgresql"/ } consume($topic, broker => $kafka);
is_deeply([ sort { $a <=> $b } map { $_->{key} =~ /(\d+)/ } @new ], [ 1 .. 61, 61 ],
	'the row that waited and all that came later are there, each once');
is_deeply([ grep { defined $partition{ $_->{key} } && $partition{ $_->{key} } != $_->{partition} } @new ], [],
	'each key is in the partition where it was before');
is_deeply([ grep { !defined $partition{ $_->{key} } } @new ],
	[ grep { $_->{key} eq '{"id":61}' } @new ], '... by the same bytes');
is(scalar(() = kafka_tool('TopicCommand', $kafka, '--list') =~ /^shop\./mg), 1, 'no other topic was made');

$node->stop;
done_testing();
