# Every SQL function of the extension, called at random by roles that may do little: no crash, no internal error.
# TK_FUZZ_SECONDS (20), TK_FUZZ_SEED (printed).
use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use TransactionalKafka;

my $seconds = $ENV{TK_FUZZ_SECONDS} || 20;
my $seed = $ENV{TK_FUZZ_SEED} || int(time * 1000) % 2**31;
my $node = new_node('main', "log_error_verbosity = verbose\nlog_min_error_statement = error\nlog_min_messages = warning\n");

create_server($node);
query($node, <<'SQL');
CREATE ROLE fuzz_plain;
CREATE ROLE fuzz_user;
CREATE ROLE fuzz_owner REPLICATION;
GRANT USAGE ON FOREIGN SERVER kafka TO fuzz_user, fuzz_owner;
CREATE USER MAPPING FOR fuzz_user SERVER kafka OPTIONS (allowed_topics '^fuzz[-._a-z]*');
CREATE TABLE fuzz_rows AS SELECT i FROM generate_series(1, 5) i;
CREATE TABLE fuzz_t (id int PRIMARY KEY, "b c" text);
ALTER TABLE fuzz_t OWNER TO fuzz_owner;
GRANT ALL ON fuzz_rows TO PUBLIC;
SQL
create_pipeline($node, 'fuzz', options => { topic_partitions => 2, checkpoint_interval => '5ms' });
query($node, q(SET ROLE fuzz_owner; CALL kafka.create_pipeline('fuzz_owned', 'kafka', tables => '{fuzz_t}')));
srand $seed;
note("TK_FUZZ_SEED=$seed");

sub one_of { return $_[ rand @_ ]; }

sub random_text
{
	return join '', map { one_of('a' .. 'e', 0 .. 9, '.', '-', '_', ' ', '"', "''", '\\', "\n", "\x{e9}", "\x{20ac}", '{', '}', '[', ']', ':', ',') }
	  1 .. rand 20;
}

# A JSON value as text, now and then a broken one.
sub random_json
{
	my ($depth) = @_;
	my $kind = int rand($depth > 2 ? 6 : 9);

	return one_of('null', 'true', 'false') if $kind < 1;
	return one_of('0', '-1', '1.50', '1e400', '-0.0e-9', '9999999999999999999999', '100', '2147483648') if $kind < 3;
	return '"' . one_of('1s', '100ms', '64MB', 'debezium', 'plain', 'id', 'fuzz-a', 'insert,delete', '', 'x' x 300, '\u0000', '\ud83d', '\u00e9', '-5min',
		'\"', 'true') . '"'
	  if $kind < 6;
	return '[' . join(',', map { random_json($depth + 1) } 1 .. rand 4) . ']' if $kind < 7;
	return '{'
	  . join(',',
		map {
			'"'
			  . one_of(qw(checkpoint_interval checkpoint_timeout checkpoint_max_records checkpoint_max_bytes tolerable_failed_checkpoints
				retained_checkpoints transaction_timeout envelope operations topic key json topic_config metadata_headers topic_partitions
				a b c), '', 'a b', '\u0000', "\x{e9}")
			  . '":' . random_json($depth + 1)
		  } 1 .. rand 4)
	  . '}'
	  . (rand > 0.95 ? one_of('}', ',', 'x') : '');
}

my %values = (
	text => sub { one_of("'fuzz-a'", "'fuzz.b'", "''", "'.'", "'..'", "repeat('x', 249)", "repeat('x', 250)", "'fuzz'", "repeat('\x{e9}', 100000)",
			"(SELECT progress_topic FROM kafka.pipelines LIMIT 1)", "'" . random_text() . "'") },
	name => sub { one_of("'fuzz'", "'fuzz'", "'fuzz_owned'", "'none'", "''", "'kafka'", "repeat('x', 100)::name", "'" . random_text() . "'") },
	bytea => sub { one_of(q('\x'::bytea), q('\x00ff'::bytea), q(decode(repeat('00', 5000), 'hex')), q('abc'::bytea)) },
	jsonb => sub { "'" . random_json(0) . "'::jsonb" },
	'kafka.headers' => sub { "'" . random_json(0) . "'" . one_of('', '', '::kafka.headers', '::json', '::jsonb') },
	# only partitions are integers; one that does not exist would stop the pipeline, and who makes a topic first is chance
	integer => sub { one_of(0, -1, -2147483648) },
	boolean => sub { one_of('true', 'false') },
	interval => sub { one_of(map { "'$_'::interval" } '0', '-1s', '50ms', '1 year', '178000000 years', '-178000000 years', '1 mon -1 day') },
	pg_lsn => sub { one_of(map { "'$_'::pg_lsn" } '0/0', '0/1', 'FFFFFFFF/FFFFFFFF', '1/0') },
	regclass => sub { one_of(q('fuzz_t'::regclass), q('pg_class'::regclass), '0::regclass', '4294967295::oid::regclass', q('kafka.pipelines'::regclass)) },
	'regclass[]' => sub { one_of(q('{}'), q('{fuzz_t}'), q('{NULL}'), q('{fuzz_t,fuzz_t}'), q('{{fuzz_t},{pg_class}}')) },
	'text[]' => sub { one_of(q('{}'), q('{a=b}'), q('{NULL}')) },
	oid => sub { one_of('0', '1417', '1418', '4294967295') },
	cstring => sub { "'" . random_json(0) . "'" });

# All functions, but for those whose arguments or calls SQL does not have
my @functions;

foreach my $row (split /\n/, query($node, <<'SQL'))
SELECT proname, prokind, proretset, array_to_string(proargnames[1:pronargs], ',') AS names,
	(SELECT string_agg(format_type(t, NULL), ',' ORDER BY n) FROM unnest(proargtypes::oid[]) WITH ORDINALITY AS a(t, n)) AS types
FROM pg_proc WHERE pronamespace = 'kafka'::regnamespace
	AND NOT 'internal'::regtype = ANY (proargtypes) AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
ORDER BY proname, types
SQL
{
	my ($name, $kind, $set, $names, $types) = split /\|/, $row, -1;

	push @functions,
	  { name => $name, procedure => $kind eq 'p', set => $set eq 't', names => [ split /,/, $names ], types => [ split /,/, $types ] };
}
cmp_ok(scalar @functions, '>', 20, 'functions to call');
my @unknown = grep { !$values{$_} } map { @{ $_->{types} } } @functions;
is_deeply(\@unknown, [], 'the type of each argument is known here');

sub random_call
{
	my ($f) = @_;
	my $n = @{ $f->{types} };
	my @arguments;

	foreach my $i (0 .. $n - 1)
	{
		last if rand > 0.97;
		push @arguments, rand > 0.92 ? 'NULL' : $values{ $f->{types}->[$i] }->();
		$arguments[-1] = "\"$f->{names}->[$i]\" => $arguments[-1]" if @{ $f->{names} } == $n && ($arguments[0] =~ /=>/ || rand > 0.8);
	}
	return "kafka.$f->{name}(" . join(', ', @arguments) . ')';
}

# What owners may do changes the pipeline at once: mostly its options, for the sake of their parsers.
sub random_statement
{
	my ($role) = @_;
	my @choice = @functions;
	my $f;

	@choice = grep { $_->{name} =~ /^(alter_pipeline|set_table|produce|stat_reset|checkpoint|wait_for|headers_in)$/ } @functions
	  if $role eq 'fuzz_owner';
	@choice = grep { $_->{name} eq 'produce' } @functions if rand > 0.7;
	$f = one_of(@choice);
	my $call = random_call($f);

	return "CALL $call" if $f->{procedure};
	return one_of("SELECT * FROM $call x", "SELECT count(*) FROM fuzz_rows, LATERAL $call x") if $f->{set};
	return one_of(
		("SELECT $call") x 6,
		"SELECT count($call) FROM fuzz_rows",
		"SELECT $call FROM fuzz_rows WHERE i > 3",
		"SELECT i FROM fuzz_rows ORDER BY ($call)::text LIMIT 1",
		"SELECT ($call)::text || " . random_call(one_of(@choice)) . '::text',
		"SELECT CASE WHEN random() < 0.5 THEN $call END FROM fuzz_rows",
		"DO \$fuzz\$ BEGIN PERFORM $call; EXCEPTION WHEN OTHERS THEN IF SQLSTATE = 'XX000' THEN RAISE; END IF; END \$fuzz\$",
		"BEGIN; SELECT $call; SAVEPOINT s; SELECT $call; ROLLBACK TO s; COMMIT",
		"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT $call; ROLLBACK",
		"BEGIN READ ONLY; SELECT $call; COMMIT",
		"SELECT * FROM kafka.pipelines WHERE ($call) IS NOT NULL",
		'SELECT * FROM kafka.' . one_of(qw(stat_pipelines stat_checkpoints stat_progress_checkpoints checkpoints)) . " WHERE ($call) IS NULL");
}

my $end = time + $seconds;
my ($statements, $succeeded, @internal) = (0, 0);

while (time < $end && !@internal)
{
	my $role = one_of(qw(fuzz_plain fuzz_user fuzz_user fuzz_owner));
	my @batch = map { random_statement($role) } 1 .. 100;
	my ($output, $errors) = ('', '');
	my $sql = join '', map { "$_;\n\\echo done :ERROR\nROLLBACK;\n" } @batch;

	utf8::encode($sql);
	$node->psql('postgres',
		"\\set VERBOSITY verbose\nSET client_min_messages = error;\nSET statement_timeout = '300ms';\nSET lock_timeout = '300ms';\nSET ROLE $role;\n$sql",
		stdout => \$output, stderr => \$errors, on_error_stop => 0, timeout => 120);
	$statements += my @done = $output =~ /^done (\w+)$/mg;
	$succeeded += grep { $_ eq 'false' } @done;
	push @internal, $errors =~ /^(psql:.*(?:XX\d\d\d|FATAL|PANIC|server closed|connection).*)$/mg;
	push @internal, "the batch ended after $#done statements: " . ($batch[@done] || '') if @done != @batch;
	diag(map { "line $_\n" } grep { defined } map { /stdin>:(\d+)/ ? "$1: " . (split /\n/, $sql)[ $1 - 6 ] : undef } @internal) if @internal;
}
is_deeply(\@internal, [], "$statements statements, no internal error") or diag("TK_FUZZ_SEED=$seed");
cmp_ok($succeeded, '>', $statements / 20, "$succeeded of them have done something");
is(query($node, 'SELECT 1'), '1', 'the server lives');
is(logged($node, qr/(?:ERROR|FATAL|PANIC):  XX/), 0, '… and has not seen an internal error in any process');
is(logged($node, qr/terminated by signal|exited with exit code [2-9]/), 0, '… nor lost one');

# The pipeline that they could only write to still works, and has rejected nothing of what produce() has written.
wait_for_state($node, 'fuzz', 'running');
query($node, q(SELECT kafka.produce('fuzz-last', 'last', pipeline => 'fuzz')));
is(query($node, q(SELECT kafka.wait_for(pipeline => 'fuzz', timeout => '120s'))), 't', 'all in Kafka');
is(query($node, q(SELECT rejected_messages FROM kafka.stat_pipelines WHERE pipeline = 'fuzz')), 0, 'nothing was rejected');
is_deeply([ map { $_->{payload} } consume('fuzz-last') ], ['last'], 'the pipeline goes on');

done_testing();
