# Types: each row of the type table on a real server, as readable scalars and as Debezium's, alone, in arrays and in
# composites; Connect's schemas of them; types that change while they are used; values that an UPDATE left in TOAST.
use strict;
use warnings;

use Encode ();
use JSON::PP ();
use Test::More;
use TransactionalKafka;
use Records qw(new_records);

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
create_server($node);

# The bytes of an object inside an envelope, as they are.
sub after
{
	my ($record) = @_;
	my ($after) = Encode::encode_utf8($record->{payload}) =~ /"after":(\{.*\}),"source":/s;

	return $after;
}

query($node, <<'SQL');
ALTER DATABASE postgres SET datestyle = 'German';
ALTER DATABASE postgres SET timezone = 'America/New_York';
ALTER DATABASE postgres SET intervalstyle = 'postgres_verbose';
CREATE SCHEMA x;
CREATE EXTENSION hstore SCHEMA x;
CREATE EXTENSION citext SCHEMA x;
CREATE EXTENSION ltree SCHEMA x;
CREATE TYPE x.geometry;
CREATE FUNCTION x.geometry_in(cstring) RETURNS x.geometry AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION x.geometry_out(x.geometry) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE x.geometry (INPUT = x.geometry_in, OUTPUT = x.geometry_out);
CREATE TYPE mood AS ENUM ('sad', 'o"k');
CREATE TYPE point3 AS (x float8, "Y z" numeric(6,2), label text);
CREATE TYPE shape AS (points point3[], tags text[], kind mood, at timestamptz, bits bytea, doc jsonb, extra x.hstore);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN tiny AS positive;
CREATE DOMAIN price AS numeric(8,3);
CREATE DOMAIN tags AS text[];
CREATE DOMAIN moment AS timestamp(3);
CREATE DOMAIN corner AS point3;
SQL

# type, then cases of: SQL expression, readable JSON, Debezium's JSON (undef: Debezium has no such column)
my $base64 = '"gAAAAAAAAAA="';    # -2^63
my $codes = '[' . join(',', unpack 'C*', '__debezium_unavailable_value') . ']';
my @types = (
	[ 'bool', [ 'true', 'true', 'true' ], [ 'false', 'false', 'false' ] ],
	[ 'int2', [ '-32768', '-32768', '-32768' ] ],
	[ 'int4', [ '2147483647', '2147483647', '2147483647' ] ],
	[ 'int8', [ '-9223372036854775808', '-9223372036854775808', '-9223372036854775808' ] ],
	[ 'oid', [ "'4294967295'", '4294967295', '4294967295' ] ],
	[ 'float4', [ "'1.1'", '1.1', '1.1' ], [ "'3.4028235e38'", '3.4028235e+38', '3.4028235E38' ], [ "'1e-45'", '1e-45', '1.4E-45' ],
		[ "'NaN'", '"NaN"', '"NaN"' ] ],
	[ 'float8', [ '1', '1', '1.0' ], [ "'-0'", '-0', '-0.0' ], [ '1e20', '1e+20', '1.0E20' ], [ '0.0001', '0.0001', '1.0E-4' ],
		[ "'5e-324'", '5e-324', '4.9E-324' ], [ "'-Infinity'", '"-Infinity"', '"-Infinity"' ] ],
	[ 'numeric', [ '0.10', '"0.10"', '{"scale":1,"value":"AQ=="}' ], [ '100', '"100"', '{"scale":0,"value":"ZA=="}' ],
		[ "'NaN'", '"NaN"', 'null' ], [ "'Infinity'", '"Infinity"', 'null' ] ],
	[ 'numeric(6,2)', [ '1234.5', '"1234.50"', '"AeI6"' ], [ '-1.29', '"-1.29"', '"/38="' ], [ "'NaN'", '"NaN"', 'null' ] ],
	[ 'price', [ '1.5', '"1.500"', '"Bdw="' ] ],
	[ 'money', [ "'\$1000'", '"1000.00"', '"AYag"' ], [ "'-92233720368547758.08'", '"-92233720368547758.08"', $base64 ] ],
	[ 'text', [ "E'\\u00e9\"\\x1f\\U0001F418'", "\"\xc3\xa9\\\"\\u001f\xf0\x9f\x90\x98\"", "\"\xc3\xa9\\\"\\u001F\\uD83D\\uDC18\"" ], [ "''", '""', '""' ] ],
	[ 'char(5)', [ "'ab'", '"ab   "', '"ab   "' ] ],
	[ '"char"', [ "'a'", '"a"', '"a"' ] ],
	[ 'name', [ "'a b'", '"a b"', '"a b"' ] ],
	[ 'x.citext', [ "'Ab'", '"Ab"', '"Ab"' ] ],
	[ 'uuid', [ "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", ('"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"') x 2 ] ],
	[ 'mood', [ "'o\"k'", ('"o\\"k"') x 2 ] ],
	[ 'inet', [ "'10.0.0.1/8'", ('"10.0.0.1/8"') x 2 ] ],
	[ 'cidr', [ "'10.0.0.0/8'", ('"10.0.0.0/8"') x 2 ] ],
	[ 'macaddr', [ "'08:00:2b:01:02:03'", ('"08:00:2b:01:02:03"') x 2 ] ],
	[ 'xml', [ "'<a/>'", ('"<a/>"') x 2 ] ],
	[ 'x.ltree', [ "'Top.Science'", ('"Top.Science"') x 2 ] ],
	[ 'tsvector', [ "'a fat cat'", ("\"'a' 'cat' 'fat'\"") x 2 ] ],
	[ 'int4range', [ "'(1,5]'", ('"[2,6)"') x 2 ] ],
	[ 'daterange', [ "'[2016-11-04,infinity)'", ('"[2016-11-04,infinity)"') x 2 ] ],
	[ 'tstzrange', [ "'[2016-11-04 13:51:30+02,]'", ('"[\\"2016-11-04 11:51:30+00\\",)"') x 2 ] ],
	[ 'int4multirange', [ "'{[1,2),[5,7)}'", '"{[1,2),[5,7)}"', undef ] ],
	[ 'span', [ "'[1.5,2]'", '"[1.5,2]"', undef ] ],
	[ 'bit', [ "B'1'", '"1"', 'true' ] ],
	[ 'bit(9)', [ "B'100000000'", '"100000000"', '"AAE="' ] ],
	[ 'varbit', [ "B'00101'", '"00101"', '"BQ=="' ], [ "B''", '""', '""' ] ],
	[ 'bytea', [ "'\\x00ff'", ('"AP8="') x 2 ], [ "''", ('""') x 2 ] ],
	[ 'json', [ "'{\"b\" : null}'", ('"{\\"b\\" : null}"') x 2 ], [ "'null'", ('"null"') x 2 ] ],
	[ 'jsonb', [ "'{\"b\" :[1.50]}'", ('"{\\"b\\": [1.50]}"') x 2 ] ],
	[ 'date', [ "'2016-11-04'", '"2016-11-04"', '17109' ], [ "'infinity'", '"infinity"', '2146033979' ],
		[ "'0001-12-31 BC'", '"0001-12-31 BC"', '-719163' ], [ "'5874897-12-31'", '"5874897-12-31"', '2145042905' ] ],
	[ 'time', [ "'13:51:30.123456'", '"13:51:30.123456"', '49890123456' ], [ "'24:00'", '"24:00:00"', '86400000000' ] ],
	[ 'time(3)', [ "'13:51:30.123456'", '"13:51:30.123"', '49890123' ] ],
	[ 'timetz', [ "'13:51:30.123456+02:30'", '"13:51:30.123456+02:30"', '"11:21:30.123456Z"' ],
		[ "'23:30-05'", '"23:30:00-05"', '"04:30:00Z"' ] ],
	[ 'timestamp', [ "'2016-11-04 13:51:30.5'", '"2016-11-04T13:51:30.5"', '1478267490500000' ],
		[ "'-infinity'", '"-infinity"', '-9223372036854775808' ], [ "'1969-12-31 23:59:59.999999'", '"1969-12-31T23:59:59.999999"', '-1' ] ],
	[ 'timestamp(0)', [ "'2016-11-04 13:51:30'", '"2016-11-04T13:51:30"', '1478267490000' ] ],
	[ 'moment', [ "'2016-11-04 13:51:30.1234'", '"2016-11-04T13:51:30.123"', '1478267490123' ] ],
	[ 'timestamptz', [ "'2016-11-04 13:51:30.5+02'", '"2016-11-04T11:51:30.5Z"', '"2016-11-04T11:51:30.500000Z"' ],
		[ "'infinity'", '"infinity"', '"infinity"' ],
		[ "'0044-03-15 10:00+00 BC'", '"0044-03-15T10:00:00Z BC"', '"-0043-03-15T10:00:00.000000Z"' ] ],
	[ 'timestamptz(0)', [ "'2016-11-04 13:51:30+02'", ('"2016-11-04T11:51:30Z"') x 2 ] ],
	[ 'interval', [ "'1 year 2 mons -3 days 04:05:06.789'", '"P1Y2M-3DT4H5M6.789S"', '36572706789000' ], [ "'-0.5 s'", '"PT-0.5S"', '-500000' ] ],
	[ 'point', [ "'(1,-0.5)'", '"(1,-0.5)"', '{"x":1.0,"y":-0.5,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAOC/","srid":null}' ] ],
	[ 'box', [ "'(1,2),(0,0)'", '"(1,2),(0,0)"',
			'{"wkb":"AQMAAAABAAAABQAAAAAAAAAAAPA/AAAAAAAAAEAAAAAAAADwPwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAADwPw'
			  . 'AAAAAAAABA","srid":null,"extensions":{"type":"box"}}' ] ],
	[ 'line', [ "'{1,2,3}'", '"{1,2,3}"', '{"a":1.0,"b":2.0,"c":3.0}' ] ],
	[ 'path', [ "'((1,2),(0,0))'", '"((1,2),(0,0))"',
			'{"wkb":"AQIAAAACAAAAAAAAAAAA8D8AAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA=","srid":null,"extensions":{"type":"path","closed":"true"}}' ] ],
	[ 'circle', [ "'<(1,2),3>'", '"<(1,2),3>"',
			'{"center":{"x":1.0,"y":2.0,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":null},"radius":3.0}' ] ],
	[ 'pg_lsn', [ "'0/16AE7F8'", '"0/16AE7F8"', undef ] ],
	[ 'regclass', [ "'pg_class'", '"pg_class"', undef ] ],
	[ 'positive', [ '7', '7', '7' ] ],
	[ 'tiny', [ '8', '8', '8' ] ],
	[ 'x.hstore', [ "'a=>1, \"q\\\"\"=>NULL'", '{"a":"1","q\\"":null}', '"{\\"a\\":\\"1\\",\\"q\\\\\\"\\":null}"' ],
		[ "''", '{}', '"{}"' ] ],

	# PostGIS's type is known by its name; this one is a text of that name
	[ 'x.geometry', [ "'0101000020E6100000000000000000F03F0000000000000040'", '"0101000020E6100000000000000000F03F0000000000000040"',
			'{"wkb":"AQEAACDmEAAAAAAAAAAA8D8AAAAAAAAAQA==","srid":4326,"extensions":null}' ] ],

	# arrays
	[ 'int4[]', [ "'{1,NULL,3}'", ('[1,null,3]') x 2 ], [ "'{}'", ('[]') x 2 ], [ "'[0:1]={1,2}'", ('[1,2]') x 2 ],
		[ "'{{1,2},{3,NULL}}'", '[[1,2],[3,null]]', '[null,null]' ] ],
	[ 'text[]', [ "ARRAY['a','b c','NULL',NULL,'','{x,\"y\"}',E'\\\\']", ('["a","b c","NULL",null,"","{x,\\"y\\"}","\\\\"]') x 2 ] ],
	[ 'tags', [ "'{a,b}'", ('["a","b"]') x 2 ] ],
	[ 'tags[]', [ "ARRAY['{a,\"b c\"}'::tags]", '[["a","b c"]]', undef ] ],
	[ 'positive[]', [ "'{1,2}'", ('[1,2]') x 2 ] ],
	[ 'mood[]', [ "ARRAY['sad','o\"k']::mood[]", ('["sad","o\\"k"]') x 2 ] ],
	[ 'numeric(6,2)[]', [ "'{1.27,NULL}'", '["1.27",null]', '["fw==",null]' ] ],
	[ 'float8[]', [ "'{NaN,1}'", '["NaN",1]', '["NaN",1.0]' ] ],
	[ 'date[]', [ "'{1970-01-02}'", '["1970-01-02"]', '[1]' ] ],
	[ 'timestamptz[]', [ "'{2016-11-04 13:51:30+02}'", '["2016-11-04T11:51:30Z"]', '["2016-11-04T11:51:30.000000Z"]' ] ],
	[ 'jsonb[]', [ "ARRAY['{\"a\": 1}','null']::jsonb[]", ('["{\\"a\\": 1}","null"]') x 2 ] ],
	[ 'bytea[]', [ "ARRAY['\\x00ff']::bytea[]", ('["AP8="]') x 2 ] ],
	[ 'x.citext[]', [ "'{A,b}'", ('["A","b"]') x 2 ] ],
	[ 'x.hstore[]', [ "ARRAY['a=>1','']::x.hstore[]", '[{"a":"1"},{}]', '["{\\"a\\":\\"1\\"}","{}"]' ] ],
	[ 'int4range[]', [ "ARRAY['[1,3)']::int4range[]", ('["[1,3)"]') x 2 ] ],
	[ 'money[]', [ "'{1.5}'", '["1.50"]', undef ] ],
	[ 'interval[]', [ "'{1 day}'", '["P1D"]', undef ] ],
	[ 'box[]', [ "'{}'", ('[]') x 2 ], [ "'{(1,2),(0,0);(3,4),(1,1)}'", '["(1,2),(0,0)","(3,4),(1,1)"]',
			'[{"wkb":"AQMAAAABAAAABQAAAAAAAAAAAPA/AAAAAAAAAEAAAAAAAADwPwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAADwPw'
			  . 'AAAAAAAABA","srid":null,"extensions":{"type":"box"}},'
			  . '{"wkb":"AQMAAAABAAAABQAAAAAAAAAAAAhAAAAAAAAAEEAAAAAAAAAIQAAAAAAAAPA/AAAAAAAA8D8AAAAAAADwPwAAAAAAAPA/AAAAAAAAEEAAAAAAAAAIQA'
			  . 'AAAAAAABBA","srid":null,"extensions":{"type":"box"}}]' ] ],
	[ 'pg_lsn[]', [ "'{0/16AE7F8}'", '["0/16AE7F8"]', undef ] ],

	# composites
	[ 'point3', [ "ROW(1, 2.5, 'a \"b\", (c)')", '{"x":1,"Y z":"2.50","label":"a \\"b\\", (c)"}', undef ],
		[ 'ROW(NULL, NULL, NULL)', '{"x":null,"Y z":null,"label":null}', undef ], [ "ROW('NaN', NULL, '')", '{"x":"NaN","Y z":null,"label":""}', undef ] ],
	[ 'corner', [ 'ROW(1, NULL, NULL)', '{"x":1,"Y z":null,"label":null}', undef ] ],
	[ 'point3[]', [ "ARRAY[ROW(1, 2, 'x,y'), NULL, ROW(2, NULL, E'\\\\\"')]::point3[]",
			'[{"x":1,"Y z":"2.00","label":"x,y"},null,{"x":2,"Y z":null,"label":"\\\\\\""}]', undef ] ],
	[ 'shape[]', [ "ARRAY[ROW(ARRAY[ROW(1, 2, 'p \"q\"')::point3], '{{a,\"b c\"},{NULL,d}}', 'sad', '2016-11-04 13:51:30+02', '\\x00ff', "
			  . "'{\"k\": \"v\"}', 'a=>\"1 2\"')::shape]",
			'[{"points":[{"x":1,"Y z":"2.00","label":"p \\"q\\""}],"tags":[["a","b c"],[null,"d"]],"kind":"sad",'
			  . '"at":"2016-11-04T11:51:30Z","bits":"AP8=","doc":"{\\"k\\": \\"v\\"}","extra":{"a":"1 2"}}]', undef ] ],
);

my @columns = map { "c$_" } 0 .. $#types;
query($node, 'CREATE TABLE types (id int PRIMARY KEY, ' . join(', ', map { "c$_ $types[$_]->[0]" } 0 .. $#types) . ')');
create_pipeline($node, 'typ_readable', tables => ['types']);
create_pipeline($node, 'typ_debezium', tables => ['types'], options => { scalars => 'debezium' });
create_pipeline($node, 'typ_schemas', tables => ['types'], options => { scalars => 'debezium', schemas => \1 });

my @cases;
foreach my $i (0 .. $#types)
{
	my ($type, @values) = @{ $types[$i] };

	push @cases, map { { type => $type, column => "c$i", sql => $_->[0], readable => $_->[1], debezium => $_->[2] } } @values;
}
query($node, join '', map { "INSERT INTO types (id, $cases[$_]->{column}) VALUES ($_, $cases[$_]->{sql});\n" } 0 .. $#cases);

# What one row has in its column; the other columns are null.
sub shown_value
{
	my ($record, $case) = @_;
	my $text = after($record);

	foreach my $column (@columns)
	{
		$text =~ s/,"$column":null//;
	}
	return undef if $text !~ /,"$case->{column}":/ && after($record) !~ /,"$case->{column}":null/;
	return $text =~ /^\{"id":\d+,"$case->{column}":(.*)\}$/s ? $1 : 'null';
}

foreach my $scalars ('readable', 'debezium', 'schemas')
{
	my @records = new_records("typ_$scalars.public.types", scalar @cases);
	my $expected = $scalars eq 'readable' ? 'readable' : 'debezium';

	is(scalar @records, scalar @cases, "$scalars: a record a row");
	foreach my $i (0 .. $#cases)
	{
		is(shown_value($records[$i], $cases[$i]), $cases[$i]->{$expected}, "$scalars: $cases[$i]->{type} $cases[$i]->{sql}");
	}
}
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('typ_$_')") foreach 'readable', 'debezium', 'schemas';

#
# Schemas: what only the catalog knows
#
query($node, <<'SQL');
CREATE DOMAIN required AS text NOT NULL;
CREATE TABLE typed (id int PRIMARY KEY, n numeric(6,2) NOT NULL, m mood, d required, t moment, v varchar(5)[], p point3);
SQL
create_pipeline($node, 'sch_debezium', tables => ['typed'], options => { scalars => 'debezium', schemas => \1, transaction_metadata => \1 });
create_pipeline($node, 'sch_readable', tables => ['typed'], options => { schemas => \1 });
create_pipeline($node, 'sch_plain', tables => ['typed'], options => { schemas => \1, envelope => 'plain' });
query($node, "INSERT INTO typed VALUES (1, 1.27, 'sad', 'x', '1970-01-01 00:00:01', '{a}', ROW(1, 2, NULL))");

# A schema as one line: field:type/optional/name/parameters
sub outline
{
	my ($schema) = @_;
	my $type = $schema->{type};

	$type = "struct(" . join(' ', map { "$_->{field}:" . outline($_) } @{ $schema->{fields} }) . ')' if $type eq 'struct';
	$type = 'array(' . outline($schema->{items}) . ')' if $type eq 'array';
	return join '/', $type, ($schema->{optional} ? 'optional' : 'required'), $schema->{name} // (),
	  map { "$_=$schema->{parameters}->{$_}" } sort keys %{ $schema->{parameters} || {} };
}

my $enum = 'string/optional/io.debezium.data.Enum/allowed=sad,o"k';
my $debezium_fields = 'id:int32/required n:bytes/required/org.apache.kafka.connect.data.Decimal/connect.decimal.precision=6/scale=2 '
  . "m:$enum d:string/required t:int64/optional/io.debezium.time.Timestamp v:array(string/optional)/optional";
my ($record) = new_records('sch_debezium.public.typed', 1);
my $value = value($record);
my %fields = map { $_->{field} => $_ } @{ $value->{schema}->{fields} };
is(outline($fields{after}), "struct($debezium_fields)/optional/sch_debezium.public.typed.Value", 'schemas, debezium: after');
like(outline($fields{before}), qr{^struct\(id:int32/required n:bytes/optional/.* d:string/optional },
	'… before: only what is logged can be required');
is($value->{schema}->{name}, 'sch_debezium.public.typed.Envelope', '… the envelope\'s name');
is($value->{schema}->{version}, 2, '… and version');
is_deeply($value->{payload}->{after}, { id => 1, n => 'fw==', m => 'sad', d => 'x', t => 1000, v => ['a'] }, '… the payload');
is($record->{key},
	'{"schema":{"type":"struct","fields":[{"type":"int32","optional":false,"field":"id"}],"optional":false,'
	  . '"name":"sch_debezium.public.typed.Key"},"payload":{"id":1}}', '… the key');
my @markers = map { value($_) } new_records('sch_debezium.transaction', 2);
is_deeply([ map { $_->{schema}->{name} . ' ' . $_->{payload}->{status} } @markers ],
	[ map { "io.debezium.connector.common.TransactionMetadataValue $_" } 'BEGIN', 'END' ], '… transaction metadata');

my $point3 = 'struct(x:double/optional Y z:string/optional label:string/optional)/optional';
($record) = new_records('sch_readable.public.typed', 1);
($fields{after}) = grep { $_->{field} eq 'after' } @{ value($record)->{schema}->{fields} };
is(outline($fields{after}),
	"struct(id:int32/required n:string/required m:$enum d:string/required t:string/optional v:array(string/optional)/optional "
	  . "p:$point3)/optional/sch_readable.public.typed.Value", 'schemas, readable');
($record) = new_records('sch_plain.public.typed', 1);
is(outline(value($record)->{schema}),
	"struct(id:int32/required n:string/optional m:$enum d:string/optional t:string/optional v:array(string/optional)/optional "
	  . "p:$point3)/required/sch_plain.public.typed.Value", 'schemas, plain: what can be left out is optional');
is_deeply(value($record)->{payload},
	{ id => 1, n => '1.27', m => 'sad', d => 'x', t => '1970-01-01T00:00:01', v => ['a'], p => { x => 1, 'Y z' => '2.00', label => undef } },
	'… the payload');

#
# Types that change between, and within, transactions
#
query($node, <<'SQL');
ALTER TYPE mood ADD VALUE 'new';
INSERT INTO typed VALUES (2, 0, 'new', 'x', NULL, NULL, ROW(1, 2, 'a'));
BEGIN;
INSERT INTO typed VALUES (3, 0, NULL, 'x', NULL, NULL, ROW(1, 2, 'b'));
ALTER TYPE point3 RENAME ATTRIBUTE label TO title;
INSERT INTO typed VALUES (4, 0, NULL, 'x', NULL, NULL, ROW(1, 2, 'c'));
ALTER TYPE point3 ADD ATTRIBUTE w int;
INSERT INTO typed VALUES (5, 0, NULL, 'x', NULL, NULL, ROW(1, 2, 'd', 7));
ALTER TYPE point3 DROP ATTRIBUTE x;
INSERT INTO typed VALUES (6, 0, NULL, 'x', NULL, NULL, ROW(2, 'e', 7));
COMMIT;
SQL
my @changed = map { value($_) } new_records('sch_plain.public.typed', 5);
like(outline($changed[0]->{schema}), qr/ m:string.*allowed=sad,o"k,new /, 'a label that an enum got later is in the schema');
is_deeply(
	[ map { $_->{payload}->{p} } @changed ],
	[
		{ x => 1, 'Y z' => '2.00', label => 'a' },
		{ x => 1, 'Y z' => '2.00', label => 'b' },
		{ x => 1, 'Y z' => '2.00', title => 'c' },
		{ x => 1, 'Y z' => '2.00', title => 'd', w => 7 },
		{ 'Y z' => '2.00', title => 'e', w => 7 }
	],
	'a composite type that is altered: each row in its own shape');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('sch_$_')") foreach 'debezium', 'readable', 'plain';

#
# JSON's null and SQL's NULL with json inline
#
query($node, 'CREATE TABLE documents (id int PRIMARY KEY, j json, b jsonb)');
create_pipeline($node, 'nul_plain', tables => ['documents'], options => { envelope => 'plain' });
query($node, <<'SQL');
INSERT INTO documents VALUES (1, ' null', 'null');
INSERT INTO documents VALUES (2, NULL, 'null');
INSERT INTO documents VALUES (3, NULL, NULL);
INSERT INTO documents VALUES (4, '"null"', '[null]');
SQL
is_deeply([ map { $_->{headers}->{'pg.json_null'} } new_records('nul_plain.public.documents', 4) ],
	[ '["j","b"]', '["b"]', undef, undef ], 'json inline: the header pg.json_null tells JSON\'s null from SQL\'s NULL');
$node->safe_psql('postgres', "CALL kafka.drop_pipeline('nul_plain')");

#
# Left in TOAST: Debezium's placeholders, and the values under REPLICA IDENTITY FULL
#
my @toasted = (
	[ 'text', '"__debezium_unavailable_value"' ],
	[ 'bytea', '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="' ],
	[ 'jsonb', '"__debezium_unavailable_value"' ],
	[ 'x.hstore', '"{\\"__debezium_unavailable_value\\":\\"__debezium_unavailable_value\\"}"' ],
	[ 'text[]', '["__debezium_unavailable_value"]' ],
	[ 'int4[]', $codes ],
	[ 'int8[]', $codes ],
	[ 'uuid[]', '["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]' ],
	[ 'bytea[]', '["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]' ],
	[ 'float8[]', '"__debezium_unavailable_value"' ]
);
my %large = (
	'text' => "repeat('x', 10000)",
	'bytea' => "decode(repeat('00', 10000), 'hex')",
	'jsonb' => "to_jsonb(repeat('x', 10000))",
	'x.hstore' => "x.hstore('k', repeat('x', 10000))",
	'uuid[]' => "array_fill('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, '{1000}')",
	'bytea[]' => "array_fill('\\x00'::bytea, '{2000}')",
	map { $_ . '[]' => "array_fill(1, '{5000}')::$_\[]" } 'text', 'int4', 'int8', 'float8'
);
query($node, 'CREATE TABLE toasted (id int PRIMARY KEY, n int, ' . join(', ', map { "c$_ $toasted[$_]->[0]" } 0 .. $#toasted) . ')');
query($node, "ALTER TABLE toasted ALTER c$_ SET STORAGE EXTERNAL") foreach 0 .. $#toasted;
create_pipeline($node, 'toa_debezium', tables => ['toasted'], options => { scalars => 'debezium' });
create_pipeline($node, 'toa_readable', tables => ['toasted']);
query($node, 'INSERT INTO toasted VALUES (1, 1, ' . join(', ', map { $large{ $_->[0] } } @toasted) . ')');
query($node, 'UPDATE toasted SET n = 2');
query($node, 'ALTER TABLE toasted REPLICA IDENTITY FULL');
query($node, 'UPDATE toasted SET n = 3');
my @debezium = new_records('toa_debezium.public.toasted', 3);
my @readable = new_records('toa_readable.public.toasted', 3);
is(after($debezium[1]), '{"id":1,"n":2,' . join(',', map { "\"c$_\":$toasted[$_]->[1]" } 0 .. $#toasted) . '}',
	'left in TOAST, debezium: a placeholder of the type');
is(after($readable[1]), '{"id":1,"n":2,' . join(',', map { "\"c$_\":\"__debezium_unavailable_value\"" } 0 .. $#toasted) . '}',
	'… readable: the text');
is(after($_->[2]) =~ s/"n":3/"n":1/r, after($_->[0]), 'REPLICA IDENTITY FULL: the values') foreach \@debezium, \@readable;

#
# Types in types multiply: they are looked into up to a bound, and what is beyond it is PostgreSQL's text
#
my $levels = 20;
query($node, join ';', 'CREATE TYPE many_0 AS (x int)', (map { "CREATE TYPE many_$_ AS (a many_" . ($_ - 1) . ')' } 1 .. $levels),
	(map { "ALTER TYPE many_$_ ADD ATTRIBUTE b many_" . ($_ - 1) } reverse 1 .. $levels),
	"CREATE TABLE many (id int PRIMARY KEY, c many_$levels, n int)");
create_pipeline($node, 'multiplied', tables => ['many']);
query($node, q(INSERT INTO many VALUES (1, NULL, 2), (2, ROW(NULL, ROW(NULL, NULL)), 3)));
my @many = new_records('multiplied.public.many', 2);
is(after($many[0]), '{"id":1,"c":null,"n":2}', "2^$levels types in a column");
like(after($many[1]), qr/\A\{"id":2,"c":\{"a":null,"b":(?:\{"a":null,"b":null\}|"\(,\)")\},"n":3\}\z/, '… are not all looked into');
query($node, q(CALL kafka.drop_pipeline('multiplied')));

#
# What Debezium leaves out of a row it would leave out of a key too, and all rows would have the same
#
query($node, 'CREATE TABLE odd_keys (id pg_lsn PRIMARY KEY, n int)');
create_pipeline($node, 'odd', tables => ['odd_keys'], options => { scalars => 'debezium' });
query($node, q(INSERT INTO odd_keys VALUES ('0/1', 1), ('0/2', 2); DELETE FROM odd_keys WHERE id = '0/1'));
is_deeply([ map { $_->{key} } new_records('odd.public.odd_keys', 4) ], [ '{"id":"0/1"}', '{"id":"0/2"}', '{"id":"0/1"}', '{"id":"0/1"}' ],
	'a key column of a type that Debezium leaves out stays in the key');
query($node, q(CALL kafka.drop_pipeline('odd')));

#
# A database in another encoding: names inside types become UTF-8, too
#
$node->safe_psql('template1', q(CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'));
create_server($node, database => 'latin1');
query($node, <<'SQL', database => 'latin1');
CREATE TYPE "maß" AS ("größe" text, n int[]);
CREATE TYPE farbe AS ENUM ('grün', 'weiß');
CREATE TABLE things (id int PRIMARY KEY, m "maß", f farbe[]);
SQL
create_pipeline($node, 'lat_readable', tables => ['things'], options => { schemas => \1 }, database => 'latin1');
query($node, q(INSERT INTO things VALUES (1, ROW('é', '{1}'), '{weiß}')), database => 'latin1');
($record) = new_records('lat_readable.public.things', 1);
is(after($record), '{"id":1,"m":{"größe":"é","n":[1]},"f":["weiß"]}', 'LATIN1: attributes, labels and values as UTF-8');
like(Encode::encode_utf8($record->{payload}), qr/"fields":\[\{"type":"string","optional":true,"field":"größe"\}.*"allowed":"grün,weiß"/,
	'… in the schema, too');

done_testing();
