# Row images: what a record says of the row before and after, and of values that PostgreSQL did not log.  Each case is a
# public bug report of a tool that does this job (the number is its), with the right result.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use KafkaLog;
use Records;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
create_server($node);
query($node, 'CREATE EXTENSION citext');

my $gone = '"__debezium_unavailable_value"';
my @envelopes = ('debezium', 'plain');

# Two pipelines of the same tables, one an envelope.
sub both
{
	my ($name, @tables) = @_;

	create_pipeline($node, "${name}_$_", tables => \@tables, options => { envelope => $_, topic_partitions => 1 }) foreach @envelopes;
	return;
}

sub drop
{
	query($node, "CALL kafka.drop_pipeline('$_[0]_$_')") foreach @envelopes;
	return;
}

#
# A TOASTed value that an UPDATE left alone is not in the WAL.
#
my $elements = 10_000;
my %long = (
	a => [ 'int[]',       "(SELECT array_agg(i) FROM generate_series(1, $elements) i)", '[' . join(',', 1 .. $elements) . ']' ],
	b => [ 'bytea',       q(decode(repeat('00ff10', 2000), 'hex')),                     '"' . 'AP8Q' x 2000 . '"' ],
	c => [ 'citext',      q(repeat('Xy', 5000)),                                        '"' . 'Xy' x 5000 . '"' ],
	j => [ 'jsonb',       q(to_jsonb(repeat('j', 5000))),                               '"' . 'j' x 5000 . '"' ],
	t => [ 'text[]',      q(ARRAY[repeat('t', 5000), NULL, '']),                        '["' . 't' x 5000 . '",null,""]' ],
	u => [ 'varchar',     q(repeat('é', 3000)),                                         '"' . 'é' x 3000 . '"' ]);
my @columns = sort keys %long;
my $types    = join ', ', map { "$_ $long{$_}->[0]" } @columns;
my $external = join ', ', map { "ALTER $_ SET STORAGE EXTERNAL" } @columns;
my $literals = join ', ', map { $long{$_}->[1] } @columns;
my %whole = (plain => join(',', map { "\"$_\":$long{$_}->[2]" } @columns));
$whole{debezium} = $whole{plain} =~ s/("j":)("j+")/$1 . '"\\' . substr($2, 0, -1) . '\\""'/er;
my %absent = (debezium => join(',', map { "\"$_\":$gone" } @columns), plain => '');

query($node, <<"SQL");
CREATE TABLE toast (id int PRIMARY KEY, n int, $types);
ALTER TABLE toast $external;
CREATE TABLE toast_full (LIKE toast INCLUDING ALL);
ALTER TABLE toast_full REPLICA IDENTITY FULL;
SQL
both('toast', 'toast', 'toast_full');
query($node, <<"SQL") foreach 'toast', 'toast_full';
INSERT INTO $_ VALUES (1, 1, $literals);
UPDATE $_ SET n = 2;
UPDATE $_ SET n = NULL, b = NULL, t = '{}';
UPDATE $_ SET id = 2;
DELETE FROM $_;
SQL

# b and t are there now
my %some = (
	debezium => join(',', map { "\"$_\":" . ($_ eq 'b' ? 'null' : $_ eq 't' ? '[]' : $gone) } @columns),
	plain    => '"b":null,"t":[]');
my $one = '{"id":1} ';
records_are('toast_debezium.public.toast', \&brief,
	[
		qq($one\{"before":null,"after":{"id":1,"n":1,$whole{debezium}},"op":"c"}),
		qq($one\{"before":null,"after":{"id":1,"n":2,$absent{debezium}},"op":"u"}),
		qq($one\{"before":null,"after":{"id":1,"n":null,$some{debezium}},"op":"u"}),
		qq($one\{"before":{"id":1},"after":null,"op":"d"}), "$one-",
		'{"id":2} {"before":null,"after":{"id":2,"n":null,"a":' . "$gone,\"b\":null,\"c\":$gone,\"j\":$gone,\"t\":[],\"u\":$gone},\"op\":\"c\"}",
		'{"id":2} {"before":{"id":2},"after":null,"op":"d"}', '{"id":2} -'
	],
	'DBZ-4941, DBZ-5936, DBZ-6720: unavailable values of every kind are said to be so: never codes, never null');
my @plain = new_records('toast_plain.public.toast', 6);
is_deeply([ map { shown($_) } @plain ],
	[
		qq($one\{"id":1,"n":1,$whole{plain}}), qq($one\{"id":1,"n":2}), qq($one\{"id":1,"n":null,$some{plain}}),
		"$one-", '{"id":2} {"id":2,"n":null,"b":null,"t":[]}', '{"id":2} -'
	],
	'… plain: they are absent');
is_deeply([ map { $_->{headers}->{'pg.unavailable'} } @plain ],
	[ undef, '["a","b","c","j","t","u"]', '["a","c","j","u"]', undef, '["a","c","j","u"]', undef ], '… and named');

foreach my $envelope (@envelopes)
{
	my $all   = $whole{$envelope};
	my $rest  = $all =~ s/"b":"[^"]*"/"b":null/r =~ s/"t":\[.*?\]/"t":[]/r;
	my ($first, $second, $third, $fourth) = (
		"{\"id\":1,\"n\":1,$all}", "{\"id\":1,\"n\":2,$all}", "{\"id\":1,\"n\":null,$rest}", "{\"id\":2,\"n\":null,$rest}");
	my $name = 'DBZ-7193, redpanda-connect#3106: with REPLICA IDENTITY FULL they are the real values';

	if ($envelope eq 'plain')
	{
		my @full = new_records('toast_plain.public.toast_full', 6);
		is_deeply([ map { shown($_) } @full ], [ "$one$first", "$one$second", "$one$third", "$one-", "{\"id\":2} $fourth", '{"id":2} -' ],
			"$name, plain");
		is_deeply([ map { $_->{headers}->{'pg.unavailable'} } @full ], [ (undef) x 6 ], '… and nothing is named as absent');
		next;
	}
	records_are('toast_debezium.public.toast_full', \&brief,
		[
			qq($one\{"before":null,"after":$first,"op":"c"}), qq($one\{"before":$first,"after":$second,"op":"u"}),
			qq($one\{"before":$second,"after":$third,"op":"u"}), qq($one\{"before":$third,"after":null,"op":"d"}), "$one-",
			qq({"id":2} {"before":null,"after":$fourth,"op":"c"}), qq({"id":2} {"before":$fourth,"after":null,"op":"d"}), '{"id":2} -'
		],
		$name);
}
drop('toast');

#
# A key that is TOASTed itself: PostgreSQL logs it in the old row.
#
my $key = 'k' x 2300;
query($node, <<"SQL");
CREATE TABLE long_key (id text PRIMARY KEY, n int);
ALTER TABLE long_key ALTER id SET STORAGE EXTERNAL;
SQL
both('key', 'long_key');
query($node, "INSERT INTO long_key VALUES ('$key', 1); UPDATE long_key SET n = 2; DELETE FROM long_key");
records_are('key_debezium.public.long_key', \&brief,
	[
		qq({"id":"$key"} {"before":null,"after":{"id":"$key","n":1},"op":"c"}),
		qq({"id":"$key"} {"before":{"id":"$key"},"after":{"id":"$key","n":2},"op":"u"}),
		qq({"id":"$key"} {"before":{"id":"$key"},"after":null,"op":"d"}), qq({"id":"$key"} -)
	],
	'a TOASTed key that an UPDATE left alone is in key and row');
records_are('key_plain.public.long_key', \&shown,
	[ qq({"id":"$key"} {"id":"$key","n":1}), qq({"id":"$key"} {"id":"$key","n":2}), qq({"id":"$key"} -) ], '… plain');
drop('key');

#
# before has what was logged, and nothing else
#
query($node, 'CREATE TABLE stock (id int PRIMARY KEY, q int NOT NULL, d text)');
query($node, 'CREATE TABLE skus (id int PRIMARY KEY, sku int, d text); ALTER TABLE skus REPLICA IDENTITY FULL');
both('before', 'stock', 'skus');
query($node, <<'SQL');
INSERT INTO stock VALUES (1, 5, 'x');
UPDATE stock SET id = 2;
DELETE FROM stock;
INSERT INTO skus VALUES (1, NULL, NULL);
UPDATE skus SET sku = 42;
UPDATE skus SET sku = NULL, d = '';
DELETE FROM skus;
SQL
records_are('before_debezium.public.stock', \&brief,
	[
		'{"id":1} {"before":null,"after":{"id":1,"q":5,"d":"x"},"op":"c"}',
		'{"id":1} {"before":{"id":1},"after":null,"op":"d"}', '{"id":1} -',
		'{"id":2} {"before":null,"after":{"id":2,"q":5,"d":"x"},"op":"c"}',
		'{"id":2} {"before":{"id":2},"after":null,"op":"d"}', '{"id":2} -'
	],
	'xtdb#5542, DBZ-1141: before has the identity only, no zeros and nulls for NOT NULL columns that were not logged');
records_are('before_debezium.public.skus', \&brief,
	[
		'{"id":1} {"before":null,"after":{"id":1,"sku":null,"d":null},"op":"c"}',
		'{"id":1} {"before":{"id":1,"sku":null,"d":null},"after":{"id":1,"sku":42,"d":null},"op":"u"}',
		'{"id":1} {"before":{"id":1,"sku":42,"d":null},"after":{"id":1,"sku":null,"d":""},"op":"u"}',
		'{"id":1} {"before":{"id":1,"sku":null,"d":""},"after":null,"op":"d"}', '{"id":1} -'
	],
	'pg-bifrost#140: with REPLICA IDENTITY FULL a NULL is null before, its new value after');
records_are('before_plain.public.stock', \&shown,
	[ '{"id":1} {"id":1,"q":5,"d":"x"}', '{"id":1} -', '{"id":2} {"id":2,"q":5,"d":"x"}', '{"id":2} -' ], '… plain');
drop('before');

#
# TRUNCATE
#
query($node, <<'SQL');
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE);
CREATE TABLE grandchildren (id int PRIMARY KEY, child int REFERENCES children ON DELETE CASCADE);
SQL
my @family = ('parents', 'children', 'grandchildren');
my @all    = ('insert', 'update', 'delete', 'truncate');
create_pipeline($node, 'asked', tables => \@family, options => { operations => \@all, topic_partitions => 1, metadata_headers => \1 });
create_pipeline($node, 'not_asked', tables => \@family, options => { topic_partitions => 1 });
query($node, <<'SQL');
BEGIN;
INSERT INTO parents VALUES (1);
INSERT INTO children VALUES (11, 1);
TRUNCATE parents CASCADE;
INSERT INTO parents VALUES (2);
INSERT INTO children VALUES (12, 2);
COMMIT;
SQL
my %records = map { $_ => [ new_records("asked.public.$_", { parents => 3, children => 3, grandchildren => 1 }->{$_}) ] } @family;
my $truncated = '- {"before":null,"after":null,"op":"t"}';
is_deeply([ map { brief($_) } @{ $records{parents} } ],
	[ '{"id":1} {"before":null,"after":{"id":1},"op":"c"}', $truncated, '{"id":2} {"before":null,"after":{"id":2},"op":"c"}' ],
	'DBZ-3469, DBZ-1576: TRUNCATE … CASCADE between inserts of its transaction');
is_deeply([ map { brief($_) } @{ $records{children} } ],
	[
		'{"id":11} {"before":null,"after":{"id":11,"parent":1},"op":"c"}', $truncated,
		'{"id":12} {"before":null,"after":{"id":12,"parent":2},"op":"c"}'
	],
	'… one record for each table that it empties');
is_deeply([ map { brief($_) } @{ $records{grandchildren} } ], [$truncated], '… also one without rows');
is_deeply(
	[ map { $_->{headers}->{'pg.seq'} . ' ' . $_->{headers}->{'pg.op'} }
		  sort { $a->{headers}->{'pg.seq'} <=> $b->{headers}->{'pg.seq'} } map { @$_ } values %records ],
	[ '1 c', '2 c', '3 t', '4 t', '5 t', '6 c', '7 c' ],
	'… all in the transaction\'s order');
records_are('not_asked.public.parents', \&brief,
	[ '{"id":1} {"before":null,"after":{"id":1},"op":"c"}', '{"id":2} {"before":null,"after":{"id":2},"op":"c"}' ],
	'… and none where nobody asked for it');
new_records('not_asked.public.children', 2);

#
# ON DELETE CASCADE
#
query($node, 'INSERT INTO children VALUES (13, 2); INSERT INTO grandchildren VALUES (111, 12), (112, 13)');
new_records('asked.public.children', 1);
new_records('asked.public.grandchildren', 2);
new_records('not_asked.public.children', 1);
new_records('not_asked.public.grandchildren', 2);
my %log = map { my $log = KafkaLog->new(broker(), "asked.public.$_"); $log->read_on; ($_ => $log) } @family;
query($node, 'DELETE FROM parents');
%records = map { $_ => [ new_records("asked.public.$_", { parents => 2, children => 4, grandchildren => 4 }->{$_}) ] } @family;
my %deleted = (parents => [2], children => [ 12, 13 ], grandchildren => [ 111, 112 ]);
foreach my $table (@family)
{
	is_deeply([ map { brief($_) } @{ $records{$table} } ],
		[ map { ("{\"id\":$_} {\"before\":{\"id\":$_},\"after\":null,\"op\":\"d\"}", "{\"id\":$_} -") } @{ $deleted{$table} } ],
		"ON DELETE CASCADE: a delete for each row of $table");
}
my @cascade = sort { $a->{headers}->{'pg.seq'} <=> $b->{headers}->{'pg.seq'} } map { @$_ } values %records;
is_deeply([ map { $_->{headers}->{'pg.seq'} } @cascade ], [ 1 .. 10 ], '… in the order of the WAL');
is(scalar keys %{ { map { $_->{headers}->{'pg.xid'} => 1 } @cascade } }, 1, '… of one transaction');
like($cascade[0]->{topic}, qr/parents$/, '… the row that was deleted first');
my %transactions;
foreach my $table (@family)
{
	my $before = $log{$table}->transactions;
	$log{$table}->read_on;
	is($log{$table}->transactions, $before + 1, "… in one Kafka transaction of $table");
	my ($producer) = split /:/, $log{$table}->transaction_of($records{$table}->[0]->{offset});
	$transactions{$producer} = 1;
	is_deeply([ map { $log{$table}->transaction_of($_->{offset}) } @{ $records{$table} } ],
		[ ($log{$table}->transaction_of($records{$table}->[0]->{offset})) x @{ $records{$table} } ], '… all of them');
}
is(scalar keys %transactions, 1, '… of the same producer');
query($node, "CALL kafka.drop_pipeline('$_')") foreach 'asked', 'not_asked';

#
# A pipeline does not make a user's statement fail.
#
query($node, 'CREATE TABLE keyless (a int, b text)');
fails_with($node, q(CALL kafka.create_pipeline('keyless', 'kafka', tables => '{keyless}')),
	qr/keyless.*HINT:.*REPLICA IDENTITY/s, 'supabase/etl#22: a table whose UPDATEs would fail is refused, with the remedy');
query($node, q(INSERT INTO keyless VALUES (1, 'x'); UPDATE keyless SET a = 2));
pass('… and its UPDATE works still');
create_pipeline($node, 'keyless', tables => ['keyless'], options => { operations => 'insert', envelope => 'plain' });
query($node, q(INSERT INTO keyless VALUES (3, 'y'); UPDATE keyless SET a = a + 1; DELETE FROM keyless WHERE a = 3; INSERT INTO keyless VALUES (5, NULL)));
records_are('keyless.public.keyless', \&shown, [ '- {"a":3,"b":"y"}', '- {"a":5,"b":null}' ],
	'pg_repack#481: with its inserts only, UPDATE and DELETE of a key-less table work');
query($node, 'ALTER TABLE keyless REPLICA IDENTITY FULL');
query($node, q(SELECT kafka.alter_pipeline('keyless', '{"operations": null, "envelope": "debezium"}')));
query($node, q(UPDATE keyless SET b = 'z' WHERE a = 5; DELETE FROM keyless WHERE a = 5));
records_are('keyless.public.keyless', \&brief,
	[
		'- {"before":{"a":5,"b":null},"after":{"a":5,"b":"z"},"op":"u"}',
		'- {"before":{"a":5,"b":"z"},"after":null,"op":"d"}'
	],
	'… and with REPLICA IDENTITY FULL they are told');

done_testing();
