# Other people's programs, with which records are compared: test/oracle/*.java, on the jars that test/install put into
# build/oracle, and on the broker's.
package Oracle;

use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(basename dirname);
use IPC::Run ();
use TransactionalKafka;

our @EXPORT = qw(java_program start_java raw_records json_fields json_elements json_object);

my $top = abs_path(dirname(__FILE__)) . '/../..';
my $jars = ($ENV{ORACLE_JARS} || "$top/build/oracle") . '/*:' . ($ENV{KAFKA_JARS} || "$top/build/kafka") . '/*';
my $classes;

# Compiles them, once a test
sub classes
{
	return $classes if $classes;
	my ($compiler) = glob(($ENV{ORACLE_JARS} || "$top/build/oracle") . '/ecj-*.jar');
	my $output = '';

	$classes = PostgreSQL::Test::Utils::tempdir();
	# the compiler knows no * in a class path
	my $path = join ':', map { glob } split /:/, $jars =~ s/\*/*.jar/gr;
	IPC::Run::run([ 'java', '-XX:TieredStopAtLevel=1', '-jar', $compiler, '-17', '-nowarn', '-cp', $path, '-d', $classes,
			glob "$top/test/oracle/*.java" ], '<', \undef, '>&', \$output, IPC::Run::timeout(120))
	  or croak "compiling test/oracle: $output";
	return $classes;
}

# The command line of a program of test/oracle
sub java_program
{
	my ($name, @arguments) = @_;

	return ('java', '-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-XX:-UsePerfData', '-Xmx512m', '-Dfile.encoding=UTF-8',
		'-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', '-cp', classes() . ":$jars", $name, @arguments);
}

# Starts it: { run => IPC::Run's handle, output =>, errors => }
sub start_java
{
	my $program = { output => '', errors => '' };

	$program->{run} = IPC::Run::start([ java_program(@_) ], '<', \undef, '>', \$program->{output}, '2>', \$program->{errors});
	return $program;
}

# A topic's committed records as bytes, in the order of the partitions and offsets: { key, value, headers, partition,
# offset }; undef is Kafka's null, headers are as kcat writes them, name=value,name=value.  Without JSON between, it
# reads a hundred times as fast as consume().
sub raw_records
{
	my ($topic, %o) = @_;
	my ($output, $errors) = ('', '');
	my @records;

	IPC::Run::run([
			qw(kcat -C -q -e -u -o beginning -X isolation.level=read_committed -X fetch.wait.max.ms=5 -X fetch.error.backoff.ms=20 -b),
			$o{broker} || broker(), '-t', $topic, '-f', "%p %o %K %S %k%s%h\n" ], '<', \undef, '>', \$output, '2>', \$errors) or croak "kcat: $errors";
	open my $in, '<:raw', \$output or croak $!;
	while (!eof $in)
	{
		my ($partition, $offset, @lengths) = map { local $/ = ' '; int readline $in } 1 .. 4;
		my ($key, $value);

		foreach my $field (\$key, \$value)
		{
			my $length = shift @lengths;

			$$field = '' if $length >= 0;
			read $in, $$field, $length if $length > 0;
		}
		my $headers = readline $in;
		chomp $headers;
		push @records, { key => $key, value => $value, headers => $headers, partition => $partition, offset => $offset };
	}
	return sort { $a->{partition} <=> $b->{partition} || $a->{offset} <=> $b->{offset} } @records;
}

# The fields of a JSON object without blanks between them, in their order: [name, text], both as they stand there.
sub json_fields
{
	my ($json) = @_;
	my @fields;

	$json =~ /\G\{/gc or croak "no object: $json";
	while ($json =~ /\G,?("(?:[^"\\]++|\\.)*+"):/gcs) { push @fields, [ $1, value_at(\$json) ]; }
	$json =~ /\G\}$/gc or croak 'not the end at ' . pos($json) . " of $json";
	return @fields;
}

# The elements of an array likewise
sub json_elements
{
	my ($json) = @_;
	my @elements;

	$json =~ /\G\[/gc or croak "no array: $json";
	while ($json !~ /\G\]$/gc)
	{
		$json =~ /\G,/gc;
		push @elements, value_at(\$json);
	}
	return @elements;
}

# The value at a text's pos(), which is moved behind it
sub value_at
{
	my ($json) = @_;
	my $string = qr/"(?:[^"\\]++|\\.)*+"/s;
	my ($start, $depth) = (pos $$json, 0);

	while (1)
	{
		if    ($$json =~ /\G[\[{]/gc) { $depth++; }
		elsif ($depth > 0 && $$json =~ /\G[\]}]/gc) { $depth--; }
		elsif ($depth > 0 ? $$json =~ /\G(?:$string|[^"\[\]{}]++)/gc : $$json =~ /\G(?:$string|[^",\[\]{}]++)/gc) { }
		else                          { last; }
	}
	croak "no value at $start of $$json" if pos $$json == $start;
	return substr $$json, $start, pos($$json) - $start;
}

# An object of such fields
sub json_object
{
	return '{' . join(',', map { "$_->[0]:$_->[1]" } @_) . '}';
}

1;
