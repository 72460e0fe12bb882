/*
 * histogram.c
 *	  The distribution of a measured value: see histogram.h.
 */
#include "histogram.h"

#include <math.h>

/* Values below are their own bucket. */
#define EXACT 32

/* Buckets of a power of two; the first that has them is 2^5. */
#define CUTS 16
#define FIRST_POWER 5

static int
bucket_of(int64_t value)
{
	int			power = FIRST_POWER;
	int			bucket;

	if (value < EXACT)
		return (int) value;
	while (power < 62 && (value >> (power + 1)) != 0)
		power++;
	bucket = EXACT + (power - FIRST_POWER) * CUTS + (int) ((value >> (power - 4)) - CUTS);
	return bucket < TK_HISTOGRAM_BUCKETS ? bucket : TK_HISTOGRAM_BUCKETS - 1;
}

/* The middle of a bucket. */
static int64_t
value_of(int bucket)
{
	int			power;
	int64_t		width;

	if (bucket < EXACT)
		return bucket;
	power = FIRST_POWER + (bucket - EXACT) / CUTS;
	width = INT64_C(1) << (power - 4);
	return (CUTS + (bucket - EXACT) % CUTS) * width + (width - 1) / 2;
}

void
tk_histogram_add(TkHistogram *histogram, int64_t value)
{
	if (value < 0)
		value = 0;
	if (histogram->count == 0 || value < histogram->min)
		histogram->min = value;
	if (histogram->count == 0 || value > histogram->max)
		histogram->max = value;
	histogram->count++;
	histogram->sum += value;

	/* A bucket that is full: half as much of each is the same distribution. */
	if (++histogram->buckets[bucket_of(value)] == UINT32_MAX)
		for (int i = 0; i < TK_HISTOGRAM_BUCKETS; i++)
			histogram->buckets[i] /= 2;
}

int64_t
tk_histogram_percentile(const TkHistogram *histogram, double percent)
{
	int64_t		total = 0;
	int64_t		rank;
	int64_t		value = 0;

	if (histogram->count == 0)
		return 0;
	for (int i = 0; i < TK_HISTOGRAM_BUCKETS; i++)
		total += histogram->buckets[i];
	rank = (int64_t) ceil((double) total * percent / 100);
	if (rank < 1)
		rank = 1;
	for (int i = 0; i < TK_HISTOGRAM_BUCKETS && rank > 0; i++)
	{
		rank -= histogram->buckets[i];
		value = value_of(i);
	}
	if (value < histogram->min)
		return histogram->min;
	return value > histogram->max ? histogram->max : value;
}
