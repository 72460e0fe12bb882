/*
 * Percentiles beside those of the sorted values themselves.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "histogram.h"
#include "unit.h"

/* What the documentation states */
#define LARGEST_ERROR 0.032

static const double percents[] = {0, 1, 50, 90, 95, 99, 99.9, 100};

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return x < y ? -1 : x > y;
}

/* The smallest value that "percent" of them don't exceed: the definition, by hand */
static int64_t
exact_percentile(const int64_t *sorted, int n, double percent)
{
	int			rank = (int) ceil(n * percent / 100);

	return sorted[rank < 1 ? 0 : rank - 1];
}

static void
check_percentiles(int64_t *values, int n)
{
	TkHistogram *h = calloc(1, sizeof(TkHistogram));
	int64_t		sum = 0;

	for (int i = 0; i < n; i++)
	{
		tk_histogram_add(h, values[i]);
		sum += values[i];
	}
	qsort(values, n, sizeof(int64_t), compare);
	CHECK_INT(h->count, n);
	CHECK_INT(h->sum, sum);
	CHECK_INT(h->min, values[0]);
	CHECK_INT(h->max, values[n - 1]);
	for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
	{
		int64_t		exact = exact_percentile(values, n, percents[i]);
		int64_t		found = tk_histogram_percentile(h, percents[i]);

		if (!CHECK(fabs((double) (found - exact)) <= LARGEST_ERROR * (double) exact))
			printf("\tp%g of %d values: %lld instead of %lld\n", percents[i], n, (long long) found, (long long) exact);
		CHECK(found >= values[0] && found <= values[n - 1]);
	}
	free(h);
}

static void
an_empty_histogram_has_no_values(void)
{
	TkHistogram h = {0};

	CHECK_INT(h.count, 0);
	CHECK_INT(tk_histogram_percentile(&h, 50), 0);
}

static void
one_value_is_every_percentile_exactly(void)
{
	static const int64_t values[] = {0, 1, 31, 32, 33, 1000, 1234567, INT64_C(1) << 43, INT64_C(1) << 50, INT64_MAX};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
	{
		TkHistogram h = {0};

		tk_histogram_add(&h, values[i]);
		CHECK_INT(tk_histogram_percentile(&h, 0), values[i]);
		CHECK_INT(tk_histogram_percentile(&h, 50), values[i]);
		CHECK_INT(tk_histogram_percentile(&h, 100), values[i]);
	}
}

static void
small_values_are_exact(void)
{
	TkHistogram h = {0};

	/* 1 .. 20: of each percentile it is known without rounding */
	for (int i = 20; i >= 1; i--)
		tk_histogram_add(&h, i);
	CHECK_INT(tk_histogram_percentile(&h, 50), 10);
	CHECK_INT(tk_histogram_percentile(&h, 51), 11);
	CHECK_INT(tk_histogram_percentile(&h, 95), 19);
	CHECK_INT(tk_histogram_percentile(&h, 96), 20);
	CHECK_INT(tk_histogram_percentile(&h, 99), 20);
	CHECK_INT(tk_histogram_percentile(&h, 5), 1);
	CHECK_INT(tk_histogram_percentile(&h, 5.01), 2);
}

/* At both ends of every bucket, with a smaller and a larger value so that min and max don't help. */
static void
every_value_up_to_2_to_the_44_is_told_within_the_bound(void)
{
	int			wrong = 0;

	for (int power = 0; power < 44; power++)
		for (int part = 0; part < 64; part++)
			for (int off = -1; off <= 1; off++)
			{
				int64_t		value = (INT64_C(1) << power) + ((INT64_C(1) << power) / 64) * part + off;
				TkHistogram h = {0};

				if (value >= INT64_C(1) << 44)
					continue;
				tk_histogram_add(&h, 0);
				tk_histogram_add(&h, value);
				tk_histogram_add(&h, INT64_MAX / 4);
				wrong += fabs((double) (tk_histogram_percentile(&h, 50) - value)) > LARGEST_ERROR * (double) value;
			}
	CHECK_INT(wrong, 0);
}

static void
percentiles_are_those_of_the_sorted_values(void)
{
	const char *seed = getenv("TK_SEED");
	int64_t    *values = malloc(5000 * sizeof(int64_t));

	random_state = seed != NULL ? strtoull(seed, NULL, 10) : UINT64_C(88172645463325252);
	if (seed != NULL)
		printf("seed: TK_SEED=%s\n", seed);
	for (int round = 0; round < 60; round++)
	{
		int			n = 1 + (int) (random_u64() % 5000);
		int			bits = 1 + (int) (random_u64() % 43);

		for (int i = 0; i < n; i++)
		{
			/* by turns: even over the range, even over its powers of two, two clusters far from each other */
			int			shift = round % 3 == 1 ? (int) (random_u64() % bits) : 0;
			int64_t		value = (int64_t) ((random_u64() & ((UINT64_C(1) << bits) - 1)) >> shift);

			values[i] = round % 3 == 2 ? (i % 100 == 0 ? 1000000 : 1000) + value % 50 : value;
		}
		check_percentiles(values, n);
	}
	free(values);
}

static void
less_than_nothing_is_nothing(void)
{
	TkHistogram h = {0};

	/* a clock that went back */
	tk_histogram_add(&h, -5);
	CHECK_INT(h.min, 0);
	CHECK_INT(h.max, 0);
	CHECK_INT(h.sum, 0);
	CHECK_INT(tk_histogram_percentile(&h, 99), 0);
}

static void
a_full_bucket_leaves_the_distribution_as_it_was(void)
{
	TkHistogram h = {0};
	int			full;

	for (int i = 0; i < 1000; i++)
		tk_histogram_add(&h, i < 960 ? 7 : 900);
	full = 0;
	while (h.buckets[full] != 960)
		full++;

	/* as after four thousand million */
	for (int i = 0; i < TK_HISTOGRAM_BUCKETS; i++)
		h.buckets[i] *= (UINT32_MAX - 1) / 960;
	h.buckets[full] = UINT32_MAX - 1;
	h.count = INT64_C(4) << 30;
	tk_histogram_add(&h, 7);
	CHECK(h.buckets[full] < UINT32_MAX / 2 + 1);
	CHECK_INT(h.count, (INT64_C(4) << 30) + 1);
	CHECK_INT(tk_histogram_percentile(&h, 50), 7);
	CHECK_INT(tk_histogram_percentile(&h, 95), 7);
	CHECK_INT(tk_histogram_percentile(&h, 96.5), 900);
}

int
main(void)
{
	an_empty_histogram_has_no_values();
	one_value_is_every_percentile_exactly();
	small_values_are_exact();
	every_value_up_to_2_to_the_44_is_told_within_the_bound();
	percentiles_are_those_of_the_sorted_values();
	less_than_nothing_is_nothing();
	a_full_bucket_leaves_the_distribution_as_it_was();
	return unit_done();
}
