# Records, byte for byte, as an independent consumer gets them: both envelopes, every type, keys, tombstones, what
# PostgreSQL does not log, partitions, options of tables.  What differs from run to run is masked as N.
use strict;
use warnings;

use Encode ();
use Test::More;
use TransactionalKafka;
use Records;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
create_server($node);

#
# Scalars.  Settings of the database must not change a record.
#
query($node, <<'SQL');
ALTER DATABASE postgres SET datestyle = 'German';
ALTER DATABASE postgres SET timezone = 'America/New_York';
ALTER DATABASE postgres SET intervalstyle = 'sql_standard';
ALTER DATABASE postgres SET extra_float_digits = -5;
ALTER DATABASE postgres SET bytea_output = 'escape';
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN address AS text[];
SQL

my $digits = '1234567890' x 100;
my $tiny   = '0.' . '0' x 399 . '1';

# type, then literal => JSON
my @types = (
	[ 'bool', 'true' => 'true', 'false' => 'false' ],
	[ 'int2', '-32768' => '-32768', '32767' => '32767' ],
	[ 'int4', '-2147483648' => '-2147483648', '0' => '0' ],
	[ 'int8', '-9223372036854775808' => '-9223372036854775808', '9223372036854775807' => '9223372036854775807' ],
	[ 'oid', '4000000000' => '4000000000' ],
	[ 'float4', '1.1' => '1.1', 'NaN' => '"NaN"', 'Infinity' => '"Infinity"', '-Infinity' => '"-Infinity"',
		'3.4028235e+38' => '3.4028235e+38', '1e-45' => '1e-45' ],
	[ 'float8', '0.1' => '0.1', 'NaN' => '"NaN"', 'Infinity' => '"Infinity"', '-Infinity' => '"-Infinity"',
		'1.7976931348623157e+308' => '1.7976931348623157e+308', '5e-324' => '5e-324', '-0' => '-0',
		'0.30000000000000004' => '0.30000000000000004' ],
	[ 'numeric', '0.10' => '"0.10"', 'NaN' => '"NaN"', 'Infinity' => '"Infinity"', '-Infinity' => '"-Infinity"',
		$digits => qq("$digits"), '1e-400' => qq("$tiny"), "-$digits.5" => qq("-$digits.5") ],
	[ 'numeric(6,2)', '1234.5' => '"1234.50"' ],
	[ 'money', '-1234567.89' => '"-1234567.89"' ],
	[ 'text', '' => '""', 'žluťoučký 🐘' => '"žluťoučký 🐘"', 'null' => '"null"', 'a"b\\c/d' => '"a\\"b\\\\c/d"',
		"\x01\b\f\n\r\t\x1f\x7f" => qq("\\u0001\\b\\f\\n\\r\\t\\u001f\x7f"), "\xe2\x80\xa8" => qq("\xe2\x80\xa8") ],
	[ 'varchar(5)', 'ab' => '"ab"' ],
	[ 'char(5)', 'ab' => '"ab   "' ],
	[ 'name', 'a"b' => '"a\\"b"' ],
	[ 'bytea', '\\x' => '""', '\\x00ff10' => '"AP8Q"', '\\x00' => '"AA=="', '\\x0001' => '"AAE="' ],
	[ 'uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11' => '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"' ],
	[ 'date', '2016-11-04' => '"2016-11-04"', 'infinity' => '"infinity"', '-infinity' => '"-infinity"',
		'0044-03-15 BC' => '"0044-03-15 BC"', '5874897-12-31' => '"5874897-12-31"' ],
	[ 'time', '13:51:30.123456' => '"13:51:30.123456"', '24:00:00' => '"24:00:00"', '00:00' => '"00:00:00"' ],
	[ 'timetz', '13:51:30.123456+02:30' => '"13:51:30.123456+02:30"', '24:00:00-15:59' => '"24:00:00-15:59"' ],
	[ 'timestamp', '2016-11-04 13:51:30.123456' => '"2016-11-04T13:51:30.123456"', 'infinity' => '"infinity"',
		'-infinity' => '"-infinity"', '0044-03-15 10:00 BC' => '"0044-03-15T10:00:00 BC"',
		'294276-12-31 23:59:59.999999' => '"294276-12-31T23:59:59.999999"' ],
	[ 'timestamptz', '2016-11-04 13:51:30.123456+02' => '"2016-11-04T11:51:30.123456Z"', 'infinity' => '"infinity"',
		'-infinity' => '"-infinity"', '0044-03-15 10:00+00 BC' => '"0044-03-15T10:00:00Z BC"',
		'294276-12-31 23:59:59.999999+00' => '"294276-12-31T23:59:59.999999Z"' ],
	[ 'interval', '1 year 2 mons -3 days 04:05:06.789' => '"P1Y2M-3DT4H5M6.789S"', '0' => '"PT0S"' ],
	[ 'mood', 'sad' => '"sad"', 'it\'s "ok"' => '"it\'s \\"ok\\""' ],
	[ 'positive', '7' => '7' ],
	[ 'int4[]', '{1,-2,NULL}' => '[1,-2,null]', '{}' => '[]' ],
	[ 'bool[]', '{t,f}' => '[true,false]' ],
	[ 'float8[]', '{NaN,1.5,Infinity}' => '["NaN",1.5,"Infinity"]' ],
	[ 'numeric[]', '{1.10,NaN}' => '["1.10","NaN"]' ],
	[ 'text[]', '{a,"b c","NULL",NULL,"","{x,\\"y\\"}","\\\\"}' => '["a","b c","NULL",null,"","{x,\\"y\\"}","\\\\"]' ],
	[ 'address', '{"Main St. 1",Ulm}' => '["Main St. 1","Ulm"]' ],
	[ 'bytea[]', '{"\\\\x00ff10"}' => '["AP8Q"]' ],
	[ 'uuid[]', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}' => '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]' ],
	[ 'date[]', '{2016-11-04,infinity}' => '["2016-11-04","infinity"]' ],
	[ 'timestamptz[]', '{2016-11-04 13:51:30+02,infinity}' => '["2016-11-04T11:51:30Z","infinity"]' ],
	[ 'mood[]', '{sad,NULL}' => '["sad",null]' ],
	[ 'positive[]', '{1,2}' => '[1,2]' ],
);
my $rows = 9;    # the last one has nothing but NULLs

sub literal
{
	my ($text) = @_;
	$text =~ s/([\\'])/$1$1/g;
	return "E'$text'";
}

query($node, 'CREATE TABLE scalars (id int PRIMARY KEY, '
	  . join(', ', map { "\"$_->[0]\" $_->[0]" } @types) . ')');
create_pipeline($node, 'rec_plain', tables => ['scalars'], options => { envelope => 'plain' });
create_pipeline($node, 'rec_debezium', tables => ['scalars']);

my @objects;
foreach my $row (1 .. $rows)
{
	my (@values, @json);

	foreach my $type (@types)
	{
		my (undef, @cases) = @$type;
		my ($literal, $json) = $row * 2 <= @cases && $row < $rows ? @cases[ $row * 2 - 2, $row * 2 - 1 ] : (undef, 'null');

		push @values, defined $literal ? literal($literal) : 'NULL';
		push @json, "\"$type->[0]\":$json";
	}
	query($node, "INSERT INTO scalars VALUES ($row, " . join(', ', @values) . ')');
	push @objects, "{\"id\":$row," . join(',', @json) . '}';
}
records_are('rec_plain.public.scalars', \&shown, [ map { "{\"id\":$_} $objects[$_ - 1]" } 1 .. $rows ], 'every type, plain');
records_are('rec_debezium.public.scalars', \&brief,
	[ map { "{\"id\":$_} {\"before\":null,\"after\":$objects[$_ - 1],\"op\":\"c\"}" } 1 .. $rows ], 'every type, debezium');

query($node, "ALTER TYPE mood ADD VALUE 'new'");
query($node, "INSERT INTO scalars (id, mood, \"mood[]\") VALUES (100, 'new', '{new}')");
like(shown((new_records('rec_plain.public.scalars', 1))[0]), qr/"mood":"new".*"mood\[\]":\["new"\]/,
	'a label that an enum got later');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')") foreach 'plain', 'debezium';

#
# json: inline or as a string
#
query($node, 'CREATE TABLE documents (id int PRIMARY KEY, j json, b jsonb)');
create_pipeline($node, 'rec_plain_json', tables => ['documents'], options => { envelope => 'plain' });
create_pipeline($node, 'rec_plain_string', tables => ['documents'], options => { envelope => 'plain', json => 'string' });
create_pipeline($node, 'rec_debezium_json', tables => ['documents']);
create_pipeline($node, 'rec_debezium_inline', tables => ['documents'], options => { json => 'inline' });
query($node, <<'SQL');
INSERT INTO documents VALUES (1, '{"b" : 1, "a":[1,2], "a":"\u00e9\n"}', '{"b" : 1, "a":[1,2]}');
INSERT INTO documents VALUES (2, 'null', 'null');
INSERT INTO documents VALUES (3, NULL, NULL);
INSERT INTO documents VALUES (4, '"x"', '1e2');
SQL
my @inline = (
	'{"id":1,"j":{"b" : 1, "a":[1,2], "a":"\u00e9\n"},"b":{"a": [1, 2], "b": 1}}',
	'{"id":2,"j":null,"b":null}', '{"id":3,"j":null,"b":null}', '{"id":4,"j":"x","b":100}');
my @strings = (
	'{"id":1,"j":"{\"b\" : 1, \"a\":[1,2], \"a\":\"\\\\u00e9\\\\n\"}","b":"{\"a\": [1, 2], \"b\": 1}"}',
	'{"id":2,"j":"null","b":"null"}', '{"id":3,"j":null,"b":null}', '{"id":4,"j":"\"x\"","b":"100"}');
records_are('rec_plain_json.public.documents', \&shown, [ map { "{\"id\":$_} $inline[$_ - 1]" } 1 .. 4 ],
	'plain: json inline, as it was written');
records_are('rec_plain_string.public.documents', \&shown, [ map { "{\"id\":$_} $strings[$_ - 1]" } 1 .. 4 ],
	'json => string: JSON null and SQL NULL stay apart');
records_are('rec_debezium_json.public.documents', \&brief,
	[ map { "{\"id\":$_} {\"before\":null,\"after\":$strings[$_ - 1],\"op\":\"c\"}" } 1 .. 4 ], 'debezium: json as a string');
records_are('rec_debezium_inline.public.documents', \&brief,
	[ map { "{\"id\":$_} {\"before\":null,\"after\":$inline[$_ - 1],\"op\":\"c\"}" } 1 .. 4 ], 'json => inline');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')")
  foreach 'plain_json', 'plain_string', 'debezium_json', 'debezium_inline';

#
# What happens to a row
#
query($node, <<'SQL');
CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL);
CREATE TABLE lines (no int, "Item" text, order_id int, PRIMARY KEY (order_id, no));
SQL
my @both = ('orders', 'lines');
my $all = [ 'insert', 'update', 'delete', 'truncate' ];
create_pipeline($node, 'rec_shop', tables => \@both, options => { operations => $all });
create_pipeline($node, 'rec_bare', tables => \@both, options => { operations => $all, tombstones => \0, metadata_headers => \1 });
create_pipeline($node, 'rec_rows', tables => \@both, options => { envelope => 'plain', operations => $all });

my $story = <<'SQL';
INSERT INTO orders VALUES (1, 'one');
UPDATE orders SET note = 'uno';
UPDATE orders SET id = 2;
DELETE FROM orders;
TRUNCATE orders;
SQL
query($node, $story);
my $source = '"source":{"version":"1.0","connector":"postgresql","name":"rec_shop","ts_ms":N,"snapshot":"false","db":"postgres",'
  . '"sequence":"N","ts_us":N,"ts_ns":N,"schema":"public","table":"orders","txId":N,"lsn":N,"xmin":null,"origin":null,'
  . '"origin_lsn":null},"transaction":null';
my @orders = new_records('rec_shop.public.orders', 8);
is_deeply(
	[ map { shown($_) } @orders ],
	[
		'{"id":1} {"before":null,"after":{"id":1,"note":"one"},' . $source . ',"op":"c","ts_ms":N,"ts_us":N,"ts_ns":N}',
		'{"id":1} {"before":null,"after":{"id":1,"note":"uno"},' . $source . ',"op":"u","ts_ms":N,"ts_us":N,"ts_ns":N}',
		'{"id":1} {"before":{"id":1},"after":null,' . $source . ',"op":"d","ts_ms":N,"ts_us":N,"ts_ns":N}',
		'{"id":1} -',
		'{"id":2} {"before":null,"after":{"id":2,"note":"uno"},' . $source . ',"op":"c","ts_ms":N,"ts_us":N,"ts_ns":N}',
		'{"id":2} {"before":{"id":2},"after":null,' . $source . ',"op":"d","ts_ms":N,"ts_us":N,"ts_ns":N}',
		'{"id":2} -',
		'- {"before":null,"after":null,' . $source . ',"op":"t","ts_ms":N,"ts_us":N,"ts_ns":N}'
	],
	'debezium: insert, update, changed key, delete, truncate');
is_deeply(
	[ map { $_->{header_list} } @orders ],
	[
		[], [],
		[ '__debezium.newkey' => '{"id":2}' ],
		[ '__debezium.newkey' => '{"id":2}' ],
		[ '__debezium.oldkey' => '{"id":1}' ],
		[], [], []
	],
	'debezium: the records of a changed key name the other key');

# Times and positions are the server's own.
my ($first, $second) = map { value($_) } @orders[ 0, 1 ];
my $commits = query($node, 'SELECT extract(epoch FROM now()) * 1000000');
cmp_ok($first->{source}->{ts_us}, '<=', $commits, 'source.ts_us is the time of the commit');
cmp_ok($first->{source}->{ts_us}, '>', $commits - 600e6, '… of just now');
is($first->{source}->{ts_ms}, int($first->{source}->{ts_us} / 1000), '… in ms');
is($first->{source}->{ts_ns}, $first->{source}->{ts_us} . '000', '… and ns');
cmp_ok($first->{ts_us}, '>=', $first->{source}->{ts_us}, 'the outer ts_us is that of the processing');
like($first->{source}->{sequence}, qr/^\[(null|"\d+"),"$first->{source}->{lsn}"\]$/, 'sequence: last commit and this position');
cmp_ok($second->{source}->{lsn}, '>', $first->{source}->{lsn}, 'positions grow');
my ($before) = $second->{source}->{sequence} =~ /^\["(\d+)"/;
cmp_ok($before, '>=', $first->{source}->{lsn}, 'the last commit is that of the transaction before');

my @bare = new_records('rec_bare.public.orders', 6);
is_deeply([ map { brief($_) } @bare ],
	[
		'{"id":1} {"before":null,"after":{"id":1,"note":"one"},"op":"c"}',
		'{"id":1} {"before":null,"after":{"id":1,"note":"uno"},"op":"u"}',
		'{"id":1} {"before":{"id":1},"after":null,"op":"d"}',
		'{"id":2} {"before":null,"after":{"id":2,"note":"uno"},"op":"c"}',
		'{"id":2} {"before":{"id":2},"after":null,"op":"d"}',
		'- {"before":null,"after":null,"op":"t"}'
	],
	'tombstones => false');
is_deeply([ map { $_->{headers}->{'pg.op'} } @bare ], [qw(c u d c d t)], 'metadata_headers for debezium');

my @plain = new_records('rec_rows.public.orders', 6);
is_deeply([ map { $_->{headers}->{'pg.op'} . ' ' . shown($_) } @plain ],
	[
		'c {"id":1} {"id":1,"note":"one"}',
		'u {"id":1} {"id":1,"note":"uno"}',
		'd {"id":1} -',
		'c {"id":2} {"id":2,"note":"uno"}',
		'd {"id":2} -',
		't - -'
	],
	'plain: a delete is a tombstone, a changed key two records');

#
# Headers of plain: which transaction, where in it, and whether it is complete
#
query($node, <<'SQL');
BEGIN;
INSERT INTO orders VALUES (10, 'a');
INSERT INTO lines VALUES (1, 'x', 10), (2, 'y', 10);
SAVEPOINT s;
INSERT INTO orders VALUES (11, 'rolled back');
ROLLBACK TO s;
UPDATE orders SET id = 12 WHERE id = 10;
COMMIT;
INSERT INTO orders VALUES (13, 'b');
SQL
my @transaction = sort { $a->{headers}->{'pg.lsn'} <=> $b->{headers}->{'pg.lsn'} || $a->{headers}->{'pg.seq'} <=> $b->{headers}->{'pg.seq'} }
  (new_records('rec_rows.public.orders', 4), new_records('rec_rows.public.lines', 2));
is_deeply([ map { join ' ', $_->{headers}->{'pg.seq'}, $_->{headers}->{'pg.op'}, shown($_) } @transaction ],
	[
		'1 c {"id":10} {"id":10,"note":"a"}',
		'2 c {"order_id":10,"no":1} {"no":1,"Item":"x","order_id":10}',
		'3 c {"order_id":10,"no":2} {"no":2,"Item":"y","order_id":10}',
		'4 d {"id":10} -',
		'5 c {"id":12} {"id":12,"note":"a"}',
		'1 c {"id":13} {"id":13,"note":"b"}'
	],
	'pg.seq counts over all tables of a transaction; a key of two columns is in the order of the index');
is_deeply([ map { join ' ', map { $_->[0] } pairs($_) } @transaction ],
	[ ('pg.op pg.xid pg.lsn pg.seq pg.ts') x 4, ('pg.op pg.xid pg.lsn pg.seq pg.ts pg.last') x 2 ],
	'pg.last once a transaction, on its last record');
is(scalar keys %{ { map { $_->{headers}->{'pg.xid'} => 1 } @transaction[ 0 .. 4 ] } }, 1, 'one pg.xid a transaction');
is(scalar keys %{ { map { $_->{headers}->{'pg.lsn'} => 1 } @transaction[ 0 .. 4 ] } }, 1, 'one pg.lsn a transaction');
is($transaction[5]->{headers}->{'pg.xid'}, query($node, 'SELECT xmin FROM orders WHERE id = 13'), 'pg.xid is the xid');
cmp_ok(abs($transaction[5]->{headers}->{'pg.ts'} - query($node, 'SELECT extract(epoch FROM now()) * 1000000')), '<', 600e6,
	'pg.ts is a time in microseconds');

sub pairs
{
	my @list = @{ $_[0]->{header_list} };
	my @pairs;
	push @pairs, [ splice @list, 0, 2 ] while @list;
	return @pairs;
}

#
# Options of tables
#
query($node, <<'SQL');
SELECT kafka.set_table('rec_rows', 'lines', '{"topic": "rec-all-lines", "key": ["order_id"], "operations": "insert,delete"}');
SELECT kafka.set_table('rec_shop', 'lines', '{"key": "no,order_id", "operations": "update"}');
SQL
new_records('rec_shop.public.lines', 2);
query($node, <<'SQL');
INSERT INTO lines VALUES (3, 'z', 11);
UPDATE lines SET "Item" = 'zz' WHERE no = 3;
DELETE FROM lines WHERE no = 3;
TRUNCATE lines;
SQL
records_are('rec-all-lines', \&shown, [ '{"order_id":11} {"no":3,"Item":"z","order_id":11}', '{"order_id":11} -' ],
	'set_table: topic, key and operations of one table');
records_are('rec_shop.public.lines', \&brief,
	['{"no":3,"order_id":11} {"before":null,"after":{"no":3,"Item":"zz","order_id":11},"op":"u"}'], '… of one pipeline');
is(scalar(() = consume('rec_rows.public.lines')), 2, 'the old topic gets no more');
query($node, q(SELECT kafka.set_table('rec_rows', 'lines', '{"topic": null, "key": null, "operations": null}')));
query($node, q(INSERT INTO lines VALUES (4, 'w', 12)));
records_are('rec_rows.public.lines', \&shown, ['{"order_id":12,"no":4} {"no":4,"Item":"w","order_id":12}'], 'null resets them');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')") foreach 'shop', 'bare', 'rows';

#
# Identities
#
query($node, <<'SQL');
CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, c text, id int PRIMARY KEY);
CREATE UNIQUE INDEX by_index_b_a ON by_index (b, a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b_a;
CREATE TABLE by_full (id int PRIMARY KEY, sku int, n numeric);
ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE full_keyless (a int, b text);
ALTER TABLE full_keyless REPLICA IDENTITY FULL;
CREATE TABLE by_nothing (id int PRIMARY KEY, note text);
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (a int);
SQL
my @identified = ('by_index', 'by_full', 'full_keyless');
create_pipeline($node, 'rec_id', tables => \@identified);
create_pipeline($node, 'rec_idp', tables => \@identified, options => { envelope => 'plain' });
create_pipeline($node, 'rec_append', tables => [ 'by_nothing', 'keyless' ], options => { operations => 'insert', envelope => 'plain' });
query($node, <<'SQL');
INSERT INTO by_index VALUES (1, 2, 'x', 3);
UPDATE by_index SET c = 'y', id = 4;
UPDATE by_index SET a = 5;
DELETE FROM by_index;
INSERT INTO by_full VALUES (1, NULL, 1.0);
UPDATE by_full SET sku = 42;
UPDATE by_full SET id = 2;
DELETE FROM by_full;
INSERT INTO full_keyless VALUES (1, 'x');
UPDATE full_keyless SET a = 2;
DELETE FROM full_keyless;
INSERT INTO by_nothing VALUES (1, 'x');
UPDATE by_nothing SET note = 'y';
DELETE FROM by_nothing;
INSERT INTO keyless VALUES (1);
UPDATE keyless SET a = 2;
SQL
records_are('rec_id.public.by_index', \&brief,
	[
		'{"b":2,"a":1} {"before":null,"after":{"a":1,"b":2,"c":"x","id":3},"op":"c"}',
		'{"b":2,"a":1} {"before":null,"after":{"a":1,"b":2,"c":"y","id":4},"op":"u"}',
		'{"b":2,"a":1} {"before":{"a":1,"b":2},"after":null,"op":"d"}',
		'{"b":2,"a":1} -',
		'{"b":2,"a":5} {"before":null,"after":{"a":5,"b":2,"c":"y","id":4},"op":"c"}',
		'{"b":2,"a":5} {"before":{"a":5,"b":2},"after":null,"op":"d"}',
		'{"b":2,"a":5} -'
	],
	'REPLICA IDENTITY USING INDEX is the key; before has what was logged and no more');
records_are('rec_id.public.by_full', \&brief,
	[
		'{"id":1} {"before":null,"after":{"id":1,"sku":null,"n":"1.0"},"op":"c"}',
		'{"id":1} {"before":{"id":1,"sku":null,"n":"1.0"},"after":{"id":1,"sku":42,"n":"1.0"},"op":"u"}',
		'{"id":1} {"before":{"id":1,"sku":42,"n":"1.0"},"after":null,"op":"d"}',
		'{"id":1} -',
		'{"id":2} {"before":null,"after":{"id":2,"sku":42,"n":"1.0"},"op":"c"}',
		'{"id":2} {"before":{"id":2,"sku":42,"n":"1.0"},"after":null,"op":"d"}',
		'{"id":2} -'
	],
	'REPLICA IDENTITY FULL: before is the whole row, the key still the primary key');
records_are('rec_id.public.full_keyless', \&brief,
	[
		'- {"before":null,"after":{"a":1,"b":"x"},"op":"c"}',
		'- {"before":{"a":1,"b":"x"},"after":{"a":2,"b":"x"},"op":"u"}',
		'- {"before":{"a":2,"b":"x"},"after":null,"op":"d"}'
	],
	'FULL without a primary key: no key, and no tombstone of nothing');
records_are('rec_idp.public.full_keyless', \&shown, [ '- {"a":1,"b":"x"}', '- {"a":2,"b":"x"}', '- -' ], '… plain');
records_are('rec_append.public.by_nothing', \&shown, ['{"id":1} {"id":1,"note":"x"}'], 'REPLICA IDENTITY NOTHING: inserts, and its UPDATEs work');
records_are('rec_append.public.keyless', \&shown, ['- {"a":1}'], 'without a key');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')") foreach 'id', 'idp', 'append';

#
# What is not in the WAL: a TOASTed value that an UPDATE left alone
#
query($node, <<'SQL');
CREATE TABLE toast (id int PRIMARY KEY, n int, a int[], t text);
ALTER TABLE toast ALTER a SET STORAGE EXTERNAL, ALTER t SET STORAGE EXTERNAL;
CREATE TABLE toast_full (LIKE toast INCLUDING ALL);
ALTER TABLE toast_full REPLICA IDENTITY FULL;
SQL
create_pipeline($node, 'rec_toast', tables => [ 'toast', 'toast_full' ]);
create_pipeline($node, 'rec_toastp', tables => [ 'toast', 'toast_full' ], options => { envelope => 'plain' });
query($node, <<"SQL") foreach 'toast', 'toast_full';
INSERT INTO $_ SELECT 1, 1, array_agg(i), repeat('x', 5000) FROM generate_series(1, 1000) i;
UPDATE $_ SET n = 2;
UPDATE $_ SET t = 'short';
SQL
my $array = '[' . join(',', 1 .. 1000) . ']';
my $long = 'x' x 5000;
my $gone = '"__debezium_unavailable_value"';
records_are('rec_toast.public.toast', \&brief,
	[
		"{\"id\":1} {\"before\":null,\"after\":{\"id\":1,\"n\":1,\"a\":$array,\"t\":\"$long\"},\"op\":\"c\"}",
		"{\"id\":1} {\"before\":null,\"after\":{\"id\":1,\"n\":2,\"a\":$gone,\"t\":$gone},\"op\":\"u\"}",
		"{\"id\":1} {\"before\":null,\"after\":{\"id\":1,\"n\":2,\"a\":$gone,\"t\":\"short\"},\"op\":\"u\"}"
	],
	'debezium: what is not available is said to be so');
my @toast = new_records('rec_toastp.public.toast', 3);
is_deeply([ map { shown($_) } @toast ],
	[
		"{\"id\":1} {\"id\":1,\"n\":1,\"a\":$array,\"t\":\"$long\"}",
		'{"id":1} {"id":1,"n":2}',
		'{"id":1} {"id":1,"n":2,"t":"short"}'
	],
	'plain: it is absent');
is_deeply([ map { $_->{headers}->{'pg.unavailable'} } @toast ], [ undef, '["a","t"]', '["a"]' ], '… and named in a header');
records_are('rec_toast.public.toast_full', \&brief,
	[
		"{\"id\":1} {\"before\":null,\"after\":{\"id\":1,\"n\":1,\"a\":$array,\"t\":\"$long\"},\"op\":\"c\"}",
		"{\"id\":1} {\"before\":{\"id\":1,\"n\":1,\"a\":$array,\"t\":\"$long\"},\"after\":{\"id\":1,\"n\":2,\"a\":$array,\"t\":\"$long\"},\"op\":\"u\"}",
		"{\"id\":1} {\"before\":{\"id\":1,\"n\":2,\"a\":$array,\"t\":\"$long\"},\"after\":{\"id\":1,\"n\":2,\"a\":$array,\"t\":\"short\"},\"op\":\"u\"}"
	],
	'REPLICA IDENTITY FULL has the real value');
is_deeply([ map { shown($_) } new_records('rec_toastp.public.toast_full', 3) ],
	[
		"{\"id\":1} {\"id\":1,\"n\":1,\"a\":$array,\"t\":\"$long\"}", "{\"id\":1} {\"id\":1,\"n\":2,\"a\":$array,\"t\":\"$long\"}",
		"{\"id\":1} {\"id\":1,\"n\":2,\"a\":$array,\"t\":\"short\"}"
	],
	'… plain');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')") foreach 'toast', 'toastp';

#
# Shapes of tables: partitions go to the root's topic with the root's columns; generated, dropped and added columns;
# no columns; names.
#
query($node, <<'SQL');
CREATE TABLE parts (id int, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
CREATE TABLE parts_us (note text, gone int, region text NOT NULL, id int NOT NULL);
ALTER TABLE parts_us DROP gone;
ALTER TABLE parts ATTACH PARTITION parts_us FOR VALUES IN ('us');
CREATE TABLE shapes (gone int, id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, a int);
ALTER TABLE shapes DROP gone;
CREATE TABLE none ();
CREATE SCHEMA "Äpfel & Birnen";
CREATE TABLE "Äpfel & Birnen"."x.y ""z""" ("A" int, a int, "col ""q""" text, "ключ" int PRIMARY KEY);
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE);
SQL
create_pipeline($node, 'rec_shapes', tables => [ 'parts', 'shapes', '"Äpfel & Birnen"."x.y ""z"""', 'parents', 'children' ],
	options => { envelope => 'plain', operations => $all });
create_pipeline($node, 'rec_none', tables => ['none'], options => { operations => 'insert' });
query($node, <<'SQL');
INSERT INTO parts VALUES (1, 'eu', 'a'), (2, 'us', 'b');
UPDATE parts SET region = 'us' WHERE id = 1;
UPDATE parts SET note = 'c' WHERE id = 1;
DELETE FROM parts WHERE id = 2;
INSERT INTO shapes VALUES (1, DEFAULT, 10);
BEGIN;
INSERT INTO shapes VALUES (2, DEFAULT, 20);
ALTER TABLE shapes ADD d int DEFAULT 7;
INSERT INTO shapes VALUES (3, DEFAULT, 30);
ALTER TABLE shapes ALTER a TYPE text USING a || ' pieces';
INSERT INTO shapes VALUES (4, DEFAULT, 'none', NULL);
ALTER TABLE shapes RENAME a TO amount;
ALTER TABLE shapes DROP d;
INSERT INTO shapes VALUES (5, DEFAULT, 'five');
COMMIT;
INSERT INTO none DEFAULT VALUES;
INSERT INTO "Äpfel & Birnen"."x.y ""z""" VALUES (1, 2, 'q', 3);
INSERT INTO parents VALUES (1);
INSERT INTO children VALUES (11, 1), (12, 1);
DELETE FROM parents;
BEGIN;
INSERT INTO parents VALUES (2);
TRUNCATE parents CASCADE;
INSERT INTO parents VALUES (3);
COMMIT;
SQL
records_are('rec_shapes.public.parts', \&shown,
	[
		'{"id":1,"region":"eu"} {"id":1,"region":"eu","note":"a"}', '{"id":2,"region":"us"} {"id":2,"region":"us","note":"b"}',
		'{"id":1,"region":"eu"} -', '{"id":1,"region":"us"} {"id":1,"region":"us","note":"a"}',
		'{"id":1,"region":"us"} {"id":1,"region":"us","note":"c"}', '{"id":2,"region":"us"} -'
	],
	'partitions: the topic, columns and key of the root, whatever their own order');
records_are('rec_shapes.public.shapes', \&shown,
	[
		'{"id":1} {"id":1,"a":10}',
		'{"id":2} {"id":2,"a":20}',
		'{"id":3} {"id":3,"a":30,"d":7}',
		'{"id":4} {"id":4,"a":"none","d":null}',
		'{"id":5} {"id":5,"amount":"five"}'
	],
	'each row in the shape it had; a rewrite of the table sends nothing');
records_are('rec_none.public.none', \&brief, ['- {"before":null,"after":{},"op":"c"}'], 'a table without columns');
records_are('rec_shapes._pfel___Birnen.x.y__z_', \&shown, ['{"ключ":3} {"A":1,"a":2,"col \"q\"":"q","ключ":3}'],
	'names as they are in the record, made legal in the topic');
records_are('rec_shapes.public.children', \&shown,
	[
		'{"id":11} {"id":11,"parent":1}', '{"id":12} {"id":12,"parent":1}',
		'{"id":11} -', '{"id":12} -', '- -'
	],
	'ON DELETE CASCADE: a delete for each; TRUNCATE CASCADE: one record a table');
records_are('rec_shapes.public.parents', \&shown,
	[ '{"id":1} {"id":1}', '{"id":1} -', '{"id":2} {"id":2}', '- -', '{"id":3} {"id":3}' ], '… in order');

#
# A table that is dropped while its changes are not read yet is sent in its shape of then.
#
query($node, "CALL kafka.pause('rec_shapes')");
query($node, "INSERT INTO shapes VALUES (6, DEFAULT, 'six'); DROP TABLE shapes");
query($node, "CALL kafka.resume('rec_shapes')");
records_are('rec_shapes.public.shapes', \&shown, ['{"id":6} {"id":6,"amount":"six"}'], 'INSERT; DROP TABLE while lagging');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('rec_$_')") foreach 'shapes', 'none';

#
# transaction_metadata: BEGIN and END with counts, and each record's place
#
query($node, 'CREATE TABLE t1 (id int PRIMARY KEY); CREATE TABLE t2 (id int PRIMARY KEY)');
create_pipeline($node, 'rec_meta', tables => [ 't1', 't2' ], options => { transaction_metadata => \1 });
query($node, 'BEGIN; INSERT INTO t1 VALUES (1); INSERT INTO t2 VALUES (1); INSERT INTO t1 VALUES (2); COMMIT');
my @markers = new_records('rec_meta.transaction', 2);
my ($transaction) = map { value($_)->{id} } @markers;
is_deeply([ map { shown($_) =~ s/\Q$transaction\E/ID/gr } @markers ],
	[
		'{"id":"ID"} {"status":"BEGIN","id":"ID","event_count":null,"data_collections":null,"ts_ms":N}',
		'{"id":"ID"} {"status":"END","id":"ID","event_count":3,"data_collections":[{"data_collection":"public.t1","event_count":2},'
		  . '{"data_collection":"public.t2","event_count":1}],"ts_ms":N}'
	],
	'transaction_metadata');
is_deeply([ map { value($_)->{transaction} } new_records('rec_meta.public.t1', 2), new_records('rec_meta.public.t2', 1) ],
	[
		map { { id => $transaction, total_order => $_->[0], data_collection_order => $_->[1] } } [ 1, 1 ], [ 3, 2 ], [ 2, 1 ]
	],
	'… and each record\'s place');
query($node, "CALL kafka.drop_pipeline('rec_meta')");

#
# UTF-8 comes out of a database of another encoding.
#
$node->safe_psql('template1', q(CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'));
create_server($node, database => 'latin1');
query($node, 'CREATE TABLE "über" ("größe" text PRIMARY KEY, note text)', database => 'latin1');
create_pipeline($node, 'rec_latin1', tables => ['über'], database => 'latin1');
query($node, q(INSERT INTO "über" VALUES ('é', 'ÿ')), database => 'latin1');
my ($latin1) = new_records('rec_latin1.public._ber', 1);
is(brief($latin1), '{"größe":"é"} {"before":null,"after":{"größe":"é","note":"ÿ"},"op":"c"}', 'LATIN1 becomes UTF-8');
is(Encode::encode_utf8(value($latin1)->{source}->{table}), 'über', '… the names too');

done_testing();
