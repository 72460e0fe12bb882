# Records as an independent consumer gets them, byte for byte; what differs from run to run is masked as N.
package Records;

use strict;
use warnings;

use Encode ();
use Exporter qw(import);
use Test::More ();
use TransactionalKafka;

our @EXPORT = qw(shown mask brief new_records records_are);

# What one record shows: key and value (- is Kafka's null), as bytes, times and positions masked.
sub shown
{
	my ($record) = @_;

	return join ' ', map { defined $_ ? mask(Encode::encode_utf8($_)) : '-' } $record->{key}, $record->{payload};
}

sub mask
{
	my ($text) = @_;

	$text =~ s/"(ts_ms|ts_us|ts_ns|txId|lsn)":\d+/"$1":N/g;
	$text =~ s/"sequence":"\[(?:null|\\"\d+\\"),\\"\d+\\"\]"/"sequence":"N"/g;
	return $text;
}

# A change in Debezium's envelope without what is the same in all of them: op, before, after.
sub brief
{
	my ($record) = @_;
	my $text = shown($record);

	$text =~ s/"source":\{.*?\},"transaction":null,//;
	$text =~ s/,"ts_ms":N,"ts_us":N,"ts_ns":N//;
	return $text;
}

my %consumed;

# The records of a topic since the last look; there must be as many as expected.
sub new_records
{
	my ($topic, $enough) = @_;
	my $before = $consumed{$topic} || 0;
	my @records = consume_until($topic, $before + $enough);

	$consumed{$topic} = @records;
	return splice @records, $before;
}

# A test: the records of a topic since the last look are exactly these.
sub records_are
{
	my ($topic, $show, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is_deeply([ map { $show->($_) } new_records($topic, scalar @$expected) ], $expected, $name);
}

1;
