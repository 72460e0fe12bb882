/*
 * histogram.h
 *	  The distribution of a measured value, in a bounded space: percentiles that
 *	  are at most 3.2 % off, whatever was measured.  Pure C.
 *
 * Buckets are log-linear: up to 32 each value has its own; above that each
 * power of two is cut into 16.  So a bucket is at most 1/16 of its smallest
 * value wide, and its middle at most 1/32 from any value in it.  Values from
 * 2^44 on share the last bucket (in microseconds half a year, in bytes 16 TB).
 */
#ifndef TK_HISTOGRAM_H
#define TK_HISTOGRAM_H

#include <stdint.h>

#define TK_HISTOGRAM_BUCKETS (32 + (44 - 5) * 16)

/* All zero is empty. */
typedef struct TkHistogram
{
	int64_t		count;
	int64_t		min;			/* exact, as are max and sum */
	int64_t		max;
	int64_t		sum;
	uint32_t	buckets[TK_HISTOGRAM_BUCKETS];
} TkHistogram;

/* Less than 0 is 0. */
extern void tk_histogram_add(TkHistogram *histogram, int64_t value);

/*
 * The smallest value that at least "percent" of all values don't exceed, as
 * exact as said above; between min and max.  0 if it is empty.
 */
extern int64_t tk_histogram_percentile(const TkHistogram *histogram, double percent);

#endif							/* TK_HISTOGRAM_H */
