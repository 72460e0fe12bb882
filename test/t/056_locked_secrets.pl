# Secrets: in no log, view, message or process title of ours, whatever librdkafka's debugging says; in dumps and views of
# PostgreSQL's only for whom it shows them; and README's way to keep them out of PostgreSQL's own logs.
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run ();
use Test::More;
use LockedBroker;
use TransactionalKafka;

my $locked  = LockedBroker->new;
my $address = $locked->address;
my $node    = new_node('main', join "\n", q(shared_preload_libraries = 'transactional_kafka, pg_stat_statements'),
	'log_min_messages = debug1', 'log_statement = all', 'log_min_duration_statement = 0', 'log_transaction_sample_rate = 1', '');
my $readme  = PostgreSQL::Test::Utils::slurp_file(dirname(__FILE__) . '/../../README.md');
my ($section) = $readme =~ /^### Secrets in PostgreSQL\n(.*?)^##/ms;
my ($silently) = $section =~ /^```sql\n(.*?)^```/ms;
my ($silence)  = $silently =~ /^((?:SET [^;]+;\n)+)/;

foreach my $principal ('User:shop', 'User:CN=client')
{
	$locked->grant($principal, transactional_id => 'pg.', 'Write');
	$locked->grant($principal, topic => $_->[0], $_->[1])
	  foreach [ 'secret_', 'Write' ], [ 'secret_', 'Create' ], map { [ 'pg.', $_ ] } qw(Write Read Create DescribeConfigs);
}
my @key_lines = grep { !/^-----/ } split /\n/, $locked->text('client.key');
my @secrets = ('Open-Sesame-42', 'plain-secret', 'key-secret', @key_lines);
my $secret  = join '|', map { quotemeta } @secrets;
cmp_ok(scalar @key_lines, '>', 2, 'a private key has lines that nobody shall see');

sub is_silent
{
	my ($text, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @told = $text =~ /(.*(?:$secret).*)/g;
	return is(scalar @told, 0, $what) || diag join "\n", @told;
}

sub log_of { my ($offset) = @_; return PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset || 0); }

# README's way
query($node, 'CREATE EXTENSION transactional_kafka; CREATE EXTENSION pg_stat_statements');
foreach my $listener ('SASL_SSL', 'SSL')
{
	my %options = ($locked->options($listener), debug => 'all');
	my %secrets = $locked->secrets($listener);
	my $list = join ', ', map { "\"$_\" " . quote($options{$_}) } sort keys %options;
	my $secret_list = join ', ', map { "\"$_\" " . quote($secrets{$_}) } sort keys %secrets;

	query($node, "CREATE SERVER $listener FOREIGN DATA WRAPPER transactional_kafka OPTIONS ($list)");
	query($node, "$silence CREATE USER MAPPING FOR CURRENT_USER SERVER $listener OPTIONS ($secret_list)");
}
is(query($node, q(SELECT count(*) FROM pg_stat_statements WHERE query ILIKE 'CREATE SERVER%')), 2, 'pg_stat_statements has the servers');
is(query($node, q(SELECT count(*) FROM pg_stat_statements WHERE query ILIKE 'CREATE USER MAPPING%')), 0, '... and, README\'s way, not the user mappings');
like(log_of(), qr/statement: CREATE SERVER SASL_SSL/, 'the log has the servers');
is_silent(log_of(), '... and not the user mappings');

# Pipelines that work, one that may not, and one that can't
table_pipeline($node, 'secret_sasl',   server => 'sasl_ssl', broker => $address);
table_pipeline($node, 'secret_mutual', server => 'ssl',      broker => $address);
my %wrong = $locked->options('SASL_SSL');
query($node, 'CREATE ROLE another SUPERUSER; CREATE USER MAPPING FOR another SERVER sasl_ssl');
my ($output, $errors) = ('', '');
query($node, "$silence ALTER USER MAPPING FOR another SERVER sasl_ssl OPTIONS (ADD \"sasl.username\" 'shop', ADD \"sasl.password\" 'Open-Sesame-42')");
$node->psql('postgres', q(SET SESSION AUTHORIZATION another; CALL kafka.create_pipeline('secret_wrong', 'sasl_ssl')), stderr => \$errors);
like($errors, qr/WARNING:  pipeline "secret_wrong" captures changes, but has not reached Kafka yet.*Invalid username or password/s, 'a wrong password is said');
sub alter_mapping { my ($change) = @_; return "$silence ALTER USER MAPPING FOR another SERVER sasl_ssl OPTIONS ($change)"; }
my $message = '';
$node->psql('postgres', alter_mapping('SET "sasl.password" ' . quote('x' x 20000 . 'Open-Sesame-42')), stderr => \$message);
like($message, qr/ERROR:  value of option "sasl\.password" is too long\nDETAIL:  It has 20014 bytes; at most 16384 are possible\./, 'a password that is too long is not taken');
$errors .= $message;
wait_until { query($node, q(SELECT failures FROM kafka.stat_pipelines WHERE pipeline = 'secret_wrong')) >= 2 } 'two starts with a wrong password', 60;
query($node, alter_mapping("ADD \"ssl.key.pem\" 'Open-Sesame-42'"));
is_stopped($node, 'secret_wrong', 'failed', qr/ssl\.key\.pem/);
is(query($node, q(SELECT kafka.wait_for(pipeline => 'secret_sasl', timeout => '60s'))), 't', 'one that is right goes on');

# Nobody has told
my $debug = log_of();
like($debug, qr/librdkafka, pipeline "$_": .*sasl|librdkafka, pipeline "$_": .*ssl/i, "librdkafka's debugging of $_ is in the log") foreach qw(secret_sasl secret_mutual secret_wrong);
is_silent($debug, '... without a secret');
is_silent($errors, 'nor in messages');
my $views = join '', map { query($node, "SELECT v::text FROM kafka.$_ v") }
  grep { $_ ne '' } split /\n/, query($node, q(SELECT viewname FROM pg_views WHERE schemaname = 'kafka'
	UNION ALL SELECT tablename FROM pg_tables WHERE schemaname = 'kafka' ORDER BY 1));
like($views, qr/ssl\.key\.pem failed/, 'the views say what is wrong');
is_silent($views, '... without a secret');
is_silent(query($node, 'SELECT a::text FROM pg_stat_activity a WHERE pid <> pg_backend_pid()'), 'nor in pg_stat_activity');
my $titles = '';
foreach my $file (glob '/proc/[0-9]*/cmdline')
{
	my $title = eval { PostgreSQL::Test::Utils::slurp_file($file) } || '';
	$titles .= "$title\n" if $title =~ /^postgres:/;
}
like($titles, qr/transactional_kafka pipeline secret_sasl/, 'process titles are there');
is_silent($titles, '... and have no secret');
my @broken = split /\n/, query($node, q(SELECT query FROM pg_stat_statements));
is_silent(join("\n", @broken), 'nor has pg_stat_statements');

# Dumps: with the right to see it, only
sub dump_by
{
	my ($role) = @_;
	my ($text, $messages) = ('', '');

	IPC::Run::run([ 'pg_dump', '--schema-only', '--exclude-schema=kafka', '--exclude-schema=public', '-U', $role, '-d', $node->connstr('postgres') ],
		'<', \undef, '>', \$text, '2>', \$messages)
	  or die "pg_dump by $role: $messages";
	return $text;
}
query($node, 'CREATE ROLE stranger LOGIN; GRANT USAGE ON FOREIGN SERVER sasl_ssl TO stranger');
my $superuser = query($node, 'SELECT current_user');
like(dump_by($superuser), qr/USER MAPPING FOR .* SERVER sasl_ssl OPTIONS.*'plain-secret'/s, 'pg_dump by a superuser holds the password');
my $strangers = dump_by('stranger');
like($strangers, qr/CREATE USER MAPPING FOR \S+ SERVER sasl_ssl/, '... by a stranger the user mapping');
is_silent($strangers, '... without it');
my $seen = query($node, 'SET SESSION AUTHORIZATION stranger; SELECT m::text FROM pg_user_mappings m');
like($seen, qr/sasl_ssl/, 'a stranger sees that there are user mappings');
is_silent($seen, '... and not what they say');
query($node, "$silence CREATE USER MAPPING FOR stranger SERVER sasl_ssl OPTIONS (\"sasl.password\" 'Open-Sesame-42')");
like(query($node, 'SET SESSION AUTHORIZATION stranger; SELECT m::text FROM pg_user_mappings m'), qr/stranger.*Open-Sesame-42/, '... but for their own');
isnt($node->psql('postgres', 'SET SESSION AUTHORIZATION stranger; SELECT * FROM pg_user_mapping'), 0, '... nor in the catalog');

# Who may set what: files, programs, libraries
query($node, 'GRANT USAGE ON FOREIGN DATA WRAPPER transactional_kafka TO stranger');
foreach my $option ('ssl.ca.location', 'ssl.key.location', 'ssl.certificate.location', 'ssl.keystore.location', 'ssl.crl.location', 'ssl.providers',
	'ssl.engine.location', 'sasl.kerberos.kinit.cmd', 'sasl.kerberos.keytab', 'sasl.oauthbearer.token.endpoint.url', 'debug')
{
	my $message = '';
	isnt($node->psql('postgres', "SET SESSION AUTHORIZATION stranger; CREATE SERVER x FOREIGN DATA WRAPPER transactional_kafka "
			  . "OPTIONS (\"bootstrap.servers\" 'x:1', \"$option\" 'all')", stderr => \$message), 0, "$option is not for everybody");
	like($message, qr/ERROR:  only a superuser can set the option "\Q$option\E"/, '... and the message says so');
}
foreach my $option ('plugin.library.paths', 'transactional.id', 'enable.idempotence', 'no.such.property')
{
	isnt($node->psql('postgres', "CREATE SERVER x FOREIGN DATA WRAPPER transactional_kafka OPTIONS (\"bootstrap.servers\" 'x:1', \"$option\" '1')"), 0,
		"$option is for nobody");
}

# What README's way is for: without it PostgreSQL tells
query($node, q(ALTER USER MAPPING FOR another SERVER sasl_ssl OPTIONS (SET "sasl.password" 'Open-Sesame-43')));
like(log_of(), qr/Open-Sesame-43/, 'the log has a statement that was given as any other');
is(query($node, q(SELECT count(*) FROM pg_stat_statements WHERE query ~ 'Open-Sesame-4[3]')), 1, '... pg_stat_statements too');
is(logged($node, qr/PANIC|terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
