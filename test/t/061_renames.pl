# Renaming: a row goes where the name of its table says that was valid when it was written, whether the pipeline keeps up
# or lags behind, and every row once.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

my $node = new_node('main');
create_server($node);

# A test: the topics hold exactly these rows, by the name of the topic.
sub hold
{
	my ($what, %topics) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	# what is committed is visible once the transaction's markers are written
	foreach my $topic (sort keys %topics)
	{
		my @records = consume_until($topic, scalar @{ $topics{$topic} }, timeout => 20);
		is_deeply([ map { value($_)->{after} } @records ], $topics{$topic}, "$what: $topic");
	}
	return;
}

sub ids { return [ map { { id => $_ } } @_ ]; }

foreach my $lags (0, 1)
{
	my $p = $lags ? 'lagging' : 'running';
	my $do = sub {
		query($node, $_[0]);
		all_sent($node, $p) unless $lags;
	};
	my $s = "s_$p";

	query($node, "CREATE SCHEMA $s; CREATE TABLE $s.t (id int PRIMARY KEY); CREATE SCHEMA ${s}_other; CREATE TABLE $s.other (id int PRIMARY KEY)");
	create_pipeline($node, $p, tables => [ "$s.t", "$s.other" ]);
	query($node, "CALL kafka.pause('$p')") if $lags;

	$do->("INSERT INTO $s.t VALUES (1); INSERT INTO $s.other VALUES (1)");
	$do->("ALTER TABLE $s.t RENAME TO t2");
	$do->("INSERT INTO $s.t2 VALUES (2)");
	$do->("ALTER TABLE $s.t2 SET SCHEMA ${s}_other");
	$do->("INSERT INTO ${s}_other.t2 VALUES (3)");
	$do->("ALTER SCHEMA ${s}_other RENAME TO ${s}_third");
	$do->("INSERT INTO ${s}_third.t2 VALUES (4)");
	$do->("BEGIN; INSERT INTO ${s}_third.t2 VALUES (5); ALTER TABLE ${s}_third.t2 RENAME TO t3; INSERT INTO ${s}_third.t3 VALUES (6); COMMIT");
	$do->("BEGIN; INSERT INTO ${s}_third.t3 VALUES (7); ALTER SCHEMA ${s}_third RENAME TO ${s}_fourth; INSERT INTO ${s}_fourth.t3 VALUES (8); COMMIT");
	$do->("BEGIN; INSERT INTO ${s}_fourth.t3 VALUES (9); ALTER TABLE ${s}_fourth.t3 RENAME TO gone; ROLLBACK; INSERT INTO ${s}_fourth.t3 VALUES (10)");
	$do->("ALTER TABLE ${s}_fourth.t3 RENAME COLUMN id TO key");
	$do->("INSERT INTO ${s}_fourth.t3 VALUES (11)");
	$do->("INSERT INTO $s.other VALUES (2)");

	query($node, "CALL kafka.resume('$p')") if $lags;
	all_sent($node, $p);
	hold("a pipeline $p while names change",
		"$p.$s.t"           => ids(1),
		"$p.$s.t2"          => ids(2),
		"$p.${s}_other.t2"  => ids(3),
		"$p.${s}_third.t2"  => ids(4, 5),
		"$p.${s}_third.t3"  => ids(6, 7),
		"$p.${s}_fourth.t3" => [ @{ ids(8, 10) }, { key => 11 } ],
		"$p.$s.other"       => ids(1, 2));
	my @keys = map { $_->{key} } consume("$p.${s}_fourth.t3");
	is_deeply(\@keys, [ '{"id":8}', '{"id":10}', '{"key":11}' ], 'the key has the names of its columns at that time');
	is(pipeline_field($node, $p, 'tables'), "{$s.other,${s}_fourth.t3}", 'the definition follows');

	# a restart in the middle of it takes the same names
	terminate_worker($node, $p);
	query($node, "INSERT INTO ${s}_fourth.t3 VALUES (12); ALTER TABLE ${s}_fourth.t3 RENAME TO t4; INSERT INTO ${s}_fourth.t4 VALUES (13)");
	all_sent($node, $p);
	hold('and after a new start', "$p.${s}_fourth.t3" => [ @{ ids(8, 10) }, { key => 11 }, { key => 12 } ],
		"$p.${s}_fourth.t4" => [ { key => 13 } ]);
	query($node, "CALL kafka.drop_pipeline('$p')");
}

#
# Names that would not do
#
query($node, 'CREATE TABLE a_b (id int PRIMARY KEY); CREATE TABLE ab (id int PRIMARY KEY); CREATE SCHEMA ax; CREATE TABLE ax.a_b (id int PRIMARY KEY)');
query($node, 'CREATE TABLE free (id int PRIMARY KEY)');
query($node, 'CREATE PUBLICATION picked FOR TABLE free');
create_pipeline($node, 'names', tables => [qw(a_b ab ax.a_b)]);
create_pipeline($node, 'published', publication => 'picked');
fails_with($node, 'ALTER TABLE ab RENAME TO "a b"', qr/tables public\.(a_b|"a b") and public\.(a_b|"a b") of pipeline "names" would share the topic "names.public.a_b"/,
	'a table is not renamed so that it shares a topic with another one');
query($node, 'CREATE SCHEMA "a x"; CREATE TABLE "a x".ab (id int PRIMARY KEY); CREATE SCHEMA a_x; CREATE TABLE a_x.ab (id int PRIMARY KEY)');
fails_with($node, 'ALTER PUBLICATION picked ADD TABLE "a x".ab, a_x.ab', qr/of pipeline "published" would share the topic "published.a_x.ab"/,
	'two such tables do not join a publication');
query($node, 'ALTER PUBLICATION picked ADD TABLE a_x.ab');
query($node, 'CREATE SCHEMA ay; CREATE TABLE ay.ab (id int PRIMARY KEY); ALTER PUBLICATION picked ADD TABLE ay.ab');
fails_with($node, 'ALTER SCHEMA ay RENAME TO "a$x"',
	qr/of pipeline "published" would share the topic "published.a_x.ab"/, 'a schema is not renamed so either');
query($node, 'ALTER TABLE ax.a_b SET SCHEMA ay');
query($node, 'INSERT INTO ay.a_b VALUES (1); INSERT INTO a_b VALUES (1)');
all_sent($node, 'names');
hold('what may be renamed was', 'names.ay.a_b' => ids(1), 'names.public.a_b' => ids(1));

# columns of a key that set_table() chose
query($node, 'ALTER TABLE a_b ADD n int, REPLICA IDENTITY FULL');
query($node, q(SELECT kafka.set_table('names', 'a_b', '{"key": ["n"]}')));
my $key = qr/column "n" of table public.a_b does not exist.*part of the key in pipeline "names"/s;
fails_with($node, 'ALTER TABLE a_b RENAME COLUMN n TO m', $key, 'a column of a chosen key is not renamed');
fails_with($node, 'ALTER TABLE a_b DROP n', $key, '… nor dropped');
fails_with($node, 'ALTER TABLE a_b REPLICA IDENTITY DEFAULT', qr/key column "n" of table public.a_b is not in its replica identity/,
	'… nor taken out of the replica identity');
query($node, 'ALTER TABLE a_b RENAME COLUMN id TO ident; INSERT INTO a_b VALUES (2, 20)');
all_sent($node, 'names');
is((consume_until('names.public.a_b', 2))[1]->{key}, '{"n":20}', 'other columns are, and the pipeline goes on');
my ($id) = split /\|/, query($node, q(SELECT pipeline_id FROM kafka.pipeline WHERE name = 'names'));
fails_with($node, "ALTER PUBLICATION tk_${id}_delete RENAME TO mine", qr/cannot rename publication "tk_${id}_delete" because pipeline "names" uses it/,
	'a publication of the pipeline\'s own is not renamed');

#
# Server, publication, database
#
query($node, 'ALTER SERVER kafka RENAME TO cluster');
is(query($node, q(SELECT string_agg(DISTINCT server, ' ') FROM kafka.pipelines)), 'cluster', 'a renamed server is followed');
query($node, 'CREATE PUBLICATION unused; ALTER PUBLICATION unused RENAME TO used');
pass('a publication that no pipeline uses is renamed');

query($node, 'CREATE DATABASE before');
create_server($node, database => 'before');
query($node, 'CREATE TABLE t (id int PRIMARY KEY)', database => 'before');
create_pipeline($node, 'moved', tables => ['t'], options => { envelope => 'debezium' }, database => 'before');
query($node, 'INSERT INTO t VALUES (1)', database => 'before');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), database => 'before'), 't', 'a row of the database with its old name');
fails_with($node, 'ALTER DATABASE before RENAME TO after', qr/database "before" is being accessed by other users/,
	'a database with a running pipeline is not renamed');
query($node, q(CALL kafka.pause('moved')), database => 'before');
query($node, 'INSERT INTO t VALUES (2)', database => 'before');
my $uuid = query($node, 'SELECT uuid FROM kafka.pipelines', database => 'before');
query($node, 'ALTER DATABASE before RENAME TO after');
query($node, q(CALL kafka.resume('moved')), database => 'after');
query($node, 'INSERT INTO t VALUES (3)', database => 'after');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), database => 'after'), 't', '… one with a paused pipeline is');
is_deeply([ values_of('after.id', consume_until('moved.public.t', 3)) ], [ 1, 2, 3 ], '… and all rows arrive, each once');
is(query($node, 'SELECT uuid FROM kafka.pipelines', database => 'after'), $uuid, '… from the same pipeline');
query($node, q(CALL kafka.drop_pipeline('moved')), database => 'after');

done_testing();
