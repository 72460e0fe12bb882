/*
 * broker.h
 *	  What the unit tests that talk to a real broker share: "broker" and "run"
 *	  are set by main().
 */
#ifndef TK_BROKER_H
#define TK_BROKER_H

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "../../src/kafka_client.h"
#include "unit.h"

static const char *broker;
static char run[32];			/* makes names unique on a broker that lives longer */
static const TkKafkaWait patient = {30000, NULL};

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

static bool
always(void)
{
	return true;
}

static const char *
name(const char *what)
{
	static char names[16][80];
	static int	next;

	next = (next + 1) % 16;
	snprintf(names[next], sizeof(names[next]), "%s-%s", what, run);
	return names[next];
}

/* Expects OK; prints the message when it isn't. */
static bool
is_ok(TkKafkaStatus status, const TkKafkaError *error)
{
	if (status != TK_KAFKA_OK)
		printf("\tstatus %d cause %d code %d: %s\n", status, error->cause, error->code, error->message);
	return status == TK_KAFKA_OK;
}

#define OK(call)	CHECK(is_ok((call), &error))

#endif							/* TK_BROKER_H */
