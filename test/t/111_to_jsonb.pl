# Random rows of random tables against PostgreSQL's own to_jsonb(), as JSON.
#
# A table has columns of random types, arrays, domains and composites of them included, names of all kinds, and a random
# key.  Its rows are inserted, some are updated and deleted, and what a consumer got is compared in SQL with
# to_jsonb(column).  Where a record says something else on purpose, a function json_*() states the difference, by other
# means than ours.  The seed is printed; TK_SEED=… repeats a run, TK_ROWS=… makes it longer.
use strict;
use warnings;

use Encode ();
use Oracle;
use Test::More;
use TransactionalKafka;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : int(rand(1e9));
my $rows = $ENV{TK_ROWS} || 10_000;
my $tables = 25;
srand $seed;
diag("TK_SEED=$seed");

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main', "log_statement = none\n");
create_server($node);

#
# What a record says that to_jsonb() does not: functions of the latter's result
#
query($node, <<'SQL');
CREATE EXTENSION citext;
CREATE EXTENSION hstore;
CREATE EXTENSION ltree;

-- all digits, for consumers whose numbers are floats
CREATE FUNCTION json_numeric(j jsonb) RETURNS jsonb IMMUTABLE STRICT
RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j ELSE to_jsonb(j #>> '{}') END;

-- to_jsonb() takes it for text
CREATE FUNCTION json_oid(j jsonb) RETURNS jsonb IMMUTABLE STRICT
RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j ELSE to_jsonb((j #>> '{}')::numeric) END;

-- free of the locale
CREATE FUNCTION json_money(j jsonb) RETURNS jsonb IMMUTABLE STRICT
RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j ELSE to_jsonb((j #>> '{}')::money::numeric::text) END;

-- base64 instead of hex
CREATE FUNCTION json_bytea(j jsonb) RETURNS jsonb IMMUTABLE STRICT
RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j
	ELSE to_jsonb(translate(encode((j #>> '{}')::bytea, 'base64'), E'\n', '')) END;

-- Z instead of the session's time zone, which is UTC here
CREATE FUNCTION json_timestamptz(j jsonb) RETURNS jsonb IMMUTABLE STRICT
RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j ELSE to_jsonb(regexp_replace(j #>> '{}', '\+00:00( BC)?$', 'Z\1')) END;

-- The same for the elements of an array, however nested
CREATE FUNCTION json_elements(j jsonb, element text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	result jsonb;
BEGIN
	IF jsonb_typeof(j) <> 'array' THEN
		EXECUTE format('SELECT %s($1)', element) INTO result USING j;
		RETURN result;
	END IF;
	SELECT coalesce(jsonb_agg(json_elements(e, element) ORDER BY n), '[]')
		INTO result FROM jsonb_array_elements(j) WITH ORDINALITY a (e, n);
	RETURN result;
END
$$;
SQL

#
# Types: name in SQL, random literal, the function above (if any), whether it can be a key
#
sub pick  { return $_[ int rand @_ ]; }
sub below { return int rand $_[0]; }

# A whole number below 10 to the n-th, as digits
sub digits
{
	my ($n) = @_;
	return join('', map { below(10) } 1 .. 1 + below($n)) =~ s/^0+(?=.)//r;
}

my @alphabet = (
	('a' .. 'z', 'A' .. 'Z', '0' .. '9', ' ') x 2,
	'"', '\\', '/', "'", '{', '}', ',', '(', ')', ';', '=', '>', '<', '&', '%', '[', ']', ':', "\t", "\n", "\r",
	(map { chr } 1 .. 31, 127), "\x{80}", "\x{a0}", "\x{e9}", "\x{df}", "\x{2028}", "\x{2029}", "\x{feff}", "\x{fffd}", "\x{ffff}",
	"\x{5b57}", "\x{1f418}", "\x{10ffff}", "e\x{301}");

sub text
{
	my ($limit) = @_;
	my $n = !$limit && rand() < 0.02 ? 3000 + below(6000) : below($limit ? $limit + 1 : 25);

	return pick('', 'NULL', 'null', '"', '\\', '{}', ' ', '\\N', '\\.') if !$limit && rand() < 0.1;
	return substr join('', map { pick(@alphabet) } 1 .. $n), 0, $n;
}

sub word { return join '', map { pick('a' .. 'z', 'A' .. 'Z', 0 .. 9, '_') } 1 .. 1 + below(8); }
sub hex_digits { return join '', map { pick(0 .. 9, 'a' .. 'f') } 1 .. $_[0]; }

sub signed
{
	my ($max) = @_;
	return pick('-', '') . digits(length($max) - 1);
}

sub numeric
{
	return pick('NaN', 'Infinity', '-Infinity', '0', '0.0', '0.00', '-0.10', '1e-400', '1e400', '1' . '0' x 1000 . '.5')
	  if rand() < 0.2;
	return signed('1' x (1 + below(40))) . (rand() < 0.6 ? '.' . digits(30) : '') . (rand() < 0.2 ? 'e' . pick('-', '') . below(50) : '');
}

sub float
{
	my ($max, $min, $exponent) = @_;
	return pick('NaN', 'Infinity', '-Infinity', '0', '-0', $max, "-$max", $min, '0.1', '0.30000000000000004', '1e21', '123456789012345680')
	  if rand() < 0.3;
	return signed('1' x 18) . '.' . digits(17) . 'e' . pick('-', '') . below($exponent);
}

sub clock { return sprintf '%02d:%02d:%02d%s', below(24), below(60), below(60), pick('', '.5', '.123456', '.' . sprintf('%06d', below(1e6))); }

sub day
{
	my ($last) = @_;
	my $year = pick(1 + below(4712), 1900 + below(200), 10000 + below($last - 10000), $last);
	my $era = $year < 4713 && rand() < 0.2 ? ' BC' : '';

	return (sprintf('%04d-%02d-%02d', $year, 1 + below(12), 1 + below(28)), $era);
}

sub date
{
	return pick('infinity', '-infinity', '5874897-12-31', '4713-01-01 BC', '1970-01-01', '0001-01-01', '2000-02-29') if rand() < 0.2;
	return join '', day(5874896);
}

sub timestamp
{
	my ($zone) = @_;
	if (rand() < 0.2)
	{
		my $extreme = pick('infinity', '-infinity', '294276-12-31 23:59:59.999999Z', '4713-01-01 00:00:00Z BC',
			'1969-12-31 23:59:59.999999Z', '1970-01-01 00:00:00Z', '0001-12-31 23:59:59Z BC');
		return $zone ? $extreme : $extreme =~ s/Z//r;
	}
	my ($day, $era) = day(294275);
	return "$day " . clock() . ($zone ? offset() : '') . $era;
}

sub offset { return sprintf '%s%02d:%02d', pick('+', '-'), below(15), pick(0, 30, 45); }

sub interval
{
	return pick('0', '178000000 years', '-178000000 years', '-1 mon +1 day -00:00:01', '1 year -1 day', '0.000001 s', '-0.000001 s')
	  if rand() < 0.2;
	return join ' ', map { pick('-', '') . $_ } below(100) . ' years', below(40) . ' mons', below(400) . ' days', clock();
}

# JSON, as somebody might write it
sub json_text
{
	my ($depth) = @_;
	my $kind = below($depth > 2 ? 5 : 7);
	my $space = pick('', '', ' ', "\n", "\t");

	return pick('null', 'true', 'false') if $kind == 0;
	return pick('0', '-0', '1.50', '1e2', '-1E-3', '123456789012345678901234567890.10', '0.1') if $kind == 1;
	return '"' . join('', map { pick('a', ' ', '\\u00e9', '\\n', '\\"', '\\\\', '\\/', '\\ud83d\\udc18', "\x{e9}", "\x{1f418}") } 1 .. below(6)) . '"'
	  if $kind < 5;
	return '[' . $space . join("$space,", map { json_text($depth + 1) } 1 .. below(4)) . $space . ']' if $kind == 5;
	return '{' . $space . join(",$space", map { '"' . pick('a', 'b', '', "\x{e9}") . "\"$space:" . json_text($depth + 1) } 1 .. below(4)) . '}';
}

sub xml { return '<a b="' . word() . '">' . pick('', 'x', "\x{e9}", '&lt;', '<b/>', "\n") . '</a>'; }

# [lower,upper) of two values that $less orders
sub range
{
	my ($bound, $less) = @_;
	return 'empty' if rand() < 0.1;
	my ($lower, $upper) = sort { $less->($a, $b) } $bound->(), $bound->();
	return pick('[', '(') . (rand() < 0.2 ? '' : "\"$lower\"") . ',' . (rand() < 0.2 ? '' : "\"$upper\"") . pick(']', ')');
}

sub point { return '(' . pick(0, -1.5, 1e300, 0.1) . ',' . pick(0, 2, -1e-300) . ')'; }
sub number_order { return $_[0] <=> $_[1]; }
sub text_order { return $_[0] cmp $_[1]; }

my @scalars = (
	{ sql => 'bool', make => sub { pick('t', 'f') }, key => 1 },
	{ sql => 'int2', make => sub { pick(-32768, 32767, 0, signed('11111')) }, key => 1 },
	{ sql => 'int4', make => sub { pick(-2147483648, 2147483647, 0, signed('1' x 10)) }, key => 1 },
	{ sql => 'int8', make => sub { pick('-9223372036854775808', '9223372036854775807', 0, signed('1' x 19)) }, key => 1 },
	{ sql => 'oid', make => sub { pick(0, 4294967295, 2147483648, digits(9)) }, json => 'json_oid', key => 1 },
	{ sql => 'float4', make => sub { float('3.4028235e+38', '1e-45', 15) }, key => 1 },
	{ sql => 'float8', make => sub { float('1.7976931348623157e+308', '5e-324', 280) }, key => 1 },
	{ sql => 'numeric', make => \&numeric, json => 'json_numeric', key => 1 },
	{ sql => 'numeric(38,10)', make => sub { pick('NaN', '0', signed('1' x 28) . '.' . digits(12)) }, json => 'json_numeric', key => 1 },
	{ sql => 'numeric(5,0)', make => sub { pick('NaN', '0', signed('111111')) }, json => 'json_numeric', key => 1 },
	{ sql => 'money', make => sub { pick('-92233720368547758.08', '92233720368547758.07', '0', '0.01', '-0.01', signed('1' x 15) . '.' . below(100)) },
		json => 'json_money', key => 1 },
	{ sql => 'text', make => \&text, key => 1 },
	{ sql => 'varchar', make => \&text, key => 1 },
	{ sql => 'varchar(20)', make => sub { text(20) }, key => 1 },
	{ sql => 'char(9)', make => sub { text(9) }, key => 1 },
	{ sql => '"char"', make => sub { pick('a', 'z', '"', '\\', '~', ' ') } },
	{ sql => 'name', make => sub { substr word() . '"\\', 0, 60 }, key => 1 },
	{ sql => 'citext', make => \&text, key => 1 },
	{ sql => 'bytea', make => sub { '\\x' . hex_digits(2 * pick(0, 1, 2, 3, 16, below(60), rand() < 0.02 ? 5000 : 5)) }, json => 'json_bytea', key => 1 },
	{ sql => 'uuid', make => sub { hex_digits(32) }, key => 1 },
	{ sql => 'date', make => \&date, key => 1 },
	{ sql => 'time', make => sub { pick('24:00:00', '00:00:00', '23:59:59.999999', clock()) }, key => 1 },
	{ sql => 'time(3)', make => \&clock, key => 1 },
	{ sql => 'timetz', make => sub { pick('24:00:00-15:59:59', '00:00:00+15:59:59', clock() . offset()) }, key => 1 },
	{ sql => 'timestamp', make => sub { timestamp(0) }, key => 1 },
	{ sql => 'timestamp(0)', make => sub { pick('infinity', '2016-11-04 13:51:30.5') }, key => 1 },
	{ sql => 'timestamptz', make => sub { timestamp(1) }, json => 'json_timestamptz', key => 1 },
	{ sql => 'timestamptz(3)', make => sub { pick('-infinity', '2016-11-04 13:51:30.1235+01') }, json => 'json_timestamptz', key => 1 },
	{ sql => 'interval', make => \&interval },
	{ sql => 'interval day to second(3)', make => sub { pick('1', '-2 days 03:04:05.6789', '25:00:00') } },
	{ sql => 'prop_mood', make => sub { pick('sad', 'it\'s "ok"', "\x{1f418}", '') }, key => 1 },
	{ sql => 'json', make => sub { pick('', ' ') . json_text(0) . pick('', "\n") }, verbatim => 1, null => 1 },
	{ sql => 'jsonb', make => sub { json_text(0) }, null => 1 },
	{ sql => 'hstore', make => sub { join ', ', map { '"' . word() . '"=>' . pick('NULL', '"NULL"', '""', '"1"', '"a \\"b\\" \\\\"', "\"\x{e9}\"") } 1 .. below(4) } },
	{ sql => 'ltree', make => sub { join '.', map { word() } 1 .. below(4) }, key => 1 },
	{ sql => 'inet', make => sub { pick('0.0.0.0/0', '10.1.2.3', '192.168.0.1/24', '::1', 'fe80::' . hex_digits(4) . '/64', '::ffff:1.2.3.4') }, key => 1 },
	{ sql => 'cidr', make => sub { pick('10.0.0.0/8', '192.168.1.0/24', '2001:db8::/32', '1.2.3.4') }, key => 1 },
	{ sql => 'macaddr', make => sub { hex_digits(12) }, key => 1 },
	{ sql => 'macaddr8', make => sub { hex_digits(16) }, key => 1 },
	{ sql => 'bit(1)', make => sub { pick(0, 1) }, key => 1 },
	{ sql => 'bit(11)', make => sub { sprintf '%011b', below(2048) }, key => 1 },
	{ sql => 'varbit', make => sub { my $n = below(40); join '', map { pick(0, 1) } 1 .. $n }, key => 1 },
	{ sql => 'int4range', make => sub { range(sub { below(1000) }, \&number_order) }, key => 1 },
	{ sql => 'int8range', make => sub { range(sub { below(1e12) }, \&number_order) }, key => 1 },
	{ sql => 'numrange', make => sub { range(sub { below(1000) . '.50' }, \&number_order) }, key => 1 },
	{ sql => 'daterange', make => sub { range(sub { sprintf '%04d-01-%02d', 1 + below(9998), 1 + below(28) }, \&text_order) }, key => 1 },
	{ sql => 'tsrange', make => sub { range(sub { sprintf '%04d-06-01 %s', 1 + below(9998), clock() }, \&text_order) }, key => 1 },
	{ sql => 'tstzrange', make => sub { range(sub { sprintf '%04d-06-01 %s+00', 1 + below(9998), clock() }, \&text_order) }, key => 1 },
	{ sql => 'int4multirange', make => sub { pick('{}', '{[1,3),[5,9)}', '{(,)}') }, key => 1 },
	{ sql => 'tstzmultirange', make => sub { pick('{}', '{["2020-01-01 00:00+00","2021-01-01 00:00+02")}') }, key => 1 },
	{ sql => 'tsvector', make => sub { pick('', "'a b':1A 'c''d':2,3B", "fat cat \x{e9}") } },
	{ sql => 'tsquery', make => sub { pick('', "'a b' & !c", 'fat <-> cat') } },
	{ sql => 'xml', make => \&xml },
	{ sql => 'point', make => \&point },
	{ sql => 'box', make => sub { point() . ',' . point() }, delimiter => ';' },
	{ sql => 'circle', make => sub { '<' . point() . ',' . pick(0, 1.5) . '>' } },
	{ sql => 'polygon', make => sub { '(' . point() . ',' . point() . ',' . point() . ')' } },
	{ sql => 'pg_lsn', make => sub { uc hex_digits(1 + below(8)) . '/' . uc hex_digits(1 + below(8)) }, key => 1 },
	{ sql => 'xid', make => sub { pick(0, 4294967295, digits(9)) } },
	{ sql => 'xid8', make => sub { pick(0, '18446744073709551615', digits(18)) }, key => 1 },
	{ sql => 'jsonpath', make => sub { pick('$', '$.a[*] ? (@ > 1)', 'strict $."x y"') } },
	{ sql => 'regtype', make => sub { pick('int4', 'pg_catalog.text[]', '-') } },
);

my $types = 0;    # that this test made, …
my @ddl;          # … by these statements

# A literal, or undef for NULL
sub value_of
{
	my ($type, $nullable) = @_;
	return $nullable && rand() < 0.12 ? undef : $type->{make}->();
}

# {…}, maybe of several dimensions, maybe with bounds
sub array_literal
{
	my ($element) = @_;
	my $delimiter = $element->{delimiter} || ',';
	return '{}' if rand() < 0.1;
	my @sizes = map { 1 + below(4) } 1 .. (rand() < 0.7 ? 1 : 2 + below(2));
	my $bounds = '';

	if (rand() < 0.2)
	{
		my @lower = map { below(7) - 3 } @sizes;
		$bounds = join('', map { "[$lower[$_]:" . ($lower[$_] + $sizes[$_] - 1) . ']' } 0 .. $#sizes) . '=';
	}
	my $nested;
	$nested = sub {
		my ($size, @rest) = @_;
		return '{' . join($delimiter, map { @rest ? $nested->(@rest) : array_element($element) } 1 .. $size) . '}';
	};
	return $bounds . $nested->(@sizes);
}

sub array_element
{
	my ($element) = @_;
	my $value = value_of($element, 1);

	return 'NULL' if !defined $value;
	return '"' . ($value =~ s/(["\\])/\\$1/gr) . '"';
}

# A type made of others, or one of the list
sub type
{
	my ($depth) = @_;
	my $kind = rand();

	return pick(@scalars) if $depth > 2 || $kind < 0.66;
	return array_of($depth) if $kind < 0.86;
	return domain_of($depth) if $kind < 0.93;
	return composite_of($depth);
}

# The function that maps to_jsonb() of an array or a domain, as SQL of its argument
sub json_of
{
	my ($type, $argument) = @_;
	return $argument if !$type->{json};
	return "$type->{json}($argument)";
}

sub array_of
{
	my ($depth) = @_;
	my $element;

	do { $element = type($depth + 1) } while $element->{array};
	my $array = { sql => "$element->{sql}\[\]", array => 1, make => sub { array_literal($element) } };
	if ($element->{json})
	{
		my $name = 'json_array_' . ++$types;

		push @ddl, "CREATE FUNCTION $name(j jsonb) RETURNS jsonb STRICT RETURN json_elements(j, '$element->{json}')";
		$array->{json} = $name;
	}
	return $array;
}

sub domain_of
{
	my ($depth) = @_;
	my $base = type($depth + 1);
	my $name = 'prop_domain_' . ++$types;

	push @ddl, "CREATE DOMAIN $name AS $base->{sql}";
	return { %$base, sql => $name };
}

sub composite_of
{
	my ($depth) = @_;
	my $name = 'prop_composite_' . ++$types;
	my @fields = map { { name => pick('a', 'B c', "\x{e9}", 'q"q', '\\') . $_, type => type($depth + 1) } } 1 .. 1 + below(4);
	my $list = join ', ', map { ident($_->{name}) . " $_->{type}->{sql}" } @fields;
	my $object = join ', ', map { my $n = quote($_->{name}); "$n, " . json_of($_->{type}, "j->$n") } @fields;

	push @ddl, "CREATE TYPE $name AS ($list)", "CREATE FUNCTION json_$name(j jsonb) RETURNS jsonb STRICT"
	  . " RETURN CASE jsonb_typeof(j) WHEN 'null' THEN j ELSE jsonb_build_object($object) END";
	return {
		sql => $name,
		json => "json_$name",
		make => sub {
			return '(' . join(',', map {
					my $value = value_of($_->{type}, 1);
					defined $value ? '"' . ($value =~ s/(["\\])/$1$1/gr) . '"' : '';
			} @fields) . ')';
		}
	};
}

sub ident
{
	my ($name) = @_;
	return '"' . ($name =~ s/"/""/gr) . '"';
}

#
# Tables
#
push @ddl, "CREATE TYPE prop_mood AS ENUM ('sad', 'it''s \"ok\"', '\x{1f418}', '')";

# Every type of the list is in some column; further columns are of random ones
my @queue = sort { rand() <=> 0.5 } @scalars;
my @tables;
foreach my $t (1 .. $tables)
{
	my @columns = ({ name => 'id', type => { sql => 'int4' } });
	my @types = splice @queue, 0, 3;

	push @types, map { type(0) } 1 .. 2 + below(6);
	foreach my $type (sort { rand() <=> 0.5 } @types)
	{
		my $name = pick('c', 'C', 'a b', 'q"', '\\', "\x{43a}\x{43b}\x{44e}\x{447}", "\x{1f418}", 'null') . scalar @columns;
		push @columns, { name => $name, type => $type };
	}

	# the key is id alone, or also a random column, before or behind it
	my @keys = ('id');
	my ($key) = grep { $_->{type}->{key} && $_->{type}->{sql} !~ /text|varchar$|bytea|numeric$/ } @columns[ 1 .. $#columns ];
	if ($key && rand() < 0.5)
	{
		@keys = rand() < 0.5 ? ('id', $key->{name}) : ($key->{name}, 'id');
		$key->{required} = 1;
	}
	my $definition = join ', ', (map { ident($_->{name}) . " $_->{type}->{sql}" } @columns),
	  'PRIMARY KEY (' . join(', ', map { ident($_) } @keys) . ')';
	push @tables, { name => "prop_$t", columns => \@columns, keys => \@keys, definition => $definition };
	push @ddl, "CREATE TABLE prop_$t ($definition)";
}
query($node, Encode::encode_utf8(join ";\n", @ddl));

# What a session does to its output must not matter
query($node, <<'SQL');
ALTER DATABASE postgres SET datestyle = 'German';
ALTER DATABASE postgres SET timezone = 'America/New_York';
ALTER DATABASE postgres SET intervalstyle = 'sql_standard';
ALTER DATABASE postgres SET extra_float_digits = -5;
ALTER DATABASE postgres SET bytea_output = 'escape';
ALTER DATABASE postgres SET xmloption = 'content';
SQL
my $pinned = "SET datestyle = 'ISO, YMD'; SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'; SET extra_float_digits = 1;"
  . "SET bytea_output = 'hex';";
create_pipeline($node, 'prop', tables => [ map { $_->{name} } @tables ],
	options => { envelope => 'plain', topic_partitions => 1 });

#
# The workload
#
my $directory = PostgreSQL::Test::Utils::tempdir;

sub copied { return defined $_[0] ? $_[0] =~ s/\\/\\\\/gr =~ s/\n/\\n/gr =~ s/\r/\\r/gr =~ s/\t/\\t/gr : '\\N'; }

# A statement that loads these lines
sub load
{
	my ($table, $lines) = @_;
	my $file = "$directory/$table";

	open my $out, '>', $file or die "$file: $!";
	print $out @$lines;
	close $out or die "$file: $!";
	return "COPY $table FROM '$file';\n";
}

my $workload = $pinned;
foreach my $table (@tables)
{
	my @lines;

	foreach my $id (1 .. int(($rows + $tables - 1) / $tables))
	{
		my (undef, @columns) = @{ $table->{columns} };
		my @values = ($id, map { value_of($_->{type}, !$_->{required}) } @columns);

		push @lines, Encode::encode_utf8(join("\t", map { copied($_) } @values) . "\n");
	}
	$workload .= load($table->{name}, \@lines);

	# Some rows get values of others, in one column; the rest of them is as it was, TOASTed values too
	my $column = ident($table->{columns}->[-1]->{name});
	$workload .= "UPDATE $table->{name} t SET $column = o.$column FROM $table->{name} o WHERE t.id % 4 = 0 AND o.id = t.id - 1;\n"
	  unless $table->{columns}->[-1]->{required};
	$workload .= "DELETE FROM $table->{name} WHERE id % 10 = 0;\n";
}
query($node, Encode::encode_utf8($workload));
is(query($node, q(SELECT kafka.wait_for(timeout => '120s'))), 't', 'all in Kafka') or die 'not in Kafka';

#
# The comparison
#
my ($n, @got) = (0);
foreach my $table (@tables)
{
	push @got, map { join("\t", $table->{name}, $n++, map { copied($_) } @$_{qw(key value headers)}) . "\n" }
	  raw_records("prop.public.$table->{name}");
}
query($node, 'CREATE TABLE got ("table" text, n int, key text, value text, headers text);' . load('got', \@got));

foreach my $table (@tables)
{
	my $name = $table->{name};
	my @columns = @{ $table->{columns} };
	my %json = map { my $c = ident($_->{name}); ($_->{name} => json_of($_->{type}, "to_jsonb(t.$c)")) } @columns;
	my $row = join ', ', map { quote($_->{name}) . ', coalesce(' . $json{$_->{name}} . ", 'null')" } @columns;
	my $key = join ', ', map { quote($_) . ", $json{$_}" } @{ $table->{keys} };
	my $names = join ', ', map { quote($_->{name}) } @columns;
	my $keys = join ', ', map { quote($_) } @{ $table->{keys} };
	my $verbatim = join ' AND ', 'true',
	  map { "(v.value::json->" . quote($_->{name}) . ')::text IS NOT DISTINCT FROM coalesce(btrim(t.' . ident($_->{name}) . q{::text, E' \t\r\n'), 'null')} }
	  grep { $_->{type}->{verbatim} } @columns;
	my $nulls = join ', ', map { 'CASE WHEN jsonb_typeof(t.' . ident($_->{name}) . q{::jsonb) = 'null' THEN } . quote($_->{name}) . ' END' }
	  grep { $_->{type}->{null} } @columns;

	# The last record of each row, which the table must equal; what was unchanged in TOAST tables is missing and named
	my $wrong = query($node, Encode::encode_utf8(<<"SQL"));
$pinned
WITH last AS (
	SELECT DISTINCT ON (key::jsonb->'id') *, (key::jsonb->>'id')::int AS id,
		coalesce(substring(headers from 'pg\\.unavailable=(\\[.*?\\])(?:,pg\\.|\$)')::jsonb, '[]') AS unavailable,
		coalesce(substring(headers from 'pg\\.json_null=(\\[.*?\\])(?:,pg\\.|\$)')::jsonb, '[]') AS nulls
	FROM got WHERE "table" = '$name' ORDER BY key::jsonb->'id', n DESC),
compared AS (
	SELECT v.*, id AS row_id, t.id IS NOT NULL AS present, jsonb_build_object($row) AS expected, jsonb_build_object($key) AS expected_key,
		ARRAY(SELECT json_object_keys(v.value::json)) AS names, ARRAY(SELECT json_object_keys(v.key::json)) AS keys,
		$verbatim AS verbatim, to_jsonb(array_remove(ARRAY[$nulls]::text[], NULL)) AS expected_nulls
	FROM last v FULL JOIN $name t USING (id))
SELECT left(row_id || ': ' || CASE
	WHEN key IS NULL THEN 'no record'
	WHEN c.value IS NULL THEN CASE WHEN present THEN 'a tombstone, but there is a row' END
	WHEN NOT present THEN 'a record, but there is no row'
	WHEN key::jsonb <> expected_key THEN 'key ' || key || ' instead of ' || expected_key
	WHEN keys <> ARRAY[$keys]::text[] THEN 'keys ' || keys::text
	WHEN c.value::jsonb <> expected - ARRAY(SELECT jsonb_array_elements_text(unavailable))
		THEN (SELECT string_agg(format('%s: %s instead of %s', e.key, c.value::jsonb->e.key, e.value), E'\\n') FROM jsonb_each(expected) e
			WHERE c.value::jsonb->e.key IS DISTINCT FROM e.value)
	WHEN names <> ARRAY(SELECT n FROM unnest(ARRAY[$names]::text[]) n WHERE NOT unavailable ? n) THEN 'columns ' || names::text
	WHEN nulls <> expected_nulls THEN format('null in JSON: %s instead of %s', nulls, expected_nulls)
	WHEN unavailable = '[]' AND NOT verbatim THEN 'json is not verbatim: ' || value
	END, 500) AS problem
FROM compared c ORDER BY 1 NULLS LAST LIMIT 5;
SQL
	$wrong =~ s/^\n*|\n*$//g;
	is($wrong, '', "$name: " . join ' ', map { $_->{type}->{sql} } @columns)
	  or diag Encode::encode_utf8("CREATE TABLE $name ($table->{definition})");
}
cmp_ok(query($node, 'SELECT count(value) FROM got'), '>=', $rows, 'as many rows as wanted');
done_testing();
